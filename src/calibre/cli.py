"""The command line: ``calibre-fl`` or ``python -m calibre``. Torch is loaded only when needed."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calibre import __version__
from calibre.errors import UserError

USER_MISTAKE, INTERRUPTED = 2, 130

app = typer.Typer(
    help="Fair and accurate personalized federated learning with self-supervised learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets and how they are spread over clients.", no_args_is_help=True)
app.add_typer(data_app, name="data")

errors = Console(stderr=True)
ExperimentFile = Annotated[
    Path | None, typer.Argument(help="A TOML file; without one: the demonstration on digits.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="section.key=value, e.g. --set training.rounds=10", metavar="K=V"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def main() -> None:
    """Run the command line; a user's mistake is one message and exit code 2."""
    try:
        app()
    except UserError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(USER_MISTAKE)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if show:
        print(__version__)
        raise typer.Exit


@app.command()
def run(
    experiment: ExperimentFile = None,
    set_: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<name>.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment, or go on with it where it stopped."""
    from calibre import experiment as experiments

    with _early_workers(experiments.gather(experiment, set_ or ())) as prepared:
        settings = experiments.read(experiment, set_ or ())
        _run(settings, out or Path("runs") / settings.folder_name, as_json, prepared)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was stopped.")],
    set_: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run from its last checkpoint; --set engine.* may change where it runs."""
    from calibre import experiment as experiments

    file = folder / "experiment.toml"
    if not file.exists():
        raise UserError(f"{folder} is not a run folder: it has no experiment.toml")
    with _early_workers(experiments.gather(file, set_ or ())) as prepared:
        _run(experiments.read(file, set_ or ()), folder, as_json, prepared)


@contextmanager
def _early_workers(values: dict[str, Any]) -> Iterator[list[Any]]:
    """Start workers now, while this process still loads torch itself: it saves two seconds."""
    from calibre.engine.process import Worker

    engine = values.get("engine", {})
    count = engine.get("workers") if isinstance(engine, dict) else 0  # nonsense is told later
    if count is None:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    workers = [Worker() for _ in range(min(count, 64) if isinstance(count, int) else 0)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def _run(settings: Any, folder: Path, as_json: bool, prepared: list[Any]) -> None:
    from calibre.engine import rounds
    from calibre.screen import LiveView, result_table

    try:
        with LiveView(errors) as view:
            metrics = rounds.run(settings, folder, view, prepared)
    except KeyboardInterrupt:
        errors.print(f"stopped; continue with  calibre-fl resume {folder}", soft_wrap=True)
        sys.exit(INTERRUPTED)
    if as_json:
        print(json.dumps(metrics, indent=2))
        return
    console = Console()
    console.print(result_table(metrics))
    if metrics["failures"]:
        console.print(f"[yellow]{metrics['failures']} client updates failed[/]; see events.jsonl")
    for warning in metrics["warnings"]:
        console.print(f"[yellow]warning:[/] {escape(warning)}", highlight=False, soft_wrap=True)
    console.print(f"every client:  {folder / 'clients.csv'}", highlight=False, soft_wrap=True)
    console.print(
        f"as a picture:  {folder / 'figures' / 'accuracies.png'}", highlight=False, soft_wrap=True
    )


@app.command()
def suite(
    experiment: ExperimentFile = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method, or method/objective; repeat it. Default: a few of each kind."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many, from the experiment's on.")] = 1,
    set_: Changes = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Run several methods on the same federations; finished ones are not run again."""
    from calibre import experiment as experiments
    from calibre.engine import suite as suites
    from calibre.screen import LiveView

    base = experiments.read(experiment, set_ or ())
    chosen = method or ["calibre/simclr", "pfl-ssl/simclr", "fedavg-ft", "fedrep", "local"]
    runs = suites.variants(base, chosen, range(base.seed, base.seed + seeds))
    try:
        with LiveView(errors) as view:
            results = suites.run(runs, out, view)
    except KeyboardInterrupt:
        errors.print("stopped; the same command goes on")
        sys.exit(INTERRUPTED)
    print(json.dumps(results, indent=2) if as_json else suites.markdown(results))


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods and objectives, where each comes from, and what it sends."""
    from calibre.report.catalogue import catalogue

    listed = catalogue()
    if as_json:
        print(json.dumps(listed, indent=2))
        return
    table = Table("method", "objective", "what", "sends")
    table.add_column("from", overflow="fold")
    for row in listed:
        table.add_row(
            row["method"], row["objective"] or "", row["label"],
            ", ".join(row["sends"]) or "nothing", row["paper"],
        )  # fmt: skip
    Console().print(table)


@app.command()
def doctor(
    experiment: ExperimentFile = None,
    set_: Changes = None,
    as_json: AsJson = False,
) -> None:
    """What is installed, what this machine has, and what an experiment would cost."""
    from calibre import experiment as experiments
    from calibre.engine.estimate import examine

    found = examine(experiments.read(experiment, set_ or ()))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for section, facts in found.items():
        table = Table(title=section, show_header=False, title_justify="left")
        for name, value in facts.items():
            table.add_row(name, str(value))
        Console().print(table)


@data_app.command("list")
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


@data_app.command("download")
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


@data_app.command("show")
def data_show(
    experiment: ExperimentFile = None,
    set_: Changes = None,
    out: Annotated[Path, typer.Option(help="Picture, without suffix.")] = Path("federation"),
    as_json: AsJson = False,
) -> None:
    """Draw who holds which classes, and save it as PNG and SVG."""
    from calibre import experiment as experiments
    from calibre.data.federation import build
    from calibre.data.sources import load
    from calibre.report.federation_figure import draw

    settings = experiments.read(experiment, set_ or ())
    federation = build(load(settings.data), settings.federation, settings.seed)
    pictures = draw(federation, out)
    if as_json:
        print(json.dumps({**federation.datasheet, "hash": federation.hash}, indent=2))
        return
    print(federation.datasheet["description"])
    print("hash", federation.hash)
    print("drawn as", " and ".join(str(picture) for picture in pictures))
