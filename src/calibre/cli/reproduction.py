"""Commands that reproduce figures and tables, and make pages of the ledger: reproduce, evidence."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from calibre.cli.common import INTERRUPTED, errors

LEDGER = Path("evidence")
evidence = typer.Typer(
    help="The ledger of runs, and the pages that are made from it.", no_args_is_help=True
)


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A figure or table; without one: list them.")
    ] = None,
    scale: Annotated[str, typer.Option(help="cpu: two cores; paper: as published.")] = "cpu",
    seeds: Annotated[int, typer.Option(min=1, help="How many, from 0 on.")] = 1,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only these, as name or name/objective; repeat it. Default: all."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs and the results.")] = Path("runs"),
    ledger: Annotated[
        Path | None,
        typer.Option(help="Keep what runs come to in this folder; what it has is not run again."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would run.")] = False,
) -> None:
    """Reproduce a figure or table of the paper; what has been run is not run again."""
    from calibre.recipes import all_recipes

    if name is None:
        table = Table("name", "what")
        for recipe in all_recipes.recipes().values():
            table.add_row(recipe.name, recipe.title)
        Console().print(table)
        return
    from calibre.recipes import reproduce as reproduction
    from calibre.screen import LiveView

    recipe, wanted = all_recipes.find(name), all_recipes.scale(scale)
    experiments = reproduction.only(method or [], recipe.experiments(wanted, range(seeds)))
    kept = None
    if ledger is not None:
        kept = reproduction.open_ledger(recipe, ledger, out)
        if not dry_run:
            kept.make()
    said = reproduction.announcement(recipe, experiments, out, kept)
    errors.print(said, highlight=False, soft_wrap=True)
    if dry_run:
        return
    try:
        with LiveView(errors) as view:
            text = reproduction.reproduce(recipe, wanted, experiments, out, view, kept)
    except KeyboardInterrupt:
        errors.print("stopped; the same command goes on")
        sys.exit(INTERRUPTED)
    print(text)


@evidence.command()
def build(
    ledger: Annotated[Path, typer.Option(help="Folder of the ledger.")] = LEDGER,
    pages: Annotated[Path, typer.Option(help="Folder that README.md and docs lie in.")] = Path(),
) -> None:
    """Make every table, figure and verdict of README.md and docs/results.md anew."""
    from calibre.errors import UserError
    from calibre.evidence.kept import Evidence
    from calibre.recipes import publish

    held = Evidence(ledger)
    if not held.entries:
        raise UserError(f"{ledger} holds no entry of a ledger: give the right folder by --ledger")
    made = publish.build(pages, held)
    for file in made.write():
        print(f"{'written' if file.exists() else 'removed'}: {file}")
    for name in made.unused:
        errors.print(f"no page rests on {ledger / name}", highlight=False, soft_wrap=True)
