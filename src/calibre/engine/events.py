"""What happens in a run, as a stream of plain records: to a file, a screen, or anything else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibre.files import read_json_lines, write_atomic

Event = dict[str, Any]
Emit = Callable[[Event], None]

TRANSIENT = ("progress",)  # only for the screen
FINAL = ("personal", "end")  # written anew whenever a run ends


def to_file(path: Path, up_to_round: int) -> Emit:
    """Append events to a JSON-lines file.

    When a run goes on from ``up_to_round``, what an earlier attempt wrote of later rounds (and a
    line cut short by a kill) is dropped first: the file tells the run that the results come from.
    """
    kept = [
        json.dumps(event)
        for event in read(path)
        if event["event"] not in FINAL and event.get("round", 0) <= up_to_round
    ]
    write_atomic(path, "".join(line + "\n" for line in kept))

    def emit(event: Event) -> None:
        if event["event"] not in TRANSIENT:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(event) + "\n")

    return emit


def read(path: Path) -> list[Event]:
    """All whole events of a file. It is for people: what else is in it is passed over."""
    return [event for event in read_json_lines(path) if _whole(event)] if path.exists() else []


def _whole(event: Any) -> bool:
    """Whether it has what a resume asks of events."""
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return False
    if not isinstance(event.get("round", 0), int):
        return False
    reports = event.get("clients")
    return event["event"] != "round" or (
        isinstance(event.get("seconds"), int | float)
        and isinstance(reports, dict)
        and all(isinstance(report, dict) for report in reports.values())
    )


def to_all(*sinks: Emit) -> Emit:
    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return emit
