"""Commands about personal models: bundle, personalize, predict, export, serve."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calibre.cli.answers import print_csv, print_table, show_card
from calibre.cli.common import INTERRUPTED, AsJson, Changes, errors, named_path
from calibre.cli.listening import (
    Address,
    Certificate,
    Key,
    Log,
    Port,
    ServerNames,
    TokenFile,
    Unprotected,
    access,
    answer_until_stopped,
    is_this_machine,
)
from calibre.errors import UserError
from calibre.run_files import RunFiles
from calibre.wording import percent, span

if TYPE_CHECKING:
    from calibre.personal.bundle import Bundle, Prediction
    from calibre.personal.bundle_folder import Existing
    from calibre.personal.card import Card

UNREADABLE = 1  # exit code: some images could not be read

FinishedFolder = Annotated[
    Path, typer.Argument(help="The folder of a finished run.", metavar="RUN")
]
BundleFolder = Annotated[Path, typer.Argument(help="A bundle's folder.", metavar="BUNDLE")]
Rate = Annotated[
    float,
    typer.Option("--refuse", help="Share of own images that may be refused.", min=1e-3,
                 max=0.5),
]  # fmt: skip
OwnRate = Annotated[
    float | None,
    typer.Option("--refuse", help="Another share of the card's table: own images refused."),
]
OwnCode = Annotated[
    bool, typer.Option("--own-code", help="Allow an encoder that is code of somebody's own.")
]


def bundle(
    run: FinishedFolder,
    clients: Annotated[
        list[str] | None, typer.Argument(help="Numbers or names; default: all.", metavar="CLIENT")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the bundles; default RUN/bundles.")
    ] = None,
    refuse: Rate = 0.05,
    as_json: AsJson = False,
) -> None:
    """Make a bundle of each client's personal model: model, preprocessing, classes, card."""
    from calibre.finished.run import FinishedRun
    from calibre.report.events import Progressed
    from calibre.screen import LiveView

    finished = FinishedRun(run)
    chosen = finished.find(clients or [])
    place = out or RunFiles(run).bundles
    made = []
    with LiveView(errors) as view:
        for done, client in enumerate(chosen, start=1):
            folder = place / finished.folders[client]
            made.append((folder, finished.bundle(client, refuse).save(folder, "keep another").card))
            view(Progressed(stage="bundles", done=done, of=len(chosen)))
    if as_json:
        print(json.dumps([_facts(folder, card) for folder, card in made], indent=2))
        return
    table = Table("client", "accuracy", "95 % interval", "calibration error", "limit", "folder")
    for folder, card in made:
        found, calibration = card.accuracy, card.calibration
        table.add_row(
            escape(card.client),
            percent(found.value if found else None),
            span(found.low, found.high, 0) if found else "–",
            f"{percent(calibration.error_before)} → {percent(calibration.error_after)}",
            f"{card.outside.limit:.2f}" if card.outside.limit is not None else "–",
            folder.name,
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(f"bundles in  {place}  (what is in each: its card.md)", markup=False)


def personalize(
    run: FinishedFolder,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Labelled images of a new client: one sub-folder per class.",
            metavar="PLACE",
            parser=named_path,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The bundle's folder; with --all, another run folder.")
    ] = None,
    everybody: Annotated[
        bool, typer.Option("--all", help="Make all clients' models anew, with --set personal.*")
    ] = False,
    set_: Changes = None,
    name: Annotated[
        str | None, typer.Option(help="What to call the client; default: the folder's name.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a bundle in its place; that one is kept.")
    ] = False,
    refuse: Rate = 0.05,
    as_json: AsJson = False,
) -> None:
    """A personal model for a client never seen, in seconds; or --all clients' made anew.

    Neither trains the encoder again.
    """
    if everybody:
        if data is not None or name:
            raise UserError("--all makes the models of the run's own clients: leave --data out")
        _personalize_all(run, set_ or (), out, as_json)
        return
    if data is None or out is None:
        raise UserError("give --data IMAGES and --out BUNDLE, or --all for the run's own clients")
    from calibre.finished.newcomer import personalize_newcomer
    from calibre.personal.bundle_folder import check_place

    existing: Existing = "keep" if replace else "refuse"
    check_place(out, existing)
    card = personalize_newcomer(run, data, name, refuse).save(out, existing).card
    if as_json:
        print(json.dumps(_facts(out, card), indent=2))
        return
    show_card(card, out)


def _personalize_all(run: Path, changes: Sequence[str], out: Path | None, as_json: bool) -> None:
    from calibre.cli.running import run_and_show
    from calibre.finished.again import anew

    experiment, place = anew(run, changes, out)
    run_and_show(experiment, place, None, as_json, [])


