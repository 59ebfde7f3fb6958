"""Federated rounds against the bare loop, and what Calibre's terms add to them."""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.bare import BareLoops
from calibre.data import federation as federations
from calibre.data.sources import find, load
from calibre.engine.crew import Processes
from calibre.engine.host import Host
from calibre.engine.rounds import OngoingRun
from calibre.experiment import Experiment, read
from calibre.run_folder import RunFolder

NO_LABELS = "method.labels.weight=0"
SUPERVISED = ("fedavg", "fedrep", "ditto", "apfl")


@dataclass(frozen=True)
class Load:
    """The work of one round."""

    encoder: str
    width: int
    clients: int
    images: int
    batch: int
    epochs: int = 3

    @property
    def batches_each(self) -> int:
        """Of one epoch, for each of two processes."""
        return self.clients * -(-self.images // self.batch) // 2


def spine(encoder: str, width: int, repeats: int) -> list[dict[str, Any]]:
    """SimCLR, plain and calibrated, at the paper's size of round."""
    return _objective("simclr", Load(encoder, width, clients=10, images=500, batch=250), repeats)


def objective(name: str, repeats: int) -> list[dict[str, Any]]:
    """An objective, plain and calibrated, with the small CNN."""
    return _objective(name, Load("cnn", 32, clients=4, images=250, batch=125), repeats)


def supervised(repeats: int) -> list[dict[str, Any]]:
    """Methods of one and of two models, with the small CNN."""
    size = Load("cnn", 32, clients=4, images=500, batch=50)
    results = []
    for method in SUPERVISED:
        with _experiments(size, {"round": (f"method.name={method}",)}) as experiments:
            seconds = _alternate(size, experiments, {"bare": experiments["round"]}, repeats)
        results.append(
            {
                "name": f"{method} round against the bare loop, {size.encoder} width {size.width}",
                "ratio": _ratio(seconds["bare"], seconds["round"]),
                "target": ">= 0.85",
                "settings": _settings(size, seconds),
            }
        )
    return results


def labels(repeats: int) -> list[dict[str, Any]]:
    """What the term l_c adds to a round of Calibre: a batch of 32 labelled images beside each."""
    size = Load("cnn", 32, clients=4, images=500, batch=125)
    changes = {
        "without": ("method.name=calibre", NO_LABELS),
        "with": ("method.name=calibre", "method.labels.weight=1"),
    }
    with _experiments(size, changes) as experiments:
        seconds = _alternate(size, experiments, {}, repeats)
    return [
        {
            "name": f"Calibre round with labels against without, cnn width {size.width}",
            "ratio": _ratio(seconds["with"], seconds["without"]),
            "target": "<= 1.35",
            "settings": _settings(size, seconds),
        }
    ]


def _objective(objective: str, size: Load, repeats: int) -> list[dict[str, Any]]:
    """Alternate the rounds and their bare loops; the middle one of the ratios."""
    changes = {
        name: (f"method.name={name}", f"method.objective={objective}", NO_LABELS)
        for name in ("pfl-ssl", "calibre")
    }
    with _experiments(size, changes) as experiments:
        bare = {f"bare {name}": experiment for name, experiment in experiments.items()}
        seconds = _alternate(size, experiments, bare, repeats)
    settings = _settings(size, seconds)
    pairs = size.clients * size.images * size.epochs
    plain, calibrated = seconds["bare pfl-ssl"], seconds["bare calibre"]
    settings["bare pairs per second"] = round(pairs / statistics.median(plain), 1)
    # SMoG encodes one view alone and Calibre needs both: the bare loop says what that costs
    more_passes = _ratio(calibrated, plain) if objective == "smog" else 1
    where = f"{size.encoder} width {size.width}"
    return [
        {
            "name": f"pFL round of {objective} against its bare loop, {where}",
            "ratio": _ratio(plain, seconds["pfl-ssl"]),
            "target": ">= 0.90",
            "settings": settings,
        },
        {
            "name": f"Calibre round of {objective} against its pFL round, {where}",
            "ratio": _ratio(seconds["calibre"], seconds["pfl-ssl"]) / more_passes,
            "target": "<= 1.10",
            "settings": settings,
        },
    ]


def _alternate(
    size: Load, rounds: Mapping[str, Experiment], bare: Mapping[str, Experiment], repeats: int
) -> dict[str, list[float]]:
    """Seconds of a round and of a bare loop of the same passes, one after the other."""
    with contextlib.ExitStack() as open_until_the_end:
        timed: dict[str, Callable[[], float]] = {}
        for name, experiment in bare.items():
            loops = BareLoops(experiment, size.batch)
            open_until_the_end.callback(loops.close)
            timed[name] = partial(loops.seconds, size.batches_each)
        for name, experiment in rounds.items():
            run = open_until_the_end.enter_context(running(experiment))
            timed[name] = partial(_round, run)
        for measure in timed.values():
            measure()  # a first time, to warm up
        seconds: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(repeats):
            for name, measure in timed.items():
                seconds[name].append(measure())
    return seconds


def _round(run: OngoingRun) -> float:
    began = time.perf_counter()
    run.round()
    return time.perf_counter() - began


@contextlib.contextmanager
def _experiments(
    size: Load, changes: Mapping[str, tuple[str, ...]]
) -> Iterator[dict[str, Experiment]]:
    """Experiments of this size on CIFAR-10, or on noise of its shape where it is absent."""
    with tempfile.TemporaryDirectory() as name:
        source = "cifar10" if find("cifar10") else str(_noise(Path(name) / "noise.npz"))
        common = (
            f"data.source={source}", "federation.scheme=iid", f"federation.clients={size.clients}",
            "federation.novel=0", f"federation.samples={size.images}",
            f"network.encoder={size.encoder}", f"network.width={size.width}",
            f"training.clients_per_round={size.clients}", f"training.epochs={size.epochs}",
            "training.rounds=100", f"method.sgd.batch={size.batch}",
        )  # fmt: skip
        yield {name: read(None, [*chosen, *common]) for name, chosen in changes.items()}


@contextlib.contextmanager
def running(settings: Experiment) -> Iterator[OngoingRun]:
    """A run with two workers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = RunFolder(folder)
        store.open(settings)
        pool = load(settings.data)
        federation = federations.build(pool, settings.federation, settings.seed)
        federation.save(folder)
        host = Host(settings, pool, federation, folder, torch.device("cpu"))
        workers = Processes(folder, ["cpu", "cpu"], [])
        try:
            yield OngoingRun(settings, store, federation, host, workers, lambda event: None, 0.0)
        finally:
            workers.close()
            store.close()


def _ratio(one: list[float], other: list[float]) -> float:
    """Of what was measured one right after the other: a machine's slow minute slows both."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def _settings(size: Load, seconds: Mapping[str, list[float]]) -> dict[str, Any]:
    return {
        **asdict(size),
        "data": "cifar10" if find("cifar10") else "noise of CIFAR-10's shape",
        "seconds": {
            name: [round(value, 2) for value in values] for name, values in seconds.items()
        },
    }


def _noise(path: Path) -> Path:
    import numpy as np

    random = np.random.default_rng(0)
    np.savez(
        path,
        x_train=random.integers(0, 256, (5200, 32, 32, 3), dtype=np.uint8),
        y_train=np.arange(5200) % 10,
        x_test=random.integers(0, 256, (1000, 32, 32, 3), dtype=np.uint8),
        y_test=np.arange(1000) % 10,
    )
    return path
