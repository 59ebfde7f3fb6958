"""The coordinator: a SuperLink with TLS and known sites, and experiments run on it."""

import json
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibre.deploy import launch
from calibre.engine.events import Emit
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import write_atomic


def serve(keys: Path, bind: str, say: Callable[[str], None]) -> None:
    """Run a SuperLink until interrupted; every public key in the folder may join."""
    home, log = keys / "flwr", keys / "superlink.log"
    port = _port(keys)
    command = [
        launch.program("flower-superlink"), "--host", bind, "--port", str(port),
        "--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt"),
        "--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth",
        "--database", str((keys / "superlink.db").resolve()),  # sites find it again after a crash
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    with launch.running(command, home, log) as superlink:
        launch.wait_for_port(port, superlink, log)
        known: set[Path] = set()
        _register_new(known, keys, log, say)
        say(f"listening on {bind}:{port}; the log is {log}")
        while superlink.poll() is None:
            time.sleep(1)
            _register_new(known, keys, log, say)  # keys may be added while it runs
    raise UserError(f"the SuperLink has ended; its log {log} ends:\n{launch.tail(log)}")


def _register_new(known: set[Path], keys: Path, log: Path, say: Callable[[str], None]) -> None:
    for key in sorted(set((keys / "sites").glob("*.pub")) - known):
        known.add(key)
        done = launch.flwr(["supernode", "register", str(key), launch.CONNECTION], keys / "flwr")
        said = done.stdout + done.stderr
        with open(log, "a") as file:
            file.write(said)
        if done.returncode == 0 or "already" in said:  # by an earlier start
            say(f"site {key.stem} may join")
        else:
            say(f"site {key.stem} could not be registered: see {log}")


def run_on_sites(
    experiment: Experiment, keys: Path, folder: Path, emit: Emit, patience: float
) -> dict[str, Any]:
    """Submit an experiment with ``flwr run``, follow it, and return its metrics."""
    _port(keys)
    folder = folder.resolve()
    work = folder / "flower"
    work.mkdir(parents=True, exist_ok=True)
    write_atomic(work / "experiment.toml", experiment.to_toml())
    settings = {
        "experiment": str(work / "experiment.toml"), "out": str(folder), "simulation": False,
        "patience": float(patience),
    }  # fmt: skip
    launch.write_app(work / "app", settings)
    outcome = folder / "flower.json"
    outcome.unlink(missing_ok=True)
    events = folder / "events.jsonl"
    before = launch.identity(events)
    home, log = keys / "flwr", work / "flwr.log"
    run = launch.submit(work / "app", home, log)
    try:
        ended = launch.follow(events, before, outcome, lambda: launch.is_running(run, home), emit)
    except KeyboardInterrupt:
        launch.flwr(["stop", run, launch.CONNECTION], home)
        raise
    if ended["ended"] != "done":
        raise UserError(f"{ended['message']}\n(the log of Flower: flwr log {run})")
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return {**metrics, "missed": missed(folder)}


def missed(folder: Path) -> dict[str, Any]:
    """Which sites missed which rounds, and why the last time."""
    from calibre.engine import events

    names = json.loads((folder / "federation.json").read_text()).get("sites", [])
    table: dict[str, Any] = {}
    for event in events.read(folder / "events.jsonl"):
        if event["event"] == "failure":
            client = event["client"]
            name = names[client] if client < len(names) else f"client {client}"
            row = table.setdefault(name, {"rounds": [], "cause": ""})
            row["rounds"].append(event["round"])
            row["cause"] = event["cause"]
    return table


def _port(keys: Path) -> int:
    """The port that the keys were made for."""
    try:
        config = tomllib.loads((keys / "flwr" / "config.toml").read_text())
        return int(config["superlink"][launch.CONNECTION]["address"].rpartition(":")[2])
    except (OSError, tomllib.TOMLDecodeError, KeyError, ValueError):
        raise UserError(
            f"{keys} holds no keys: make them with  calibre-fl deploy keys {keys} --site NAME ..."
        ) from None
