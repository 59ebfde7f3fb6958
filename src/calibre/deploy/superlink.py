"""The coordinator: a SuperLink with TLS and known sites, and experiments run on it."""

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from calibre.deploy import launch
from calibre.deploy.certificates import last_day
from calibre.deploy.keys import coordinator
from calibre.errors import UserError, printable
from calibre.files import private_folder, write_atomic
from calibre.report import runs
from calibre.report.events import Emit
from calibre.report.metrics import Metrics
from calibre.run_files import RunFiles
from calibre.wording import quoted

if TYPE_CHECKING:
    from calibre.experiment import Experiment

RENEW_IN_TIME = datetime.timedelta(days=30)


def serve(keys: Path, bind: str, say: Callable[[str], None]) -> None:
    """Run a SuperLink until interrupted; every public key in the folder may join."""
    coordinator(keys)
    today, end = datetime.date.today(), last_day(keys)
    if end < today:
        raise UserError(f"the certificate ended on {end}: calibre-fl deploy renew {quoted(keys)}")
    if end - today < RENEW_IN_TIME:
        say(f"warning: the certificate ends on {end}: calibre-fl deploy renew {quoted(keys)}")
    log = private_folder(keys) / "superlink.log"
    command = [sys.executable, "-P", "-m", "calibre.deploy.link", str(keys), bind]
    with launch.running(command, keys / "flwr", log, words=True) as link:
        assert link.stdout is not None
        for line in link.stdout:
            say(printable(line.decode(errors="replace").rstrip()))
    raise UserError(f"the SuperLink has ended; its log {log} ends:\n{launch.tail(log)}")


def run_on_sites(
    experiment: "Experiment",
    keys: Path,
    folder: Path,
    emit: Emit,
    patience: float,
    shared: bool = False,
) -> Metrics:
    """Submit an experiment with ``flwr run``, follow it, and return its metrics.

    ``shared``: its clients are shared out among nodes, instead of sites with images of their own.
    """
    coordinator(keys)
    if not (keys / "flwr" / "config.toml").exists():
        raise UserError(
            f"the coordinator was never started: calibre-fl deploy start {quoted(keys)}"
        )
    files = RunFiles(private_folder(folder.resolve()))
    work = private_folder(files.flower)
    write_atomic(files.flower_experiment, experiment.to_toml())
    settings = {
        "experiment": str(files.flower_experiment), "out": str(files.path), "simulation": False,
        "patience": float(patience), "shared": shared, "keys": str(keys.resolve()),
    }  # fmt: skip
    launch.write_app(work / "app", settings)
    files.outcome.unlink(missing_ok=True)
    before = launch.identity(files.events)
    home, log = keys / "flwr", work / "flwr.log"
    run = launch.submit(work / "app", home, log)
    try:
        ended = launch.follow(
            files.events, before, files.outcome, lambda: launch.is_running(run, home), emit
        )
    except KeyboardInterrupt:
        launch.flwr(["stop", run, launch.CONNECTION], home)
        raise
    if ended["ended"] != "done":
        raise UserError(f"{ended['message']}\n(the log of Flower: flwr log {run})")
    return runs.read_metrics(files.path)


def missed(folder: Path) -> dict[str, Any]:
    """Which sites missed which rounds, and why the last time."""
    from calibre.report import events

    held = RunFiles(folder)
    names = json.loads(held.federation.read_text()).get("sites", [])
    table: dict[str, Any] = {}
    for event in events.read(held.events):
        if isinstance(event, events.ClientFailed):
            client = event.client
            name = names[client] if client < len(names) else f"client {client}"
            row = table.setdefault(name, {"rounds": [], "cause": ""})
            row["rounds"].append(event.round)
            row["cause"] = event.cause
    return cast(dict[str, Any], printable(table))
