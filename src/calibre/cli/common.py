"""What the commands share: options, the screen for errors, exit codes."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

USER_MISTAKE, INTERRUPTED = 2, 130

errors = Console(stderr=True)
ExperimentFile = Annotated[
    Path | None, typer.Argument(help="A TOML file; without one: the demonstration on digits.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="section.key=value, e.g. --set training.rounds=10", metavar="K=V"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def named(place: str) -> str:
    """A place that somebody gave; a shell's variable that was never set is none."""
    if not place.strip():
        raise typer.BadParameter("it is empty: name the images' folder or file, or leave it out")
    return place


def named_path(place: str) -> Path:
    """The same as a path, of which an empty one would be the current folder."""
    return Path(named(place))