def predict(
    bundle: BundleFolder,
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
    refuse: OwnRate = None,
    own_code: OwnCode = False,
) -> None:
    """The class of each image, or that it is none of the client's; with probabilities."""
    if as_json and as_csv:
        raise UserError("give --json or --csv, not both")
    model = _load(bundle, own_code, refuse)
    found = _predictions(model, _files(images))
    try:
        if as_csv:
            unread = print_csv(model, found)
        else:
            listed = list(found)
            unread = sum(prediction.error is not None for prediction in listed)
            if as_json:
                rows = [{**asdict(row), "answer": row.answer} for row in listed]
                print(json.dumps(rows, indent=2, ensure_ascii=False))
            else:
                print_table(model, listed)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
        sys.exit(0)
    if unread:
        errors.print(f"[yellow]{unread} of the images could not be read[/]")
        sys.exit(UNREADABLE)


def export(
    bundle: BundleFolder,
    onnx: Annotated[bool, typer.Option("--onnx", help="As one ONNX file.")] = False,
    out: Annotated[Path | None, typer.Option(help="The file; default BUNDLE.onnx.")] = None,
    check: Annotated[
        list[Path] | None,
        typer.Option(help="Real images, or folders of them, to compare the answers on too."),
    ] = None,
    own_code: OwnCode = False,
    as_json: AsJson = False,
) -> None:
    """Write the model for other programs, checked against the bundle's own answers."""
    if not onnx:
        raise UserError("say what to write: --onnx is what there is")
    from calibre.personal.export import export_onnx

    model = _load(bundle, own_code)
    real = model.pixels(list(map(str, _files(check)))) if check else None
    path = out or bundle.resolve().with_suffix(".onnx")
    with errors.status("writing and checking the graph"):
        done = export_onnx(model, path, real)
    if as_json:
        print(json.dumps(asdict(done), indent=2))
        return
    height, width, channels = model.card.preprocessing.shape
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{done.path}: {done.megabytes:.2f} MB\n"
        f"in: images, uint8 [N, {height}, {width}, {channels}]; "
        f"out: probabilities [N, {len(model.classes)}], distances [N]\n"
        f"answers as the bundle does on {done.images} images: probabilities differ by at most "
        f"{done.difference:.1e}, distances by {done.distance_difference:.1e}\n"
        f"one image: {done.onnx_ms:.2f} ms in onnxruntime, {done.torch_ms:.2f} ms in torch",
        markup=False,
    )


def serve(
    bundle: BundleFolder,
    host: Address = "127.0.0.1",
    port: Port = 8000,
    name: ServerNames = None,
    token: TokenFile = None,
    certificate: Certificate = None,
    key: Key = None,
    unprotected: Unprotected = False,
    log: Log = None,
    largest: Annotated[float, typer.Option(help="Largest upload in MB.", min=0.01, max=500)] = 20,
    refuse: OwnRate = None,
    own_code: OwnCode = False,
) -> None:
    """Answer over HTTP: a page to drop images on, POST /predict for programs."""
    from calibre.pages.log import RequestLog
    from calibre.pages.predict import Predictions
    from calibre.pages.server import Limits, Server

    model = _load(bundle, own_code, refuse)
    known = access(name, token, certificate, key, unprotected)
    body = int(largest * 2**20)
    limits = Limits(memory=max(Limits.memory, 2 * body))
    with Predictions(model, body, pictures=is_this_machine(host)) as predictions:
        requests = RequestLog(log) if log else None
        routes, metrics = predictions.routes, predictions.metrics
        server = Server(routes, host, port, known, limits, requests, metrics)
        answer_until_stopped(server, f"{model.card.client} answers", token)


def _load(folder: Path, own_code: bool, refuse: float | None = None) -> "Bundle":
    from calibre.personal.bundle import load

    model = load(folder, own_code)
    return model if refuse is None else model.refuse(refuse)


def _files(places: list[Path]) -> list[Path]:
    """The files named, and the images in the folders named."""
    return [file for place in places for file in (_images(place) if place.is_dir() else [place])]


def _images(place: Path) -> list[Path]:
    """The images in a folder; what else is in it is told."""
    from calibre.data.formats.folder import survey

    listing = survey(place)
    kinds = listing.kinds_left_out
    if not listing.images:
        only = f", only files of kinds that are not read ({kinds})" if kinds else ""
        raise UserError(f"{place} holds no images{only}")
    if kinds:
        said = f"{place}: files of kinds that are not read, left out: {kinds}"
        errors.print(said, style="yellow", markup=False, highlight=False, soft_wrap=True)
    return [Path(path) for _, path in listing.images]


def _predictions(model: "Bundle", images: list[Path]) -> Iterator["Prediction"]:
    from calibre.report.events import Progressed
    from calibre.screen import LiveView

    with LiveView(errors) as view:
        for done, found in enumerate(model.stream(images), start=1):
            yield found
            if done % 64 == 0 or done == len(images):
                view(Progressed(stage="images", done=done, of=len(images)))


def _facts(folder: Path, card: "Card") -> dict[str, Any]:
    kept = {"client", "accuracy", "calibration", "outside", "warnings", "hash"}
    return {"bundle": str(folder), **card.model_dump(mode="json", include=kept)}
