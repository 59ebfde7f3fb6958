"""The command that writes the report page."""

from pathlib import Path
from typing import Annotated

import typer

from calibre.run_files import RunFiles


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

    page = out or RunFiles(runs[0] if len(runs) == 1 else Path()).page
    write_page(read_all(runs), page)
    print(page)
