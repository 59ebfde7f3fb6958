"""Start Flower's programs, and run an experiment on them with ``flwr run``.

This module imports neither Flower nor torch: it only makes files and starts programs.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from calibre import __version__
from calibre.errors import UserError, printable
from calibre.files import write_atomic
from calibre.report.events import Emit, parse

CONNECTION = "calibre"  # what the coordinator's SuperLink is called in Flower's configuration
START_SECONDS = 60.0
ALIVE_SECONDS = 60.0  # between looks whether the coordinator is still there
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",  # one thread per client, as everywhere: the bits depend on it
    "OMP_WAIT_POLICY": "PASSIVE",
    # glibc would return every batch's memory to the system and fetch it again, page by page
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
    "MALLOC_MMAP_THRESHOLD_": str(2**28),
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; Flower would look once a second
}


def environment(home: Path) -> dict[str, str]:
    """Of Flower's programs: their own folder, no telemetry, our programs and modules found."""
    scripts = sysconfig.get_path("scripts")
    return {
        **os.environ,
        **QUIET,
        "FLWR_HOME": str(home.resolve()),
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
        "PYTHONPATH": module_path(),
    }


def module_path() -> str:
    """Where this process finds modules, for one that should find the same."""
    return os.pathsep.join(place or os.getcwd() for place in sys.path)


def program(name: str) -> str:
    """Where one of Flower's programs lies; without Flower, what to install."""
    found = shutil.which(name, path=environment(Path("."))["PATH"])
    if found is None:
        raise UserError(
            f"{name} was not found: install Flower with  pip install calibre-fl[flower]"
        )
    return found


def write_app(
    folder: Path,
    settings: Mapping[str, Any],
    server: str = "calibre.deploy.coordinator:app",
    client: str = "calibre.deploy.client:app",
) -> None:
    """A Flower app for ``flwr run``: it only points at Calibre, which every machine has."""
    folder.mkdir(parents=True, exist_ok=True)
    app = {
        "project": {
            "name": "calibre-run",
            "version": __version__,
            "description": "An experiment of Calibre",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "calibre",
                    "components": {"serverapp": server, "clientapp": client},
                    "config": dict(settings),
                }
            }
        },
    }
    write_atomic(folder / "pyproject.toml", tomli_w.dumps(app))


def write_connection(home: Path, address: str, certificate: Path | None) -> None:
    """Flower's configuration: where the SuperLink is, and by which certificate it is known."""
    home.mkdir(parents=True, exist_ok=True)
    link: dict[str, Any] = {"address": address}
    link |= {"root-certificates": str(certificate.resolve())} if certificate else {"insecure": True}
    content = {"superlink": {"default": CONNECTION, CONNECTION: link}}
    write_atomic(home / "config.toml", tomli_w.dumps(content))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str], home: Path, log: Path, words: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A program with all that it starts; all of it is stopped at the end.

    Both its outputs go to the log, or, with ``words``, standard output to whoever reads it here.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        process = subprocess.Popen(  # noqa: S603
            list(command), env=environment(home), stdout=subprocess.PIPE if words else output,
            stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    # a polite request to end must not leave Flower's programs behind
    old = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield process
    finally:
        signal.signal(signal.SIGTERM, old)
        stop(process)


def stop(process: subprocess.Popen[bytes], patience: float = 10) -> None:
    """Ask a program to end, then make it and all below it end, whatever session they lead."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until a program listens; a message with the end of its log when it does not."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise UserError(f"Flower's SuperLink did not start; its log {log} ends:\n{tail(log)}")


def tail(log: Path, lines: int = 8) -> str:
    """The end of a log, without the colours that Flower writes."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace")) if log.exists() else ""
    return "\n".join(printable(line) for line in text.strip().splitlines()[-lines:])


def submit(app: Path, home: Path, log: Path, more: Sequence[str] = ()) -> str:
    """``flwr run``: the run's number."""
    arguments = ["run", str(app), CONNECTION, "--format", "json", *more]
    done = flwr(arguments, home)
    with open(log, "a") as file:
        file.write(f"$ flwr {' '.join(arguments)}\n{done.stdout}{done.stderr}\n")
    try:
        return str(_answer(done)["run-id"])
    except (ValueError, KeyError):
        said = (done.stderr or done.stdout)[-2000:]
        raise UserError(f"flwr run failed (see {log}):\n{said}") from None


def is_running(run: str, home: Path) -> bool:
    """Whether a run is still going on, as Flower has it."""
    done = flwr(["list", CONNECTION, "--run-id", run, "--format", "json"], home)
    try:
        return not str(_answer(done)["runs"][0]["status"]).startswith("finished")
    except (ValueError, KeyError, IndexError):
        return done.returncode == 0


def flwr(arguments: Sequence[str], home: Path) -> subprocess.CompletedProcess[str]:
    """Flower's own command."""
    return subprocess.run(  # noqa: S603
        [program("flwr"), *arguments], env=environment(home), capture_output=True, text=True
    )


def _answer(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout[done.stdout.index("{") :])


def identity(file: Path) -> int | None:
    """Unlike for a file and the one that takes its place."""
    return file.stat().st_ino if file.exists() else None


def follow(
    events: Path,
    before: int | None,
    outcome: Path,
    alive: Callable[[], bool],
    emit: Emit,
) -> dict[str, Any]:
    """Show a run's events as its coordinator writes them; how it ended.

    ``before`` identifies what an earlier attempt wrote, which the coordinator replaces first.
    """
    seen, asked = 0, time.monotonic()
    while True:
        over = outcome.exists()
        if time.monotonic() - asked > ALIVE_SECONDS:  # asking may take seconds of its own
            asked = time.monotonic()
            over = over or not alive()
        fresh = identity(events) not in (None, before)
        text = events.read_text(encoding="utf-8") if fresh else ""
        whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        for line in whole[seen:]:
            if (event := parse(line)) is not None:
                emit(event)
        seen = len(whole)
        if over:
            break
        time.sleep(0.2)
    if not outcome.exists():
        return {"ended": "stopped", "message": "the coordinator ended without a word"}
    ended: dict[str, Any] = printable(json.loads(outcome.read_text()))
    return ended
