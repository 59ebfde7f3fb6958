"""Commands about data sets: list, download, show."""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calibre.cli.choosing import DataPlace, is_within, read_or_choose
from calibre.cli.common import AsJson, Changes, ExperimentFile, errors
from calibre.errors import printable

if TYPE_CHECKING:
    from calibre.data.federation import Federation

SHOWN = 60  # clients that a screen has room for

app = typer.Typer(
    help="Data sets and how they are spread over clients.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def data_list(as_json: AsJson = False) -> None:
    """Known data sets, and where they were found or how to get them."""
    from calibre.data.sources import describe

    columns = ("about", "shape", "train", "test", "unlabelled", "classes")
    rows: list[dict[str, Any]] = [
        {
            "name": row.name,
            **{column: getattr(row.known, column) for column in columns},
            "found": str(row.found) if row.found else None,
            "get": row.get,
        }
        for row in describe()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("name", "what", "images", "where")
    for row in rows:
        size = " x ".join(map(str, row["shape"]))
        counts = f"{row['train']:,} + {row['test']:,} test"
        more = f" + {row['unlabelled']:,} unlabelled" if row["unlabelled"] else ""
        table.add_row(
            row["name"],
            row["about"],
            f"{counts}{more}, {size}, {row['classes']} classes",
            row["found"] or row["get"],
        )
    Console().print(table)


@app.command("download")
def data_download(
    name: Annotated[str, typer.Argument(help="A name that 'calibre-fl data list' shows.")],
    root: Annotated[Path | None, typer.Option(help="Where to put it.")] = None,
) -> None:
    """Fetch an official archive, check it, unpack it. A broken download goes on."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from calibre.data.download import download
    from calibre.data.sources import data_root

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors) as bars:
        task = bars.add_task(name, total=None)
        place = download(
            name,
            data_root(root),
            progress=lambda done, of: bars.update(task, completed=done, total=of),
        )
    print(f"{name} is in {place}")


@app.command("show")
def data_show(
    experiment: ExperimentFile = None,
    set_: Changes = None,
    data: DataPlace = None,
    out: Annotated[
        Path | None, typer.Option(help="Picture, without suffix; default federation.")
    ] = None,
    left_out: Annotated[
        bool, typer.Option("--left-out", help="List every file that was left out, and why.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say who holds how many images, and draw it by class, as PNG and SVG."""
    from calibre.data import sources
    from calibre.data.federation import build
    from calibre.report.figures.holdings import draw

    settings = read_or_choose(experiment, set_ or (), data)
    pool = sources.load(settings.data)
    federation = build(pool, settings.federation, settings.seed)
    files = sources.left_out(settings.data)
    picture = _picture(out, settings.data.source)
    if as_json:
        if picture:
            draw(federation, picture)
        sheet = {**federation.datasheet, "hash": federation.hash}
        listed = {"files_left_out": [{"file": name, "why": why} for name, why in files]}
        held = {"held": _held(federation)}
        print(json.dumps(sheet | held | (listed if left_out else {}), indent=2))
        return
    if left_out:
        _list_left_out(files, federation.datasheet["left_out"])
        return
    pictures = draw(federation, picture) if picture else []
    print(federation.datasheet["description"])
    _show_held(_held(federation))
    for note in federation.datasheet["notes"]:
        print("-", note)
    if files:
        print(f"- files left out: {len(files):,}; --left-out lists all of them, and why")
    print("hash", federation.hash)
    if pictures:
        print("drawn as", " and ".join(map(str, pictures)))


def _picture(out: Path | None, source: str) -> Path | None:
    """Where to draw, without suffix; never among the images unless the user says so."""
    place = out or Path("federation")
    if out is None and is_within(place, source):
        errors.print(
            "not drawn: a picture in the current folder would be one of your images; say with "
            "--out where to put it",
            markup=False,
            soft_wrap=True,
        )
        return None
    return place


def _held(federation: "Federation") -> list[dict[str, Any]]:
    """Who holds what, in numbers of images."""
    classes = (federation.counts() > 0).sum(axis=1).tolist()
    return [
        {
            "number": held.id,
            "client": held.name,
            "kind": "novel" if held.novel else "trains",
            "labelled": len(held.labelled),
            "unlabelled": len(held.unlabelled),
            "test": len(held.test),
            "classes": classes[held.id],
        }
        for held in map(federation.client, range(len(federation)))
    ]


def _show_held(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title="who holds what", title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="left" if column in ("client", "kind") else "right")
    for row in rows[:SHOWN]:
        table.add_row(*(escape(printable(str(value))) for value in row.values()))
    Console().print(table)
    if len(rows) > SHOWN:
        print(f"and {len(rows) - SHOWN:,} more clients; --json lists all of them")


def _list_left_out(files: Sequence[tuple[str, str]], clients: Mapping[str, str]) -> None:
    """As a table that spreadsheets read: names may hold anything."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["what", "why"])
    left = [*files, *((f"client {name}", f"has {why}") for name, why in clients.items())]
    table.writerows([*map(_printable, row)] for row in left)


def _printable(text: str) -> str:
    """Without what would make a terminal do something."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
