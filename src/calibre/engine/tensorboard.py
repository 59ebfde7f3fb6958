"""Live curves in TensorBoard: a sink for events, where the extra ``track`` is installed."""

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calibre.errors import UserError
from calibre.report.events import ClientFailed, Emit, Ended, Event, RoundDone, Started
from calibre.report.metrics import MEASURES, Metrics

CLOCKS = ("began",)  # of a client's report, no curve


@contextmanager
def to_tensorboard(folder: Path) -> Iterator[Emit]:
    """A sink that writes every round's means over clients, and the results, as scalars.

    A run that goes on hides what an earlier attempt wrote of rounds that are done again.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "--tensorboard needs TensorBoard: install it with  pip install 'calibre-fl[track]'"
        ) from None
    writer: Any = None
    failures = 0  # since the last round

    def write(scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # now, for whoever is looking on

    def emit(event: Event) -> None:
        nonlocal writer, failures
        if isinstance(event, Started):
            try:
                writer = SummaryWriter(str(folder), purge_step=event.done + 1)
            except OSError as error:
                raise UserError(
                    f"--tensorboard {folder}: {error.strerror}; name a folder to write to"
                ) from None
        elif isinstance(event, ClientFailed):
            failures += 1
        elif isinstance(event, RoundDone):
            write({**_of_round(event), "rounds/failures": failures}, event.round)
            failures = 0
        elif isinstance(event, Ended):
            write(_of_results(event.metrics), event.metrics.rounds)

    try:
        yield emit
    finally:
        if writer is not None:
            writer.close()


def _of_round(event: RoundDone) -> dict[str, float]:
    """The mean over the round's clients of every term that they report."""
    terms: dict[str, list[float]] = {}
    for report in event.clients.values():
        for name, value in report.items():
            terms.setdefault(name, []).append(value)
    means = {
        f"clients/{name}": statistics.fmean(values)
        for name, values in terms.items()
        if name not in CLOCKS
    }
    return {**means, "rounds/clients": len(event.clients), "rounds/seconds": event.seconds}


def _of_results(metrics: Metrics) -> dict[str, float]:
    return {
        f"accuracy of {kind} clients/{measure}": value
        for figures, kind in ((metrics.train, "trained"), (metrics.novel, "novel"))
        for measure in MEASURES
        if (value := getattr(figures, measure)) is not None
    }
