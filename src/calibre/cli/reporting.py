"""The command that writes the report page."""

from pathlib import Path
from typing import Annotated

import typer

REPORT = "report.html"


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.", metavar="RUN...")],
    out: Annotated[
        Path | None,
        typer.Option(help="The page; default report.html, in the run folder if there is one run."),
    ] = None,
) -> None:
    """Write one self-contained HTML page about runs: whom the models serve, and whom badly."""
    from calibre.report.page import write_page
    from calibre.report.runs import read_all

    page = out or (runs[0] / REPORT if len(runs) == 1 else Path(REPORT))
    write_page(read_all(runs), page)
    print(page)
