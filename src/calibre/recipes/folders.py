"""What `run --data` comes to on folders of images, beside labels alone and beside each site alone.

Its runs are on folders that ``python -m benchmarks.folders`` makes of known data sets, with the
settings that are chosen for them there. So they cannot be listed ahead, as a recipe's are: they are
those entries of the ledger whose data is such a folder.
"""

import re
import statistics
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import PurePosixPath
from typing import NamedTuple

from calibre.errors import UserError
from calibre.evidence.kept import Evidence
from calibre.experiment import Experiment
from calibre.recipes.gathered import Passage, provenance
from calibre.recipes.recipe import Conclusion, table
from calibre.recipes.wide_table import told_apart
from calibre.report.compare import paired_test
from calibre.report.comparison_tables import PairedTest
from calibre.report.inference import holm
from calibre.report.metrics import summary
from calibre.report.rows import Entry, Row
from calibre.report.runs import Run

FOLDER = "folders"  # that all draws lie in, where their runs begin
NAME = re.compile(r"(?P<source>[a-z0-9-]+)-(?P<labels>\d+)-(?P<draw>\d+)")
SOURCES, LABELS = ("cifar10", "fashion-mnist", "digits"), (30, 60)  # that are asked for
OURS, RIVAL = "calibre", "fedavg-ft"  # methods
COMMAND = "python -m benchmarks.folders --ledger evidence"
HEADER = ("folders from", "labels", "draws", "`run --data`", "FedAvg-FT", "alone",
          "ahead of FedAvg-FT by", "ahead of alone by")  # fmt: skip


class Draw(NamedTuple):
    """One set of eight folders."""

    source: str
    labels: int
    draw: int

    @property
    def name(self) -> str:
        return f"{self.source}-{self.labels}-{self.draw}"


class Setting(NamedTuple):
    """All draws of a data set with so many labels."""

    source: str
    labels: int
    ours: Row
    rival: Row
    alone: Row


def draw_of(experiment: Experiment) -> Draw | None:
    """Which folders a run is on, if it is on such folders at all."""
    parts = PurePosixPath(experiment.data.source).parts
    found = NAME.fullmatch(parts[-1]) if parts[:-1] == (FOLDER,) else None
    return found and Draw(found["source"], int(found["labels"]), int(found["draw"]))


def passage(evidence: Evidence) -> Passage:
    """What the ledger has of folders; a draw is shown when both methods were run on it."""
    held = [e for e in evidence.entries.values() if draw_of(e.run.experiment)]
    both = {draw for draw, runs in _by_draw(entry.run for entry in held).items() if len(runs) == 2}
    shown = [entry for entry in held if draw_of(entry.run.experiment) in both]
    if not shown:
        return Passage(Conclusion(f"Not run yet: `{COMMAND}`"), (), tuple(held))
    begun = {(draw.source, draw.labels) for draw in both}
    missing = [f"{s} with {n} labels" for s, n in product(SOURCES, LABELS) if (s, n) not in begun]
    small = provenance(
        COMMAND, shown, *([f"still missing: {', '.join(missing)}"] if missing else [])
    )
    text = "\n\n".join([conclude([entry.run for entry in shown]), small])
    return Passage(Conclusion(text), tuple(shown), tuple(held))


def conclude(runs: Iterable[Run]) -> str:
    """A line for each data set and number of labels; runs of both methods on every draw."""
    settings = _settings(_by_draw(runs))
    pairs = [(s.ours, other) for s in settings for other in (s.rival, s.alone)]
    tests = [paired_test("train", one, other) for one, other in pairs]
    adjusted = holm([test.p for test in tests])
    said = [_difference(test, p) for test, p in zip(tests, adjusted, strict=True)]
    lines: list[Sequence[str]] = [HEADER]
    for i, s in enumerate(settings):
        reached = [_reached(row) for row in (s.ours, s.rival, s.alone)]
        counts = [str(s.labels), str(len(s.ours.entries))]
        lines.append([s.source, *counts, *reached, *said[2 * i : 2 * i + 2]])
    rival, alone = (pairs[i::2] for i in (0, 1))
    return "\n\n".join(
        [
            table(lines),
            "Mean of sites and worst site in %, and differences of means in points, ± half their "
            "95 % interval, over draws. In bold: told apart, by paired tests over sites, corrected "
            "over this table, and by that interval.",
            f"Single draws: {_span(rival)} points from FedAvg-FT, {_span(alone)} points from what "
            "is best alone.",
        ]
    )


def _by_draw(runs: Iterable[Run]) -> dict[Draw, dict[str, Run]]:
    """Of each draw the runs, by method; others than these two are refused."""
    found: dict[Draw, dict[str, Run]] = {}
    for run in runs:
        draw, method = draw_of(run.experiment), run.experiment.choice[0]
        if draw is None or method not in (OURS, RIVAL):
            raise UserError(f"{run.folder} is not of {COMMAND}: remove it")
        known = found.setdefault(draw, {}).setdefault(method, run)
        if known is not run:
            raise UserError(f"{known.folder} and {run.folder} are of one draw: remove the older")
    return dict(sorted(found.items()))


def _settings(by_draw: dict[Draw, dict[str, Run]]) -> list[Setting]:
    grouped: dict[tuple[str, int], list[dict[str, Run]]] = {}
    for draw, runs in by_draw.items():
        if runs[OURS].federation != runs[RIVAL].federation:
            raise UserError(
                f"{runs[OURS].folder} and {runs[RIVAL].folder} are not on the same images: remove "
                f"both, and the folder {draw.name}, and run them again"
            )
        grouped.setdefault((draw.source, draw.labels), []).append(runs)
    return [
        Setting(
            source,
            labels,
            Row("run --data", {}, tuple(Entry(runs[OURS]) for runs in draws)),
            Row("FedAvg-FT", {}, tuple(Entry(runs[RIVAL]) for runs in draws)),
            Row("alone", {}, tuple(_best_alone(runs[OURS]) for runs in draws)),
        )
        for (source, labels), draws in grouped.items()
    ]


def _best_alone(run: Run) -> Entry:
    """The floor whose mean over sites is highest."""
    return Entry(run, max(run.metrics.floors, key=lambda f: run.metrics.floors[f].train.mean or 0))


def _reached(row: Row) -> str:
    mean, worst = (
        statistics.mean(_of_sites(entry, measure) for entry in row.entries)
        for measure in ("mean", "min")
    )
    return f"{mean:.1f}, worst {worst:.1f}"


def _difference(test: PairedTest, p: float) -> str:
    value, half = test.difference
    said = f"{100 * value:+.1f}" + (f" ± {100 * half:.1f}" if half is not None else "")
    return f"**{said}**" if told_apart(test, p) else said


def _span(pairs: Sequence[tuple[Row, Row]]) -> str:
    """From the smallest to the largest difference of means in a single draw."""
    gaps = [
        _of_sites(a, "mean") - _of_sites(b, "mean")
        for one, other in pairs
        for a, b in zip(one.entries, other.entries, strict=True)
    ]
    return f"{min(gaps):+.1f} to {max(gaps):+.1f}"


def _of_sites(entry: Entry, measure: str) -> float:
    """In percent."""
    return 100 * summary(entry.accuracies("train")).measure(measure)
