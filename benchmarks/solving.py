"""Solving personal heads: scikit-learn one by one, and all clients together.

Both choose C by the same five folds and eleven strengths on log loss and then fit all labels. The
peer is ``LogisticRegressionCV``, which starts each strength from the one before, as we do; its
clients are independent of each other, so that it is timed on some and counted for all. Both get
one thread and are timed in turn, so that a busy machine slows both.

    python -m benchmarks.solving
"""

import time
import warnings
from collections.abc import Callable

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV

from calibre.personal.heads import Samples
from calibre.personal.solve import scaling, standardise
from calibre.personal.strength import STRENGTHS, choose_and_solve
from calibre.rng import stream

CLASSES = 10
FEATURES = 128


def measure(repeats: int = 3, timed: int = 15) -> dict[str, float]:
    """Seconds for 150 clients with 100 labels each, the best of ``repeats``; their ratio."""
    clients = 150
    samples = _samples(clients, labels=100)
    folds = [chosen.fold for chosen in choose_and_solve(range(timed), samples[:timed], CLASSES, 0)[0]]
    one_by_one, together = float("inf"), float("inf")
    for _ in range(repeats):
        seconds = _seconds(lambda: _scikit_learn(samples[:timed], folds))
        one_by_one = min(one_by_one, seconds * clients / timed)
        together = min(
            together, _seconds(lambda: choose_and_solve(range(clients), samples, CLASSES, 0))
        )
    return {"one by one": one_by_one, "together": together, "ratio": one_by_one / together}


def thousand(repeats: int = 2) -> float:
    """Seconds for 1,000 clients with 50 labels each, cross-validated and solved."""
    samples = _samples(1000, labels=50)
    return min(
        _seconds(lambda: choose_and_solve(range(1000), samples, CLASSES, 0)) for _ in range(repeats)
    )


def _seconds(work: Callable[[], object]) -> float:
    torch.set_num_threads(1)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _samples(clients: int, labels: int) -> list[Samples]:
    """Standardised features as after a network's last activation, of classes that overlap."""
    draw = stream(0, "benchmark-solving")
    means = 0.3 * torch.randn(CLASSES, FEATURES, generator=draw)
    samples = []
    for _ in range(clients):
        truth = torch.arange(labels) % CLASSES
        features = (means[truth] + torch.randn(labels, FEATURES, generator=draw)).relu_()
        samples.append(Samples(standardise(features, scaling(features)), truth))
    return samples


def _scikit_learn(samples: list[Samples], folds: list[torch.Tensor]) -> None:
    for (features, labels), fold in zip(samples, folds, strict=True):
        splits = [((fold != f).nonzero()[:, 0], (fold == f).nonzero()[:, 0]) for f in range(5)]
        model = LogisticRegressionCV(
            Cs=list(STRENGTHS), cv=[tuple(p.numpy() for p in s) for s in splits], scoring="neg_log_loss"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # within its 100 iterations
            warnings.simplefilter("ignore", FutureWarning)
            model.fit(features.numpy(), labels.numpy())


if __name__ == "__main__":
    print({name: round(value, 3) for name, value in measure().items()})
    print({"1,000 clients, seconds": round(thousand(), 2)})
