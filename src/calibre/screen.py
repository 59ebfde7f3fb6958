"""What a person sees while a run goes on, and the table it ends in."""

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from calibre.errors import printable
from calibre.report.changes import changes, counted
from calibre.report.events import (
    ClientFailed,
    Event,
    NextExperiment,
    Progressed,
    RoundDone,
    Started,
    Warned,
)
from calibre.report.floors import title_of
from calibre.report.metrics import ClientResult, Group, Metrics, Summary
from calibre.wording import how_many


class LiveView:
    """Progress bars with the time left on a terminal, plain lines elsewhere; events in."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}
        self.rounds = 0
        self.spoke = time.monotonic()
        self.finished_stages: set[str] = set()

    def __enter__(self) -> "LiveView":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def __call__(self, event: Event) -> None:
        handler = getattr(self, f"on_{event.event}", None)
        if handler is not None:
            handler(event)

    def on_start(self, event: Started) -> None:
        self.rounds = event.rounds
        going_on = f", going on after round {event.done}" if event.done else ""
        self._say(
            f"{event.method}: {how_many(event.clients, 'client')} "
            f"{'trains' if event.clients == 1 else 'train'}, {event.novel} "
            f"{'is' if event.novel == 1 else 'are'} novel; "
            f"{how_many(event.rounds, 'round')}{going_on}"
        )
        if self.rounds:
            self._bar("training rounds", event.done, self.rounds)

    def on_round(self, event: RoundDone) -> None:
        losses = [report["loss"] for report in event.clients.values() if "loss" in report]
        note = f"loss {sum(losses) / len(losses):.3f}" if losses else ""
        self._bar("training rounds", event.round, self.rounds, note)
        last = event.round == self.rounds
        if not self.console.is_terminal and (last or time.monotonic() - self.spoke > 5):
            self._say(f"round {event.round} of {self.rounds}  {note}")

    def on_experiment(self, event: NextExperiment) -> None:
        for task in self.tasks.values():
            self.bars.remove_task(task)
        self.tasks, self.finished_stages = {}, set()
        self._say(event.text + (": finished before" if event.done else ""), "bold")

    def on_failure(self, event: ClientFailed) -> None:
        self._say(f"round {event.round}: {event.called} failed: {event.cause}", "yellow")

    def on_warning(self, event: Warned) -> None:
        self._say(event.text, "yellow")

    def on_progress(self, event: Progressed) -> None:
        if event.of is None:
            return
        self._bar(event.stage, event.done, event.of)
        done = event.done == event.of and event.stage not in self.finished_stages
        if not self.console.is_terminal and (done or time.monotonic() - self.spoke > 5):
            self._say(f"{event.stage}: {event.done} of {event.of}")
        if done:
            self.finished_stages.add(event.stage)

    def _bar(self, name: str, done: int, of: int, note: str = "") -> None:
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(
                escape(printable(name)), total=of, completed=done, note=note
            )
        self.bars.update(self.tasks[name], completed=done, total=of, note=note)

    def _say(self, text: str, style: str | None = None) -> None:
        self.spoke = time.monotonic()
        # no markup: what clients and files say may hold brackets of its own
        self.console.print(printable(text), style=style, markup=False, highlight=False)


SHOWN = 60  # clients that a screen has room for
COLUMNS: Sequence[tuple[str, str, float, int]] = (
    ("mean", "mean %", 100, 2),
    ("variance", "variance", 1, 4),
    ("worst_tenth", "worst 10th", 100, 2),
)
TITLES: Mapping[Group, str] = {"train": "that trained", "novel": "never seen before"}


def result_table(metrics: Metrics) -> Table:
    """Mean and fairness of the method and of the floors, on trained and on novel clients."""
    table = Table(title=f"accuracy over clients, each with its own model (seed {metrics.seed})")
    table.add_column("model")  # a long name takes two lines, and no digit is cut off
    for i, (_, title, _, _) in enumerate(COLUMNS):
        table.add_column(title, justify="right", no_wrap=True)
        if i == 0:
            table.add_column("95 %", justify="right", no_wrap=True)
    for group, title in TITLES.items():
        own = metrics.of(group)
        if not own.clients:
            continue
        table.add_row(f"[dim]{how_many(own.clients, 'client')} {title}[/]")
        table.add_row(escape(printable(metrics.method)), *_cells(own), style="bold")
        for floor, figures in metrics.floors.items():
            table.add_row(escape(printable(title_of(floor))), *_cells(figures.of(group)))
        table.add_section()
    return table


def change_table(before: Sequence[ClientResult], after: Sequence[ClientResult]) -> Table:
    """Every client before and after an update, by name; accuracies with their test images."""
    table = Table(title="what has changed")
    table.add_column("client", no_wrap=True)
    for title in ("", "labelled", "unlabelled", "test", "accuracy %", "points"):
        table.add_column(title, justify="right", no_wrap=True)
    rows = changes(before, after)
    for change in rows[:SHOWN]:
        name, old, now = change
        table.add_row(
            escape(printable(name)),
            change.what,
            *(
                counted(getattr(old, key, None), getattr(now, key, None))
                for key in ("samples", "unlabelled", "test_samples")
            ),
            " → ".join(f"{100 * row.accuracy:.1f}" for row in (old, now) if row is not None),
            f"{100 * (now.accuracy - old.accuracy):+.1f}" if old and now else "",
        )
    if len(rows) > SHOWN:
        table.add_row(f"and {len(rows) - SHOWN:,} more")
    return table


def _cells(figures: Summary) -> list[str]:
    cells = [f"{figures.measure(key) * scale:.{digits}f}" for key, _, scale, digits in COLUMNS]
    low_high = figures.interval
    cells.insert(1, f"{100 * low_high[0]:.1f}–{100 * low_high[1]:.1f}" if low_high else "")
    return cells
