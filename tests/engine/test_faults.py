"""Clients and workers that fail: named, left out, counted; the round goes on with the survivors."""

import json
import os
import signal
import struct
import sys
from typing import ClassVar, Literal

import pytest
import torch

from calibre.engine import events, rounds
from calibre.errors import UserError
from calibre.methods.fedavg import FedAvg
from calibre.methods.method import Update


def die_in_the_middle_of_the_answer() -> None:
    """The next message of this worker says that it is long, and then there is no more."""

    def half(connection, header, tensors=b"") -> None:
        os.write(connection.fileno(), struct.pack("!i", 10_000) + b"{")
        os.kill(os.getpid(), signal.SIGKILL)

    sys.modules["__main__"].send = half


class Faulty(FedAvg):
    """FedAvg at whose client 1 things go wrong."""

    title: ClassVar[str] = "Faulty"
    name: str = "tests.engine.test_faults:Faulty"
    fault: Literal["raise", "not a number", "shape", "kill", "half", "all"] = "raise"

    def local_update(self, server, personal, site) -> Update:
        update = super().local_update(server, personal, site)
        model = update.shared["model"]
        if self.fault == "all":
            raise RuntimeError("no client works")
        if site.client != 1:
            return update
        match self.fault:
            case "raise":
                raise RuntimeError("the disk of client 1 is full")
            case "not a number":
                model["head.bias"][0] = float("nan")
            case "shape":
                model["head.bias"] = torch.zeros(3)
            case "half":
                die_in_the_middle_of_the_answer()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return update


def run(tiny, tmp_path, fault, *changes):
    experiment = tiny(
        "method.name=tests.engine.test_faults:Faulty", f"method.fault={fault}",
        "training.clients_per_round=5", "training.rounds=2", *changes,
    )  # fmt: skip
    metrics = rounds.run(experiment, tmp_path)
    failures = [e for e in events.read(tmp_path / "events.jsonl") if e["event"] == "failure"]
    return metrics, failures


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("raise", "the disk of client 1 is full"),
        ("not a number", "'head.bias' holds NaN"),
        ("shape", r"'head.bias' is torch.float32 [3], expected torch.float32 [10]"),
    ],
)
def test_a_failing_client_is_named_and_left_out(tiny, tmp_path, fault, cause):
    metrics, failures = run(tiny, tmp_path, fault)
    assert [(f["client"], f["round"]) for f in failures] == [(1, 1), (1, 2)]
    assert all(cause in f["cause"] for f in failures)
    assert metrics["failures"] == 2
    assert json.loads((tmp_path / "metrics.json").read_text())["failures"] == 2


def test_the_survivors_give_the_result(tiny, tmp_path):
    """Leaving a client out by failure is the same as aggregating the others."""
    run(tiny, tmp_path / "raise", "raise")
    run(tiny, tmp_path / "shape", "shape")
    one, other = ((tmp_path / f / "model.safetensors").read_bytes() for f in ("raise", "shape"))
    assert one == other


@pytest.mark.parametrize("fault", ["kill", "half"])
def test_a_killed_worker_is_replaced_and_its_client_named(tiny, tmp_path, fault):
    metrics, failures = run(tiny, tmp_path, fault, "engine.workers=2")
    assert [(f["client"], f["round"]) for f in failures] == [(1, 1), (1, 2)]
    assert all("killed by the system (SIGKILL" in f["cause"] for f in failures)
    assert metrics["failures"] == 2
    assert metrics["train"]["clients"] == 5


def test_below_the_quorum_the_run_stops_and_can_go_on(tiny, tmp_path):
    with pytest.raises(UserError, match=r"round 1 stopped: 4 clients succeeded.*5.*resume"):
        run(tiny, tmp_path, "raise", "engine.quorum=1.0")
    metrics, _ = run(tiny, tmp_path, "raise", "engine.quorum=0.5")
    assert metrics["rounds"] == 2


def test_when_nobody_succeeds_the_message_says_so(tiny, tmp_path):
    with pytest.raises(UserError, match="0 clients succeeded"):
        run(tiny, tmp_path, "all", "engine.quorum=0.0")
