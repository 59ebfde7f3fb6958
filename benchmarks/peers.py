"""Peers beside Calibre on one machine: a round's speed, start-up and memory, of the same job.

    python -m benchmarks.peers --work ~/peers

Each peer is installed from its registry into a virtual environment of its own, in the folder
``--work``, and is given the job of ``peer_drivers/job.py``. After each of its rounds the bare loop
of ``benchmarks.bare`` makes as many steps, so that a slow minute slows both. The table is printed,
and kept in ``benchmarks/peers.json``.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bare import BareLoops
from benchmarks.origin import commit, machine
from benchmarks.peer_drivers.calibre_fl import experiment
from benchmarks.peer_drivers.job import BATCH, CHOSEN, CLIENTS, FOLDER, IMAGES, PAIRS
from calibre.engine.child import ENVIRONMENT

KEPT = Path(__file__).parent / "peers.json"
ROOT = Path(__file__).parent.parent
TORCH = "torch==2.13.0"  # the same for all
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m")
LAST = 2  # rounds after the timed ones, in which memory is looked at


@dataclass(frozen=True)
class Peer:
    """A framework, how it is installed, and what carries the job out in it."""

    name: str
    package: str  # whose version is told
    driver: str
    processes: str  # that train
    install: tuple[tuple[str, ...], ...]  # what pip is given, one call after the other
    launcher: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    job: str = "fedavg"

    def command(self, python: Path) -> list[str]:
        module = f"benchmarks.peer_drivers.{self.driver}"
        return [str(python), "-m", *self.launcher, module, *self.arguments]


PEERS = (
    Peer("Calibre", "calibre-fl", "calibre_fl", "2", ()),
    Peer("Flower, simulation", "flwr", "flower", "2", (("flwr[simulation]",),)),
    Peer("pfl-research", "pfl", "pfl_research", "2", (("pfl[pytorch]",),), TORCHRUN),
    Peer("FedLab", "fedlab", "fedlab_scale", "2", (("fedlab",),)),
    # its generated code is older than protobuf 4; it imports torchvision and does not ask for it
    Peer(
        "EasyFL, standalone", "easyfl", "easyfl_alone", "1",
        (("easyfl",), ("--no-deps", "protobuf<3.21", "torchvision==0.28.0", "pillow")),
    ),
    Peer("Plato, 2 at a time", "plato-learn", "plato_learn", "2", (("plato-learn",),)),
    Peer(
        "Plato, all at once", "plato-learn", "plato_learn", "10", (("plato-learn",),),
        arguments=("all-at-once",),
    ),
    Peer(
        "Calibre, SimCLR", "calibre-fl", "calibre_fl", "2", (), arguments=("simclr",), job="simclr"
    ),
    Peer("lightly, SimCLR", "lightly", "lightly_simclr", "1 + 2", (("lightly",),), job="simclr"),
)  # fmt: skip


class FailedError(Exception):
    """Why a peer could not be measured."""


@dataclass
class Row:
    """What was measured of a peer, of all its runs."""

    peer: Peer
    version: str = ""
    reason: str = ""  # why there is nothing
    bare: list[float] = field(default_factory=list)  # seconds, each before the round beside it
    rounds: list[float] = field(default_factory=list)
    startup: list[float] = field(default_factory=list)
    mebibytes: list[int] = field(default_factory=list)
    load: list[float] = field(default_factory=list)  # of the machine, before each run

    @property
    def ratio(self) -> float:
        pairs = zip(self.bare, self.rounds, strict=True)
        return statistics.median(bare / taken for bare, taken in pairs)

    def summary(self) -> dict[str, Any]:
        """As it is kept."""
        told: dict[str, Any] = {"name": self.peer.name, **asdict(self)}
        told["peer"] = {"package": self.peer.package, "version": told.pop("version")}
        told["peer"] |= {"processes": self.peer.processes, "job": self.peer.job}
        if not self.reason:
            told["ratio"] = round(self.ratio, 3)
            for name in ("bare", "rounds", "startup"):
                told[name] = [round(value, 3) for value in told[name]]
        return told


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--work", type=Path, help="for the environments; default: thrown away")
    parser.add_argument("--runs", type=int, default=3, help="of each peer, one peer after another")
    parser.add_argument("--rounds", type=int, default=8, help="timed in each run")
    parser.add_argument("--seconds", type=float, default=600, help="that a run may take")
    parser.add_argument("--only", default="", help="words in the peers' names, with commas between")
    arguments = parser.parse_args()
    words = [word.strip().lower() for word in arguments.only.split(",")]
    rows = [Row(peer) for peer in PEERS if any(word in peer.name.lower() for word in words)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and so end what was started
    began = time.time()
    with contextlib.ExitStack() as stack:
        work = arguments.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pythons = {row.peer.name: _prepare(row, work.resolve()) for row in rows}
        loops = {}
        for job, batch in (("fedavg", BATCH), ("simclr", PAIRS)):
            loops[job] = BareLoops(experiment(job), batch)
            stack.callback(loops[job].close)
        for number in range(arguments.runs):
            for row in rows:
                if not row.reason:
                    print(f"run {number + 1} of {row.peer.name} ...", flush=True)
                    loop = loops[row.peer.job]
                    with _told(row):
                        measure(
                            row, pythons[row.peer.name], loop, arguments.rounds, arguments.seconds
                        )
            _keep(rows, round((time.time() - began) / 60))  # after each, in case of a stop
    print(table([row.summary() for row in rows]))


@contextlib.contextmanager
def _told(row: Row) -> Iterator[None]:
    try:
        yield
    except FailedError as problem:
        row.reason = "" if row.mebibytes else str(problem)  # what other runs gave stays
        print(f"{row.peer.name}: {problem}", flush=True)


def _keep(rows: list[Row], minutes: int) -> None:
    frame = {
        "commit": commit(),
        "machine": machine(),
        "minutes": minutes,
        "torch": TORCH,
        "job": {"clients": CLIENTS, "a round": CHOSEN, "images": IMAGES, "batch": BATCH,
                "batch of SimCLR": PAIRS},
        "peers": [row.summary() for row in rows],
    }  # fmt: skip
    KEPT.write_text(json.dumps(frame, indent=2) + "\n")


# Environments -------------------------------------------------------------------------------------


def _prepare(row: Row, work: Path) -> Path:
    """The interpreter of the peer's environment; notes its version, or why there is none."""
    python = Path(sys.executable)
    with _told(row):
        if row.peer.install:
            python = _environment(row.peer, work)
        ask = f"import importlib.metadata as m; print(m.version({row.peer.package!r}))"
        row.version = _call([str(python), "-c", ask]).strip()
    return python


