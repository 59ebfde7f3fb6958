"""Runs of a recipe that were never run, as good as a test wants."""

from collections.abc import Callable, Iterable
from pathlib import Path

from calibre.experiment import Experiment
from calibre.report.metrics import ClientResult
from calibre.report.results import by_group
from calibre.report.runs import Run
from tests.report.in_memory import metrics


def made_up(
    experiments: Iterable[Experiment], accuracy: Callable[[Experiment], float]
) -> list[Run]:
    """Runs of 20 trained and 10 novel clients; ``accuracy(experiment)`` is that of the first.

    Each client is a thousandth better than the one before it.
    """
    made = []
    for e in experiments:
        labels = e.personal.labels or e.federation.label_count or 400
        clients = [
            ClientResult(i, "", i >= 20, labels, 400 - labels, 100, 3, accuracy(e) + i / 1000, {})
            for i in range(20 if e.personal.clients == "novel" else 0, 30)
        ]
        reached = by_group(clients, [client.accuracy for client in clients])
        figures = metrics(
            method=e.method.label, seed=e.seed, seconds=100.0, images=240_000,
            federation=f"{e.federation.scheme} {e.seed}", train=reached.train, novel=reached.novel,
        )  # fmt: skip
        made.append(Run(Path(e.folder_name), e, figures, tuple(clients)))
    return made
