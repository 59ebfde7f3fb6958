"""FedAvg at whose client 1 things go wrong: workers load it by name."""

import dataclasses
import os
import signal
import struct
import sys
from typing import ClassVar, Literal

import torch

from calibre.engine import rounds
from calibre.methods.fedavg import FedAvg
from calibre.methods.method import Update
from calibre.report import events


def die_in_the_middle_of_the_answer() -> None:
    """The next message of this worker says that it is long, and then there is no more."""

    def half(connection, record) -> None:
        os.write(connection.fileno(), struct.pack("!i", 10_000) + b"{")
        os.kill(os.getpid(), signal.SIGKILL)

    sys.modules["__main__"].say = half


class Faulty(FedAvg):
    title: ClassVar[str] = "Faulty"
    name: str = "tests.engine.faulty:Faulty"
    fault: Literal[
        "raise", "wordy", "not a number", "shape", "samples", "report", "kill", "half", "all"
    ] = "raise"

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
            case "wordy":
                raise RuntimeError("no " * 10**6)
            case "not a number":
                model["head.bias"][0] = float("nan")
            case "shape":
                model["head.bias"] = torch.zeros(3)
            case "samples":
                update = dataclasses.replace(update, samples=10**9)
            case "report":
                update = dataclasses.replace(update, report={"loss": float("inf")})
            case "half":
                die_in_the_middle_of_the_answer()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return update


def run_faulty(tiny, tmp_path, fault, *changes):
    """The metrics of a run in which all five clients train, and who failed in it."""
    experiment = tiny(
        f"method.name={Faulty.__module__}:Faulty", f"method.fault={fault}",
        "training.clients_per_round=5", "training.rounds=2", *changes,
    )  # fmt: skip
    metrics = rounds.run(experiment, tmp_path)
    failures = [e for e in events.read(tmp_path / "events.jsonl") if e.event == "failure"]
    return metrics, failures
