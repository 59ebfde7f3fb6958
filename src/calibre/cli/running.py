"""Commands that train, or take training back: run, resume, update, rewind, suite."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from calibre.cli.choosing import DataPlace, check_apart, for_data, read_or_choose
from calibre.cli.common import INTERRUPTED, AsJson, Changes, ExperimentFile, errors, named
from calibre.cli.comparing import show
from calibre.cores import usable_cores
from calibre.registry import DEFAULT_SUITE
from calibre.run_files import RunFiles
from calibre.wording import quoted

if TYPE_CHECKING:
    from calibre.report.metrics import Metrics

TensorBoard = Annotated[
    Path | None, typer.Option(help="Also write live curves there, for TensorBoard.", metavar="DIR")
]
Engine = Annotated[
    str | None, typer.Option(help="embedded (default), or flower-sim: Flower's simulation on Ray.")
]


def run(
    experiment: ExperimentFile = None,
    set_: Changes = None,
    data: DataPlace = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<name>.")] = None,
    engine: Engine = None,
    tensorboard: TensorBoard = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment, or go on with it where it stopped."""
    from calibre.tables import gather

    set_ = [*(set_ or ()), *([f"engine.runtime={engine}"] if engine else [])]
    values = gather(experiment, set_)
    with _early_workers(values) as prepared:
        from calibre import experiment as experiments

        if data is not None:
            check_apart(out, data)
            settings, shared = for_data(values, data)
        else:
            settings, shared = experiments.read(experiment, set_), None
            check_apart(out, settings.data.source)
        folder = out or Path("runs") / settings.folder_name
        run_and_show(settings, folder, tensorboard, as_json, prepared, shared)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was stopped.")],
    set_: Changes = None,
    data: Annotated[
        str | None,
        typer.Option(help="Where its images lie now, if moved.", metavar="PLACE", parser=named),
    ] = None,
    tensorboard: TensorBoard = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run from its last checkpoint.

    --set engine.* may change where it runs; --set training.rounds=N extends it.
    """
    from calibre.tables import gather

    files = RunFiles(folder)
    files.check_begun()
    if data is not None:
        from calibre.finished.update import move

        move(folder, data)
    with _early_workers(gather(files.experiment, set_ or ())) as prepared:
        from calibre import experiment as experiments
        from calibre.finished.run import check_there

        held = experiments.read(files.experiment)
        check_there(held, folder)
        asked = experiments.read(files.experiment, set_ or ())
        if asked.training.rounds != held.training.rounds:
            same = asked.training.model_copy(update={"rounds": held.training.rounds})
            base = asked.model_copy(update={"training": same})
            asked = base.extended(asked.training.rounds)
        if files.source.exists():  # it may be for the ledger
            from calibre.evidence.noted import note
            from calibre.evidence.origin import Source

            note(folder, Source.here())
        run_and_show(asked, folder, tensorboard, as_json, prepared)


def update(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Other data; default: the run's own, as it is now.", metavar="PLACE", parser=named
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=0, max=100_000, help="Train for so many more; 0: new heads only.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the new run; default RUN-v2, -v3, ...")
    ] = None,
    tensorboard: TensorBoard = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a finished run: more rounds, new images or labels, clients that came or left.

    On changed data this is a new run, which starts with all that the old one has learned.
    """
    from calibre.finished import update as updating

    done = updating.update(folder, data, rounds, out)
    for note in done.notes:
        errors.print(f"- {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    run_and_show(done.experiment, done.place, tensorboard, as_json, [])


@contextmanager
def _early_workers(values: dict[str, Any]) -> Iterator[list[Any]]:
    """Start workers now, while this process still loads torch itself: it saves two seconds."""
    from calibre.engine.child import Worker

    engine = values.get("engine", {})
    count = engine.get("workers") if isinstance(engine, dict) else 0  # nonsense is told later
    if isinstance(engine, dict) and engine.get("runtime", "embedded") != "embedded":
        count = 0  # Flower starts its own
    if count is None:
        count = usable_cores()
    workers = [Worker() for _ in range(min(count, 64) if isinstance(count, int) else 0)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def run_and_show(
    settings: Any,
    folder: Path,
    tensorboard: Path | None,
    as_json: bool,
    prepared: list[Any],
    shared: Any = None,  # images that were read already
) -> None:
    from calibre import engines
    from calibre.engine.tensorboard import to_tensorboard
    from calibre.report.events import silent, to_all
    from calibre.screen import LiveView

    try:
        board = to_tensorboard(tensorboard) if tensorboard else nullcontext(silent)
        with board as sink, LiveView(errors) as view:
            metrics = engines.run(settings, folder, to_all(view, sink), prepared, shared)
    except KeyboardInterrupt:
        errors.print(
            f"stopped; continue with  calibre-fl resume {quoted(folder)}",
            markup=False,
            soft_wrap=True,
        )
        sys.exit(INTERRUPTED)
    if as_json:
        print(metrics.model_dump_json(indent=2))
    else:
        _show(metrics, RunFiles(folder))


def _show(metrics: "Metrics", files: RunFiles) -> None:
    """What a run has come to, and where it lies."""
    from calibre.report import runs
    from calibre.report.metrics import read_clients_csv
    from calibre.screen import change_table, result_table

    console = Console(highlight=False, soft_wrap=True)
    Console().print(result_table(metrics))
    if files.before.is_file():
        now = runs.read(files.path).clients
        Console().print(change_table(read_clients_csv(files.before), now))
    if metrics.privacy:
        console.print(metrics.privacy.words)
    if metrics.failures:
        console.print(
            f"[yellow]{metrics.failures} client updates failed[/]; see {files.events.name}"
        )
    for warning in metrics.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}")
    console.print(f"every client:  {files.table}", markup=False)
    console.print(f"as a picture:  {files.figures / 'accuracies.png'}", markup=False)


def rewind(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    round_: Annotated[
        int | None, typer.Option("--round", min=0, help="The last round that is to count.")
    ] = None,
) -> None:
    """Take a run back to an earlier round; without --round: say which ones it can go back to."""
    from calibre.engine import rewind as taking_back
    from calibre.run_folder import RunFolder

    place = RunFolder(folder)
    if round_ is None:
        rounds = ", ".join(map(str, taking_back.possible_rounds(place)))
        print(f"{folder} can be taken back to rounds {rounds} (0: the start)")
        return
    taking_back.rewind(place, round_)
    print(f"all after round {round_} is forgotten; go on with  calibre-fl resume {quoted(folder)}")


def suite(
    experiment: ExperimentFile = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method, or method/objective; repeat it. Default: a few of each kind."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many, from the experiment's on.")] = 1,
    set_: Changes = None,
    data: DataPlace = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Run several methods on the same federations; finished ones are not run again."""
    from calibre import suite as suites
    from calibre.report.compare import compare
    from calibre.report.runs import read_all
    from calibre.screen import LiveView

    base = read_or_choose(experiment, set_ or (), data)
    chosen = method or DEFAULT_SUITE
    runs = suites.variants(base, chosen, range(base.seed, base.seed + seeds))
    try:
        with LiveView(errors) as view:
            results = suites.run(runs, out, view)
    except KeyboardInterrupt:
        errors.print("stopped; the same command goes on")
        sys.exit(INTERRUPTED)
    if as_json:
        print(json.dumps([each.model_dump(mode="json") for each in results], indent=2))
        return
    folders = dict.fromkeys(out / run.folder_name for run in runs)  # a method may be named twice
    show(compare(read_all(list(folders))))
