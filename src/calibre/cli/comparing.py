"""Commands that make evidence of finished runs: compare, figure, report."""

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from calibre.cli.common import AsJson, errors
from calibre.errors import UserError
from calibre.registry import FIGURES, TSNE
from calibre.run_files import RunFiles

if TYPE_CHECKING:
    from calibre.report.comparison_tables import Comparison
    from calibre.report.runs import Run

FIGURE_NAMES = (*FIGURES, TSNE)
RunFolders = Annotated[
    list[Path], typer.Argument(help="Folders of finished runs.", metavar="RUN...")
]


class Format(StrEnum):
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    json = "json"


def compare(
    runs: RunFolders,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="Also write a file: .md, .csv, .tex or .json; repeat it."),
    ] = None,
    format: Annotated[Format | None, typer.Option(help="Print this, not a table.")] = None,
    all_pairs: Annotated[
        bool, typer.Option("--all-pairs", help="Test every two methods, not only the best.")
    ] = False,
    floors: Annotated[
        bool, typer.Option(help="Show what clients reach without a federation.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """One table of several runs on the same federations, with paired tests between methods."""
    from calibre.report import compare as comparisons
    from calibre.report import comparison_tables as tables
    from calibre.report.runs import read_all

    files = out or []
    for file in files:
        if file.suffix not in tables.SUFFIXES:
            raise UserError(f"--out {file}: end it with one of {', '.join(tables.SUFFIXES)}")
    comparison = comparisons.compare(read_all(runs), floors, all_pairs)
    for file in files:
        write(comparison, file)
    if as_json or format is not None:
        print(tables.FORMATS["json" if as_json else str(format)](comparison), end="")
    else:
        show(comparison)


def show(comparison: "Comparison") -> None:
    """On a terminal as tables, elsewhere as Markdown."""
    from calibre.report import comparison_tables as tables

    console = Console()
    if not console.is_terminal:
        print(tables.markdown(comparison), end="")
        return
    console.print(*tables.screen(comparison), sep="\n")
    for note in comparison.notes:
        console.print(f"- {note}", markup=False, highlight=False)


def write(comparison: "Comparison", file: Path) -> None:
    """In the format that the suffix names; a table for spreadsheets has its tests beside it."""
    from calibre.files import write_atomic
    from calibre.report import comparison_tables as tables

    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, tables.FORMATS[tables.SUFFIXES[file.suffix]](comparison))
    if file.suffix == ".csv":
        write_atomic(file.with_stem(file.stem + "-tests"), tables.tests_csv(comparison))


class ColourBy(StrEnum):
    class_ = "class"
    client = "client"


def figure(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(FIGURE_NAMES)}.")],
    runs: RunFolders,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the pictures; default figures, inside a single run."),
    ] = None,
    floors: Annotated[
        bool, typer.Option(help="Draw what clients reach without a federation too.")
    ] = True,
    clients: Annotated[
        str | None, typer.Option(help="Of tsne: which, e.g. north,3,5-8; default the first six.")
    ] = None,
    by: Annotated[
        ColourBy | None, typer.Option(help="Of tsne: what colours mean; default both.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a picture of finished runs, as PNG and SVG."""
    from calibre.report import figures
    from calibre.report.figures.style import save
    from calibre.report.runs import read_all
    from calibre.settings import nearest

    if name not in FIGURE_NAMES:
        raise UserError(f"there is no figure called '{name}': {nearest(name, FIGURE_NAMES)}")
    if name != TSNE and (clients or by):
        raise UserError(f"--clients and --by are for the figure {TSNE}, not for {name}")
    finished = read_all(runs)
    facts: dict[str, Any] = {}
    if name == TSNE:
        drawn, facts["measures"] = _tsne(finished, clients, by)
    else:
        drawn = figures.compose(name, finished, floors)
    folder = out or RunFiles(runs[0] if len(runs) == 1 else Path()).figures
    facts["files"] = [str(path) for path in save(drawn, folder / name)]
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for row in facts.get("measures", []):
        print("{method}, {images} images by {by}: {words}".format(**row))
    print("drawn as", " and ".join(facts["files"]))


def _tsne(
    runs: "Sequence[Run]", clients: str | None, by: ColourBy | None
) -> tuple[Any, list[dict[str, Any]]]:
    """The picture of representations, and what was measured of them."""
    from dataclasses import asdict

    from calibre.finished.encodings import views_of
    from calibre.report.figures.tsne import in_words, tsne
    from calibre.report.naming import find_listed

    chosen = find_listed(runs[0].clients, clients) if clients else None
    kinds: list[Literal["class", "client"]] = [by.value] if by else ["class", "client"]
    with errors.status("encoding and drawing"):
        drawn = views_of(runs, chosen, kinds)
        picture = tsne(drawn)
    return picture, [
        {
            "method": view.method.label,
            "by": view.by,
            "images": len(view.groups),
            **asdict(view.clusters),
            "words": ", ".join(in_words(view.clusters)),
        }
        for view in drawn
    ]


def report(
    runs: RunFolders,
    out: Annotated[
        Path | None,
        typer.Option(help="The page; default report.html, in the run folder if there is one run."),
    ] = None,
) -> None:
    """Write one self-contained HTML page about runs: whom the models serve, and whom badly."""
    from calibre.report.page import write_page
    from calibre.report.runs import read_all

    page = out or RunFiles(runs[0] if len(runs) == 1 else Path()).page
    write_page(read_all(runs), page)
    print(page)
