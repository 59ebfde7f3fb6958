"""Settings for a user's own data: chosen, shown with their reasons, and complete from then on."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from calibre.cli.common import errors, named
from calibre.errors import UserError
from calibre.registry import DATA_SETS
from calibre.run_files import RunFiles

if TYPE_CHECKING:
    from calibre.autopilot import Choice
    from calibre.data.federation import SharedImages
    from calibre.experiment import Experiment

DataPlace = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="A folder (or .csv, .parquet, .npz) of your own images; settings are chosen for it.",
        metavar="PLACE",
        parser=named,
    ),
]


def read_or_choose(
    experiment: Path | None, changes: Sequence[str], data: str | None
) -> "Experiment":
    """An experiment as it is written, or the one that suits ``data``, without a forecast."""
    from calibre import experiment as experiments
    from calibre.tables import gather

    if data is None:
        return experiments.read(experiment, changes)
    return for_data(gather(experiment, changes), data, tell=False)[0]


def for_data(
    values: dict[str, Any], place: str, tell: bool = True
) -> tuple["Experiment", "SharedImages"]:
    """The experiment on the data at ``place``, and its images; ``values`` are the user's choices.

    The images are read here, with a progress bar; ``tell`` says what was found in them, and how
    long training should take.
    """
    from calibre import autopilot
    from calibre.data import sources
    from calibre.data.federation import SharedImages
    from calibre.report.events import Progressed
    from calibre.screen import LiveView

    (experiment, reasons), found = autopilot.for_found(values, place)
    _show(reasons, errors)
    with LiveView(errors) as view:
        pool = sources.load(
            experiment.data,
            lambda done, of: view(Progressed(stage="reading images", done=done, of=of)),
            found,
        )
    shared = SharedImages.of(pool, experiment.federation, experiment.seed)
    if tell:
        from calibre.estimate import seconds
        from calibre.wording import duration

        sheet = shared.federation.datasheet
        errors.print(sheet["description"], markup=False, highlight=False)
        for note in sheet["notes"]:
            errors.print(f"- {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
        errors.print(f"training should take about {duration(seconds(experiment, shared))}")
    return experiment, shared


def is_within(place: Path, source: str) -> bool:
    """Whether a place is the folder of the images, or lies in it."""
    data = Path(source).expanduser()
    known = source in DATA_SETS
    return not known and data.is_dir() and place.resolve().is_relative_to(data.resolve())


def check_apart(out: Path | None, source: str) -> None:
    """A run folder among the images is passed over; one that has images in it is a mistake."""
    if out is None or not is_within(out, source):
        return
    is_data = out.resolve() == Path(source).expanduser().resolve()
    if is_data or (out.is_dir() and any(out.iterdir()) and not RunFiles(out).begun):
        raise UserError(
            f"--out {out} holds what the run is to be trained on; give the run a folder of its "
            "own, or leave --out away"
        )


def _show(choices: Iterable["Choice"], console: Console) -> None:
    table = Table("setting", "chosen", "why", title="chosen for your data; --set changes any of it")
    for choice in choices:
        table.add_row(choice.key, "-" if choice.value is None else str(choice.value), choice.why)
    console.print(table)