def _environment(peer: Peer, work: Path) -> Path:
    place = work / peer.package
    python, ready = place / "bin" / "python", place / "ready"
    if ready.exists():
        return python
    print(f"installing {peer.package} ...", flush=True)
    work.mkdir(parents=True, exist_ok=True)
    (work / "constraints.txt").write_text(TORCH + "\n")
    _call([sys.executable, "-m", "venv", "--clear", str(place)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "-c", str(work / "constraints.txt")]
    for packages in peer.install:
        _call([*pip, "torch", *packages])
    ready.touch()
    return python


def _call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FailedError(_last_line(done.stderr))
    return done.stdout


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.strip().splitlines()) if line.strip()), "no words")


# Measuring ----------------------------------------------------------------------------------------


def measure(row: Row, python: Path, bare: BareLoops, rounds: int, seconds: float) -> None:
    """One run of a peer: a first round, timed ones, and some in which memory is looked at."""
    batch = BATCH if row.peer.job == "fedavg" else PAIRS
    steps_each = CHOSEN * IMAGES // batch // 2
    row.load.append(round(os.getloadavg()[0], 1))
    with tempfile.TemporaryDirectory() as name, running(row.peer, python, Path(name)) as run:
        until = time.time() + seconds
        run.round_seconds(0, until)
        row.startup.append(run.first_training() - run.began)
        timed = 0
        while timed < rounds and (timed < 2 or time.time() < until):
            before = bare.seconds(steps_each)
            row.rounds.append(run.next_round(timed, until + seconds))
            row.bare.append(before)
            timed += 1
        peak = 0
        for number in range(timed, timed + LAST):
            peak = max(peak, run.next_round_memory(number, until + seconds))
        row.mebibytes.append(round(peak / 2**20))


