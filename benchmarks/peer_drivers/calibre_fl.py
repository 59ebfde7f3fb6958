"""Calibre itself in two workers: FedAvg on bytes that it crops and flips, or SimCLR on pairs."""

import sys

import calibre
from benchmarks.peer_drivers.job import (
    BATCH,
    CHOSEN,
    CLIENTS,
    IMAGES,
    PAIRS,
    RATE,
    ROUNDS,
    WIDTH,
    Turns,
    folder,
    note_training,
)
from benchmarks.peer_drivers.noise import noise
from calibre.experiment import Experiment
from calibre.report.events import Event, RoundDone


def experiment(job: str) -> Experiment:
    batch = BATCH if job == "fedavg" else PAIRS
    sgd = {"lr": RATE, "momentum": 0.9, "weight_decay": 5e-4, "batch": batch}
    return calibre.read_experiment(
        data={"source": noise},
        federation={"scheme": "iid", "clients": CLIENTS, "novel": 0, "samples": IMAGES},
        network={"encoder": "cnn", "width": WIDTH},
        training={"rounds": ROUNDS, "clients_per_round": CHOSEN, "epochs": 1},
        method={"name": "fedavg" if job == "fedavg" else "pfl-ssl", "sgd": sgd},
        engine={"workers": 2},
    )


def main() -> None:
    turns = Turns()

    def emit(event: Event) -> None:
        if isinstance(event, RoundDone):
            assert len(event.clients) == CHOSEN
            note_training(min(report["began"] for report in event.clients.values()))
            turns.wait()

    calibre.run(experiment("simclr" if "simclr" in sys.argv else "fedavg"), folder() / "run", emit)


if __name__ == "__main__":
    main()
