"""A run as it goes on, or as it ended: what its log says so far, in figures and in words."""

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibre.data import federation as federations
from calibre.errors import UserError, printable
from calibre.report.events import ClientFailed, Ended, Event, RoundDone, Started, Warned, parse
from calibre.report.floors import title_of
from calibre.report.metrics import GROUPS, Metrics
from calibre.report.page.plotted import curves
from calibre.report.rows import KINDS
from calibre.run_folder import RunFolder
from calibre.wording import duration, how_many, quoted

CHUNK = 2**24  # bytes of the log that are read at a time
RECENT = 10  # rounds that tell how long the next ones take
DRAWN = 300  # rounds that curves show, at most
SHOWN = 20  # failures and warnings, the latest
SILENT = 60.0  # seconds without a word, and so many of the longest round, before it is told
SILENT_ROUNDS = 5
SILENT_AT_THE_END = 600.0  # personal models may take long, and nothing is logged meanwhile


class Follower:
    """The events of a log, read once each. A log that was rewritten is read anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._place, self._rest = 0, b""
        self.events: list[Event] = []
        self.changed = 0.0  # when something was written last, by the file's clock

    def read_on(self) -> None:
        """Take in what was written since; a line that is not whole waits for its end."""
        try:
            with self._path.open("rb") as file:
                about = os.fstat(file.fileno())
                if (about.st_dev, about.st_ino) != self._file or about.st_size < self._place:
                    self._file = about.st_dev, about.st_ino
                    self._place, self._rest, self.events = 0, b"", []
                self.changed = about.st_mtime
                file.seek(self._place)
                while part := file.read(CHUNK):
                    self._place += len(part)
                    *lines, self._rest = (self._rest + part).split(b"\n")
                    found = (parse(line.decode(errors="replace")) for line in lines)
                    self.events += [event for event in found if event is not None]
        except FileNotFoundError:
            return  # it has not begun
        except OSError as error:
            raise UserError(f"cannot read {self._path}: {error.strerror}") from None


class LiveRun:
    """What a page tells of a run folder, each time that it is asked."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.files = RunFolder(folder)
        self.experiment = self.files.read_experiment()
        self.name = printable(folder.resolve().name)
        self._log = Follower(self.files.events)
        self._clock = clock
        self._names: dict[int, str] | None = None
        self._drawn: tuple[int, list[dict[str, Any]]] = (-1, [])

    @property
    def finished(self) -> bool:
        return isinstance(self._log.events[-1:] and self._log.events[-1], Ended)

    def state(self) -> dict[str, Any]:
        """Everything, as plain values."""
        self._log.read_on()
        log = self._log.events
        start = next((event for event in reversed(log) if isinstance(event, Started)), None)
        rounds = [event for event in log if isinstance(event, RoundDone)]
        ended = log[-1].metrics if self.finished and isinstance(log[-1], Ended) else None
        total = start.rounds if start else self.experiment.training.rounds
        done = max([start.done if start else 0, *(event.round for event in rounds)])
        silence = max(0.0, self._clock() - self._log.changed) if log else 0.0
        pace = [event.seconds for event in rounds[-RECENT:]]
        left = _left(pace, total - done, silence) if pace and not ended else None
        return {
            "name": self.name,
            "source": printable(Path(self.experiment.data.source).name),
            "method": start.method if start else "",
            "begun": start is not None,
            "finished": ended is not None,
            "round": done,
            "rounds": total,
            "clients": start.clients if start else None,
            "novel": start.novel if start else None,
            "said": self._said(start, rounds, done, total, silence, ended),
            "elapsed": ended.seconds if ended else sum(event.seconds for event in rounds),
            "left": left,
            "silence": silence,
            "failures": self._failures(log),
            "warnings": _warnings(log, ended),
            "results": _results(ended) if ended else [],
            "curves": self._curves(rounds),
        }

    def _said(
        self, start: Started | None, rounds: list[RoundDone], done: int, total: int,
        silence: float, ended: Metrics | None,
    ) -> str:  # fmt: skip
        if ended:
            return f"Finished: {how_many(total, 'round')} in {duration(ended.seconds)}."
        if start is None:
            return "Waiting for the run to begin."
        longest = max((event.seconds for event in rounds), default=0.0)
        patience = max(SILENT, SILENT_ROUNDS * longest) if done < total else SILENT_AT_THE_END
        if silence > patience:
            return (
                f"Nothing has been heard for {duration(silence)}: it may have stopped. {self._on()}"
            )
        if done < total:
            return f"Training: {done:,} of {total:,} rounds are done."
        return "Training is done; personal models are being made."

    def _on(self) -> str:
        if self.experiment.engine.runtime == "flower":
            return "The coordinator's screen says why; the command that started it goes on."
        return f"Go on with  calibre-fl resume {printable(quoted(self.files.path))}"

    def _failures(self, log: list[Event]) -> dict[str, Any]:
        failed = [event for event in log if isinstance(event, ClientFailed)]
        often = Counter(event.client for event in failed).most_common(SHOWN)
        return {
            "count": len(failed),
            "clients": [{"name": self._called(one), "times": times} for one, times in often],
            "last": [
                {
                    "round": event.round,
                    "name": self._called(event.client),
                    "cause": event.cause.partition("\n")[0][:500],
                }
                for event in failed[: -SHOWN - 1 : -1]
            ],
        }

    def _called(self, client: int) -> str:
        if self._names is None and self.files.federation.is_file():
            try:
                held = federations.load(self.files.path)
                self._names = {i: printable(held.client(i).name) for i in range(len(held))}
            except UserError:
                self._names = {}
        return (self._names or {}).get(client, f"client {client}")

    def _curves(self, rounds: list[RoundDone]) -> list[dict[str, Any]]:
        if self._drawn[0] != len(rounds):
            step = -(-len(rounds) // DRAWN) or 1
            some = rounds[::-1][::step][::-1]  # the last one among them
            self._drawn = len(rounds), curves(some)
        return self._drawn[1]


def _left(pace: list[float], rounds: int, silence: float) -> float:
    """Seconds of so many rounds, one of which has been going on since the last word."""
    one = statistics.median(pace)
    return one * rounds - min(silence, one if rounds else 0.0)


def _warnings(log: list[Event], ended: Metrics | None) -> list[str]:
    """The latest last."""
    said = [event.text for event in log if isinstance(event, Warned)][-SHOWN:]
    return [*dict.fromkeys([*said, *(map(printable, ended.warnings) if ended else ())])]


def _results(metrics: Metrics) -> list[dict[str, Any]]:
    """Mean and worst tenth of the personal models and of the floors."""
    rows = []
    for group in GROUPS:
        models = {metrics.method: metrics.of(group)}
        models |= {title_of(name): floor.of(group) for name, floor in metrics.floors.items()}
        rows += [
            {
                "clients": KINDS[group],
                "model": printable(name),
                "mean": figures.mean,
                "worst_tenth": figures.worst_tenth,
            }
            for name, figures in models.items()
            if figures.clients
        ]
    return rows
