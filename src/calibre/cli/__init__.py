"""The command line: ``calibre-fl`` or ``python -m calibre``. Torch is loaded only when needed."""

import sys
from typing import Annotated

import typer
import typer.core
from rich.markup import escape

from calibre import __version__
from calibre.cli import (
    about,
    bundles,
    comparing,
    datasets,
    labels,
    machines,
    reproduction,
    running,
    watching,
)
from calibre.cli.common import USER_MISTAKE, errors
from calibre.errors import UserError, printable
from calibre.files import in_words

typer.core.HAS_RICH = False  # or it escapes brackets in plain help too: \[default: 8000]
app = typer.Typer(
    help="Fair and accurate personalized federated learning with self-supervised learning.",
    no_args_is_help=True,
    add_completion=True,  # calibre-fl --install-completion
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 110},
    rich_markup_mode=None,  # plain help: boxes and colours would take as long to load as the rest
)
for command in (
    running.run, running.resume, running.update, running.rewind, running.suite,
    comparing.compare, comparing.figure,
    reproduction.reproduce, comparing.report, watching.watch,
    bundles.bundle, bundles.personalize, bundles.predict, bundles.export, bundles.serve,
    labels.suggest, labels.label,
    about.methods, about.doctor,
):  # fmt: skip
    app.command()(command)
app.add_typer(datasets.app, name="data")
app.add_typer(reproduction.evidence, name="evidence")
app.add_typer(machines.deploy, name="deploy")
app.add_typer(machines.site, name="site")


def main() -> None:
    """Run the command line; a user's mistake is one message and exit code 2."""
    try:
        with in_words("put it right, then give the same command again"):
            app()
    except UserError as error:
        said = escape(printable(str(error)))
        errors.print(f"[bold red]error:[/] {said}", highlight=False, soft_wrap=True)
        sys.exit(USER_MISTAKE)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if show:
        print(__version__)
        raise typer.Exit
