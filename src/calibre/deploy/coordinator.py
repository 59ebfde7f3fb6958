"""The coordinator's side: the ServerApp that runs an experiment's rounds over a Flower grid.

The round loop is the embedded engine's; only who does the work differs.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from calibre import experiment as experiments
from calibre.data.federation import Federation
from calibre.data.sources import load as load_pool
from calibre.deploy import admission
from calibre.deploy import roster as rosters
from calibre.deploy.admission import Admit
from calibre.deploy.grid import GridCrew
from calibre.deploy.nodes import Nodes
from calibre.deploy.roster import Roster
from calibre.engine.beginning import keep, note_purposes, opened, shared_in
from calibre.engine.host import Host
from calibre.engine.messages import METHOD
from calibre.engine.rounds import OngoingRun
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import write_atomic
from calibre.personal.ways import way_of
from calibre.report.events import Emit, Event, Warned, append, to_all
from calibre.report.metrics import Metrics
from calibre.run_folder import RunFolder

app = ServerApp()
CPU = torch.device("cpu")  # the coordinator adds up; it trains nothing
LATE_SECONDS = 60.0  # for a site that has just joined to say who it is, after training


def coordinate(
    grid: Grid,
    experiment: Experiment,
    folder: Path,
    emit: Emit,
    patience: float,
    admit: Admit = lambda node, hello: None,
) -> Metrics:
    """Carry out an experiment, or what is left of it, on the nodes of a grid."""
    started = time.monotonic()
    nodes = Nodes(grid, lambda text: emit(Warned(text=text)), admit)
    wanted = experiment.engine.sites or 2
    _wait(nodes, wanted, patience, emit)
    if nodes.shares():
        return _shared_out(nodes, experiment, folder, emit, started)
    return _among_sites(nodes, experiment, folder, emit, started)


def _shared_out(
    nodes: Nodes, experiment: Experiment, folder: Path, emit: Emit, started: float
) -> Metrics:
    """An experiment's own federation; each node does the work of a share of its clients."""
    pool, federation = shared_in(folder, experiment, load_pool(experiment.data))
    of = {count for _, count in nodes.shares()}
    if len(of) != 1:
        raise UserError(f"nodes disagree on how many share the experiment: {sorted(of)}")
    count = of.pop()
    size = way_of(experiment.method, experiment.personal).group(len(federation))

    def holder(client: int) -> int | None:
        # whole groups stay together: who is in a group decides how its heads are rounded
        return nodes.shares().get((client // size % count, count))

    host = Host(experiment, pool, federation, folder, CPU)
    crew = GridCrew(nodes, holder, experiment, experiment.method, folder, None)

    def run(store: RunFolder) -> Metrics:
        keep(federation, experiment, store)
        note_purposes(pool, federation, experiment, store)
        return OngoingRun(experiment, store, federation, host, crew, emit, started).finish()

    return _opened(experiment, folder, host, run)


def _among_sites(
    nodes: Nodes, experiment: Experiment, folder: Path, emit: Emit, started: float
) -> Metrics:
    """Sites with their own images: the coordinator knows their names and counts."""
    here = [report for _, report in nodes.sites().values()]
    roster = rosters.load(folder) or rosters.begin(here, experiment)
    facts, federation = roster.facts, rosters.federation_of(roster)

    def holder(client: int) -> int | None:
        node, report = nodes.sites().get(roster.members[client].name, (None, None))
        # a site whose data have changed is not the client that began
        return node if report == roster.members[client] else None

    def latest(_: Federation) -> Federation:
        nonlocal roster
        nodes.hear(LATE_SECONDS)
        roster = _with_newcomers(roster, nodes, emit)
        return remember()

    def remember() -> Federation:
        roster.save(folder)
        federation = rosters.federation_of(roster)
        federation.save(folder)
        return federation

    pool = rosters.empty_pool(facts)
    host = Host(experiment, pool, federation, folder, CPU, facts.normalization)
    crew = GridCrew(nodes, holder, experiment, experiment.method, folder, facts)

    def run(store: RunFolder) -> Metrics:
        remember()
        store.write_experiment(experiment)
        return OngoingRun(experiment, store, federation, host, crew, emit, started, latest).finish()

    return _opened(experiment, folder, host, run)


def _opened(
    experiment: Experiment, folder: Path, host: Host, run: Callable[[RunFolder], Metrics]
) -> Metrics:
    host.load(METHOD)
    with opened(experiment, folder) as store:
        return run(store)


def _wait(nodes: Nodes, wanted: int, patience: float, emit: Emit) -> None:
    end = time.monotonic() + patience
    said = -1
    while True:
        nodes.look()
        if len(nodes.told) >= wanted:
            return
        if len(nodes.told) != said:
            said = len(nodes.told)
            emit(Warned(text=f"{said} of {wanted} sites are here; waiting"))
        if time.monotonic() > end:
            raise UserError(
                f"{said} of {wanted} sites (engine.sites) had joined after {patience:g} s; start "
                "the others, then run this again"
            )
        time.sleep(0.5)


def _with_newcomers(roster: Roster, nodes: Nodes, emit: Emit) -> Roster:
    for name, (_, report) in sorted(nodes.sites().items()):
        if roster.number(name) is None:
            try:
                roster = roster.joined_by(report)
            except UserError as problem:
                emit(Warned(text=f"a late site cannot take part: {problem}"))
    return roster


def _warnings_to(file: Path) -> Emit:
    """Who is waited for or refused, to be followed with the events that the run writes itself."""

    def emit(event: Event) -> None:
        if isinstance(event, Warned):
            append(file, event)

    return emit


@app.main()
def main(grid: Grid, context: Context) -> None:
    """What Flower runs; the outcome is left in the run folder for whoever started it."""
    from calibre.screen import LiveView

    config = context.run_config
    folder = Path(str(config["out"]))
    files = RunFolder(folder)
    experiment = experiments.read(Path(str(config["experiment"])))
    ended = {"run": str(context.run_id), "ended": "stopped", "message": ""}
    try:
        with LiveView(Console(width=120, force_terminal=False)) as view:
            emit = to_all(view, _warnings_to(files.events))
            patience, admit = float(config.get("patience", 600)), admission.of_run(grid, config)
            coordinate(grid, experiment, folder, emit, patience, admit)
        ended["ended"] = "done"
    except UserError as error:
        ended["message"] = str(error)
        raise
    except BaseException as error:
        ended["message"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        folder.mkdir(parents=True, exist_ok=True)
        # Flower itself calls every end a success
        write_atomic(files.outcome, json.dumps(ended) + os.linesep)
