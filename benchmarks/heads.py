"""Training the personal heads of 150 clients, one by one and all together; solving those of 1,000.

The loop is what one writes with ``nn.Linear``, ``F.cross_entropy`` and ``torch.optim.SGD`` on
features that are already cached. It gets one thread, because two make it slower: its operations
are too small to share. The batched training is timed with one and two, of which the faster counts:
on a busy machine two are slower. All are timed in turn, so that a busy machine slows all.

Solved heads are cross-validated over all strengths, chosen, and solved twice as in a run (on the
labels, and on the test images' labels too), in groups as a run makes them, on two threads that
stand for a run's two workers. What encodes images is not timed.

    python -m benchmarks.heads
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn

from calibre.personal.cross_validation import curves_of, strengths_for
from calibre.personal.encoded import SHARES, Encoded, Expert
from calibre.personal.heads import Samples, fresh_head, train_heads
from calibre.personal.holdout import FOLDS, stratified
from calibre.personal.pooling import Curves, Features, pooled
from calibre.personal.solve import scaling, standardise
from calibre.personal.solved_head import SolvedHead, solved
from calibre.rng import stream
from calibre.sections import PersonalSettings

CLIENTS, CLASSES = 150, 10
SETTINGS = PersonalSettings()  # 10 epochs, batch 32, SGD


def measure(d: int = 128, repeats: int = 3, loop_threads: int = 1) -> dict[str, float]:
    """Seconds of the loop and of the batched training, the best of ``repeats``; their ratio."""
    samples = _samples(d)
    heads = [fresh_head(0, client, CLASSES, d) for client in range(CLIENTS)]

    def batched() -> None:
        train_heads(range(CLIENTS), samples, heads, SETTINGS, seed=0)

    loop, one_thread, two_threads = (float("inf"),) * 3
    for _ in range(repeats):
        loop = min(loop, _seconds(lambda: _one_by_one(samples, d), loop_threads))
        one_thread = min(one_thread, _seconds(batched, threads=1))
        two_threads = min(two_threads, _seconds(batched, threads=2))
    return {
        "features": d,
        "loop": loop,
        "batched, 1 thread": one_thread,
        "batched, 2 threads": two_threads,
        "ratio": loop / min(one_thread, two_threads),
    }


def solve(clients: int = 1000, cores: int = 2) -> dict[str, float]:
    """Seconds for all clients' strengths and heads: 50 labels of 5 classes each."""
    everyone = [_client(number) for number in range(clients)]
    size = SolvedHead().group(clients)
    groups = [everyone[i : i + size] for i in range(0, clients, size)]
    torch.set_num_threads(1)
    began = time.perf_counter()
    busy = time.process_time()
    with ThreadPoolExecutor(cores) as pool:
        curves = list(pool.map(curves_of, groups))
        choice = pooled(own for group in curves for own in group)

        def finish(group: list[Encoded], known: list[Curves]) -> None:
            strengths = strengths_for(group, choice, known)
            solved(group, strengths)
            solved(group, strengths)

        list(pool.map(finish, groups, curves))
    return {
        "clients": clients,
        "seconds": time.perf_counter() - began,
        "processor seconds": time.process_time() - busy,
        "cores": cores,
    }


def _client(number: int) -> Encoded:
    """50 labels of 5 of 10 classes, by an encoder, by patterns of patches and by their pixels."""
    draw = stream(0, "benchmark-solved", number)
    held = torch.randperm(CLASSES, generator=draw)[:5]
    labels = held[torch.randint(5, (50,), generator=draw)]
    kinds: tuple[tuple[Features, int], ...] = (("encoder", 128), ("patches", 256), ("pixels", 60))
    experts = []
    for name, d in kinds:
        means = torch.randn(CLASSES, 32, generator=draw)
        mixed = means[labels] + torch.randn(len(labels), 32, generator=draw)
        raw = mixed @ torch.randn(32, d, generator=draw) + torch.randn(50, d, generator=draw)
        by = scaling(raw)
        samples = Samples(standardise(raw, by), labels)
        experts.append(Expert(name, nn.Identity(), SHARES[name], by, samples, None))
    return Encoded(experts, CLASSES, stratified(labels, FOLDS, draw))


def _seconds(work: Callable[[], object], threads: int) -> float:
    torch.set_num_threads(threads)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _samples(d: int) -> list[Samples]:
    draw = stream(0, "benchmark-heads")
    counts = torch.randint(333, 501, (CLIENTS,), generator=draw).tolist()
    return [
        Samples(
            torch.randn(n, d, generator=draw).relu_(),  # as after a network's last activation
            torch.randint(0, CLASSES, (n,), generator=draw),
        )
        for n in counts
    ]


def _one_by_one(samples: list[Samples], d: int) -> list[nn.Linear]:
    heads = []
    for features, labels in samples:
        head = nn.Linear(d, CLASSES)
        sgd = torch.optim.SGD(head.parameters(), lr=SETTINGS.lr)
        for _ in range(SETTINGS.epochs):
            for rows in torch.randperm(len(labels)).split(SETTINGS.batch):
                sgd.zero_grad()
                F.cross_entropy(head(features[rows]), labels[rows]).backward()
                sgd.step()
        heads.append(head)
    return heads


if __name__ == "__main__":
    for d in (128, 512):
        print({name: round(value, 3) for name, value in measure(d).items()})
    print({name: round(value, 3) for name, value in solve().items()})
