"""Sites and coordinators that fail, as real processes: the others go on, and nothing is lost."""

import csv
import signal
import subprocess
import sys
import time

import psutil
import pytest

from calibre.deploy import launch
from calibre.deploy.superlink import missed
from calibre.experiment import read
from calibre.report import events
from tests.deploy.machines import START, Machines
from tests.deploy.relay import Relay

SETTINGS = (
    "method.name=tests.deploy.faulty:Faulty", "network.width=2", "method.sgd.batch=16",
    "training.clients_per_round=3", "training.epochs=1", "personal.epochs=1", "personal.floors=[]",
    "engine.sites=3",
)  # fmt: skip


def federation(machines, *changes, port=None, ports=None):
    """Whose clients leave signs of what they begin."""
    signs = machines.place / "signs"
    signs.mkdir()
    experiment = read(None, [*SETTINGS, f"method.signs={signs}", *changes])
    machines.federation(experiment, port or launch.free_port(), ports)


RUN = "calibre-fl deploy run experiment.toml --keys keys --out run"


def begun(place, client, round_):
    return list((place / "signs").glob(f"{client}-{round_}-*"))


def rounds_done(place):
    log = events.read(place / "run" / "events.jsonl")
    return {e.round: sorted(e.clients) for e in log if e.event == "round"}


def unhurried():
    """Seconds that are enough for a site's answer: this machine may be busy."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import calibre.deploy.client"], check=True)
    return max(8, round(4 * (time.monotonic() - began)))


@pytest.mark.minutes
def test_bad_answers_a_slow_site_and_a_killed_one_are_left_out_and_named(tmp_path):
    deadline = unhurried()
    with Machines(tmp_path) as machines:
        federation(
            machines, "training.rounds=3", "engine.quorum=0.3", f"engine.deadline={deadline}",
            f"method.slow={deadline + 5}",
        )  # fmt: skip
        machines.start("run", RUN)
        machines.wait("round 3", lambda: begun(tmp_path, 2, 2))
        node = psutil.Process(machines.running["carl"].pid)
        for process in [*node.children(recursive=True), node]:
            process.send_signal(signal.SIGKILL)
        machines.wait("the end", lambda: machines.running["run"].poll() is not None)
        assert machines.running["run"].returncode == 0, machines.logs()
        # client 0 is sound; in round 2 client 2 is, too
        assert rounds_done(tmp_path) == {1: [0], 2: [0, 2], 3: [0]}
        causes = {(e.round, e.client): e.cause for e in failures(tmp_path)}
        assert "RuntimeError: the disk of bert is full" in causes[1, 1]
        assert "holds NaN or infinity" in causes[1, 2]
        assert "is torch.float32 [7, 7], expected" in causes[2, 1]
        assert f"no answer within {deadline} s" in causes[3, 1]
        assert (3, 2) in causes
        table = missed(tmp_path / "run")
        assert table["bert"]["rounds"][:3] == [1, 2, 3]
        assert table["carl"]["rounds"][:2] == [1, 3]
        assert "rounds missed" in machines.log("run")


def clients(folder):
    with open(folder / "clients.csv", newline="") as file:
        return list(csv.DictReader(file))


def failures(place):
    return [e for e in events.read(place / "run" / "events.jsonl") if e.event == "failure"]


@pytest.mark.minutes
def test_a_killed_coordinator_goes_on_in_a_new_run(tmp_path):
    with Machines(tmp_path) as machines:
        federation(machines, "training.rounds=3", "method.sound=true")
        machines.start("run", RUN)
        machines.wait("round 2", lambda: 1 in rounds_done(tmp_path) and begun(tmp_path, 0, 1))
        for process in psutil.Process(machines.running["keys"].pid).children(recursive=True):
            process.send_signal(signal.SIGKILL)
        machines.wait("the end of it", lambda: machines.running["keys"].poll() is not None)
        machines.stop("run")
        assert not (tmp_path / "run" / "metrics.json").exists()
        before = machines.log("keys").count("listening")
        machines.start("keys", START)
        machines.wait("listening", lambda: machines.log("keys").count("listening") > before)
        machines.say(RUN)
        assert sorted(rounds_done(tmp_path)) == [1, 2, 3]
        assert len(begun(tmp_path, 0, 0)) == 1  # a round that was finished is not made again


@pytest.mark.minutes
def test_a_site_whose_network_is_cut_for_half_a_minute_is_counted_and_comes_back(tmp_path):
    """Cut while it trains: every connection is dropped and none is let through, then they are."""
    port, deadline = launch.free_port(), unhurried()
    last = 60  # without it a round takes less than a second; it asks again after 20 at most
    with Machines(tmp_path) as machines, Relay(port) as relay:
        federation(
            machines, f"training.rounds={last}", "engine.quorum=0.3", f"engine.deadline={deadline}",
            "method.sound=true", port=port, ports={"carl": relay.port},
        )  # fmt: skip
        machines.start("run", RUN)
        machines.wait("round 2", lambda: begun(tmp_path, 2, 1))
        relay.cut()
        half_a_minute = passed(30)
        machines.wait("round 2 without it", lambda: half_a_minute() and 2 in rounds_done(tmp_path))
        relay.restore()
        machines.wait("the end", lambda: machines.running["run"].poll() is not None)
        assert machines.running["run"].returncode == 0, machines.logs()
        done = rounds_done(tmp_path)
        assert sorted(done) == [*range(1, last + 1)]
        absent = [round_ for round_ in done if 2 not in done[round_]]
        assert 1 not in absent
        assert 2 in absent
        assert not {*range(3, last + 1)} <= {*absent}  # it came back
        table = missed(tmp_path / "run")
        assert [round_ for round_ in table["carl"]["rounds"] if round_ in done] == absent
        assert "rounds missed" in machines.log("run")
        assert "carl" in [row["name"] for row in clients(tmp_path / "run")]


def passed(seconds):
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end
