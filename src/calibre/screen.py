"""What a person sees while a run goes on, and the table it ends in."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

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

from calibre.engine.events import Event
from calibre.errors import printable
from calibre.report.floors import title_of


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
        handler = getattr(self, f"on_{event['event']}", None)
        if handler is not None:
            handler(event)

    def on_start(self, event: Event) -> None:
        self.rounds = event["rounds"]
        going_on = f", going on after round {event['done']}" if event["done"] else ""
        self._say(
            f"{event['method']}: {event['clients']} clients train, {event['novel']} are novel; "
            f"{event['rounds']} rounds{going_on}"
        )
        if self.rounds:
            self._bar("training rounds", event["done"], self.rounds)

    def on_round(self, event: Event) -> None:
        losses = [report["loss"] for report in event["clients"].values() if "loss" in report]
        note = f"loss {sum(losses) / len(losses):.3f}" if losses else ""
        self._bar("training rounds", event["round"], self.rounds, note)
        last = event["round"] == self.rounds
        if not self.console.is_terminal and (last or time.monotonic() - self.spoke > 5):
            self._say(f"round {event['round']} of {self.rounds}  {note}")

    def on_experiment(self, event: Event) -> None:
        for task in self.tasks.values():
            self.bars.remove_task(task)
        self.tasks, self.finished_stages = {}, set()
        self._say(event["text"] + (": finished before" if event["done"] else ""), "bold")

    def on_failure(self, event: Event) -> None:
        self._say(
            f"round {event['round']}: client {event['client']} failed: {event['cause']}", "yellow"
        )

    def on_warning(self, event: Event) -> None:
        self._say(event["text"], "yellow")

    def on_progress(self, event: Event) -> None:
        if "of" not in event:
            return
        self._bar(event["stage"], event["done"], event["of"])
        done = event["done"] == event["of"] and event["stage"] not in self.finished_stages
        if not self.console.is_terminal and (done or time.monotonic() - self.spoke > 5):
            self._say(f"{event['stage']}: {event['done']} of {event['of']}")
        if done:
            self.finished_stages.add(event["stage"])

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


COLUMNS: Sequence[tuple[str, str, float, int]] = (
    ("mean", "mean %", 100, 2),
    ("variance", "variance", 1, 4),
    ("worst_tenth", "worst 10th", 100, 2),
)


def result_table(metrics: Mapping[str, Any]) -> Table:
    """Mean and fairness of the method and of the floors, on trained and on novel clients."""
    table = Table(title=f"accuracy over clients, each with its own model (seed {metrics['seed']})")
    table.add_column("model", no_wrap=True)
    for i, (_, title, _, _) in enumerate(COLUMNS):
        table.add_column(title, justify="right")
        if i == 0:
            table.add_column("95 %", justify="right", no_wrap=True)
    for group, title in (("train", "that trained"), ("novel", "never seen before")):
        if not metrics[group]["clients"]:
            continue
        table.add_row(f"[dim]{metrics[group]['clients']} clients {title}[/]")
        rows = {metrics["method"]: metrics[group]}
        rows |= {title_of(floor): figures[group] for floor, figures in metrics["floors"].items()}
        for i, (name, figures) in enumerate(rows.items()):
            cells = [f"{figures[key] * scale:.{digits}f}" for key, _, scale, digits in COLUMNS]
            cells.insert(1, _range(figures.get("interval")))
            table.add_row(escape(printable(name)), *cells, style="bold" if i == 0 else None)
        table.add_section()
    return table


def _range(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f"{100 * interval[0]:.1f}–{100 * interval[1]:.1f}"