@dataclass
class Running:
    """A peer's processes, and the folder in which they say what they did."""

    process: psutil.Popen
    folder: Path
    began: float

    def next_round(self, number: int, until: float) -> float:
        """Let it go on; the seconds that it then took."""
        (self.folder / f"go-{number}").touch()
        return self.round_seconds(number + 1, until)

    def next_round_memory(self, number: int, until: float) -> int:
        """Likewise; the most bytes that its processes held."""
        (self.folder / f"go-{number}").touch()
        peak = 0
        while len(self._rounds()) < number + 2:
            self._check(until)
            peak = max(peak, held(self.process))
            time.sleep(0.05)
        return peak

    def round_seconds(self, number: int, until: float) -> float:
        while len(rounds := self._rounds()) <= number:
            self._check(until)
            time.sleep(0.005)
        return rounds[number]

    def first_training(self) -> float:
        return min(float(file.read_text()) for file in self.folder.glob("trained-*"))

    def _rounds(self) -> list[float]:
        file = self.folder / "rounds.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def _check(self, until: float) -> None:
        if self.process.poll() is not None:
            raise FailedError(_last_line((self.folder / "log").read_text(errors="replace")))
        if time.time() > until:
            raise FailedError(f"no round ended in {time.time() - self.began:.0f} s")


@contextlib.contextmanager
def running(peer: Peer, python: Path, folder: Path) -> Iterator[Running]:
    """Start a peer, and end whatever it started."""
    with (folder / "log").open("w") as log:
        began = time.time()
        process = psutil.Popen(
            peer.command(python),
            cwd=folder,
            env=environment(peer, folder),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield Running(process, folder, began)
        finally:
            end(process, folder)


def environment(peer: Peer, folder: Path) -> dict[str, str]:
    """What Calibre's workers have, for all; Calibre itself where it is meant to be."""
    paths = [str(ROOT)]
    if not peer.install:
        paths.append(str(ROOT / "src"))
    return {**os.environ, **ENVIRONMENT, FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(paths)}


def held(process: psutil.Process) -> int:
    """Bytes that it and its children hold; what several share is counted in parts."""
    total = 0
    with contextlib.suppress(psutil.Error):
        for member in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += member.memory_full_info().pss
    return total


def end(process: psutil.Popen, folder: Path) -> None:
    """It and all that it started, orphans too: they were all told of the same folder."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
    process.wait()
    while members := [each for each in psutil.process_iter() if _told_of(each) == str(folder)]:
        for member in members:
            with contextlib.suppress(psutil.Error):
                member.kill()
        psutil.wait_procs(members, timeout=5)


def _told_of(process: psutil.Process) -> str | None:
    with contextlib.suppress(psutil.Error):
        found: str | None = process.environ().get(FOLDER)
        return found
    return None


# The table ----------------------------------------------------------------------------------------


def table(peers: list[dict[str, Any]]) -> str:
    """As Markdown; a peer that could not be measured has its reason in place of figures."""
    lines = [
        "| | version | training processes | of the bare loop's speed | first client trains after "
        "| memory |",
        "|---|---|---|---|---|---|",
    ]
    for row in peers:
        peer = row["peer"]
        begin = f"| {row['name']} | {peer['version']} | {peer['processes']} |"
        if row["reason"]:
            lines.append(f"{begin} not measured: {row['reason']} | | |")
            continue
        startup, memory = statistics.median(row["startup"]), statistics.median(row["mebibytes"])
        lines.append(f"{begin} {row['ratio']:.2f} | {startup:.1f} s | {memory:,.0f} MiB |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
