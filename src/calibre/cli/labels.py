"""Commands about labels: which images to label next, and a page to label them on."""

import csv
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from calibre.cli.common import AsJson, errors, named_path
from calibre.cli.listening import (
    Address,
    Certificate,
    Key,
    Port,
    ServerNames,
    TokenFile,
    Unprotected,
    access,
    answer_until_stopped,
)
from calibre.errors import UserError
from calibre.run_files import CARD, RunFiles
from calibre.wording import how_many

if TYPE_CHECKING:
    from calibre.finished.collection import Collection
    from calibre.finished.suggesting import Suggestions

ClientName = Annotated[
    str | None, typer.Option(help="A client of the run, by name or number.", metavar="NAME")
]
Folder = Annotated[
    Path | None,
    typer.Option(
        help="A folder of images that the run never saw.", metavar="FOLDER", parser=named_path
    ),
]


def suggest(
    run: Annotated[Path, typer.Argument(help="A finished run, or a bundle.", metavar="RUN|BUNDLE")],
    client: ClientName = None,
    data: Folder = None,
    count: Annotated[int, typer.Option(help="How many images.", min=1, max=10_000)] = 20,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
) -> None:
    """The images to label next: the most typical of those that have no label yet."""
    if as_json and as_csv:
        raise UserError("give --json or --csv, not both")
    found = _suggestions(run, client, data, count)
    for note in found.notes:
        _say(note)
    if as_json:
        print(json.dumps([asdict(row) for row in found.images], indent=2, ensure_ascii=False))
        return
    if as_csv:
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(["image", "cluster", "size", "typicality", "reason"])
        table.writerows(asdict(row).values() for row in found.images)
        return
    console = Console(highlight=False, soft_wrap=True)
    for number, row in enumerate(found.images, start=1):
        console.print(f"{number:4}  {row.image}", markup=False)
        console.print(f"      {row.reason}; typicality {row.typicality:.2f}", markup=False)
    if not found.files:
        _say(
            "these images are rows of arrays and have no files: the numbers are their places in "
            "the data set"
        )
    if len(found.images) < min(count, found.unlabelled):
        _say(f"fewer than {count:,}: the others look like these or like some that have a label")
    unsure = f", and of {found.unsure:,} somebody was not sure" if found.unsure else ""
    have, lack = ("has" if n == 1 else "have" for n in (found.labelled, found.unlabelled))
    labelled = how_many(found.labelled, "image")
    _say(f"{labelled} {have} a label, {found.unlabelled:,} {lack} none{unsure}")


def label(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN")],
    client: ClientName = None,
    data: Folder = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to put the model; default RUN/bundles/CLIENT.")
    ] = None,
    host: Address = "127.0.0.1",
    port: Port = 8000,
    name: ServerNames = None,
    token: TokenFile = None,
    certificate: Certificate = None,
    key: Key = None,
    unprotected: Unprotected = False,
) -> None:
    """A page to label images on: those that count first, with what the labels are good for."""
    from calibre.finished.collection import of_client, of_folder
    from calibre.finished.labelled_model import make_model
    from calibre.finished.labelling import Labelling
    from calibre.finished.learner import learner_of
    from calibre.finished.newcomer import check_encoder
    from calibre.finished.run import FinishedRun
    from calibre.pages.label import Labels
    from calibre.pages.server import Server
    from calibre.report.naming import folder_names

    _check_one(client, data)
    known = access(name, token, certificate, key, unprotected)
    finished = FinishedRun(run)
    check_encoder(finished)
    if data is not None:
        held: Collection | None = of_folder(data)
        called = folder_names([data.resolve().name])[0]
    else:
        (number,) = finished.find([client or ""])
        held, called = of_client(finished, number), finished.folders[number]
    if held is None:
        raise UserError(
            f"the images of '{finished.experiment.data.source}' do not lie in a folder for each "
            "client, so there is no place for their labels; give a folder of images with --data"
        )
    with errors.status(f"looking at {len(held.images):,} images"):
        found = held.decoded(finished.preprocessing.shape)
        learner = learner_of(finished, found.pixels)
        labelling = Labelling(held.client, found.images, learner, held.classes)
    for note in (*(f"left out: {text}" for text in found.unread), *held.notes):
        _say(note)
    place = out or RunFiles(run).bundles / called
    routes = Labels(labelling, partial(make_model, run, held, place)).routes
    server = Server(routes, host, port, known)
    answer_until_stopped(server, f"label the images of {held.client}", token)


def _suggestions(run: Path, client: str | None, data: Path | None, count: int) -> "Suggestions":
    from calibre.finished.collection import of_client, of_folder
    from calibre.finished.run import FinishedRun
    from calibre.finished.suggesting import check_some_left, suggest_in, suggest_of_run
    from calibre.personal.bundle import load

    if (run / CARD).is_file():
        if data is None or client is not None:
            raise UserError(
                f"{run} is a bundle: it has an encoder, but no images; give --data FOLDER"
            )
        found = suggest_in(of_folder(data), load(run), count)
    else:
        _check_one(client, data)
        finished = FinishedRun(run)
        if data is not None:
            found = suggest_in(of_folder(data), finished, count)
        else:
            (number,) = finished.find([client or ""])
            held = of_client(finished, number)
            found = (
                suggest_of_run(finished, number, count)
                if held is None
                else suggest_in(held, finished, count)
            )
    check_some_left(found)
    return found


def _check_one(client: str | None, data: Path | None) -> None:
    if (client is None) == (data is None):
        raise UserError("say whose images: --client NAME of the run, or --data FOLDER")


def _say(text: str) -> None:
    """Beside what other programs read."""
    errors.print(text, markup=False, highlight=False, soft_wrap=True)
