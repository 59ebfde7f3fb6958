"""Runs that were never run: as values, with the accuracies that a test wants."""

from collections.abc import Sequence
from pathlib import Path

from calibre.experiment import read
from calibre.report.metrics import ClientResult, Metrics
from calibre.report.results import by_group
from calibre.report.runs import Run


def run(
    trained: Sequence[float],
    novel: Sequence[float] = (),
    *changes: str,
    seed: int = 0,
    federation: str = "",
    floors: dict[str, Sequence[float]] | None = None,  # of all clients
    **more: object,  # metrics
) -> Run:
    """A run of the demonstration, or of what ``changes`` make of it."""
    experiment = read(None, [f"seed={seed}", *changes])
    accuracies = [*trained, *novel]
    clients = [
        ClientResult(
            id=i,
            name=f"client-{i}",
            novel=i >= len(trained),
            samples=10 + i,
            unlabelled=5,
            test_samples=20,
            classes=1 + i % 3,
            accuracy=accuracy,
            floors={name: values[i] for name, values in (floors or {}).items()},
        )
        for i, accuracy in enumerate(accuracies)
    ]
    label = experiment.method.label
    reached = by_group(clients, accuracies)
    told = {
        "method": label,
        "seed": seed,
        "federation": federation or f"federation of seed {seed}",
        "train": reached.train,
        "novel": reached.novel,
        **more,
    }
    folder = Path("runs") / f"{label}-{seed}-{len(changes)}"
    return Run(folder, experiment, metrics(**told), tuple(clients))


def metrics(**figures: object) -> Metrics:
    """Those of a run of no clients, but for ``figures``."""
    plain: dict[str, object] = {
        "method": "Calibre (SimCLR)",
        "seed": 0,
        "federation": "",
        "rounds": 3,
        "seconds": 10.0,
        "failures": 0,
        "bytes_up": 2000,
        "bytes_down": 3000,
        "train": {"clients": 0},
        "novel": {"clients": 0},
    }
    return Metrics.model_validate({**plain, **figures})


def method(name: str) -> str:
    """The change that makes it another method."""
    return f"method.name={name}"
