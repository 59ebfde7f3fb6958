"""A federated round against the bare loop, and what Calibre's terms add to it."""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.bare import BareLoops
from calibre.data import federation as federations
from calibre.data.sources import find, load
from calibre.engine.host import Host
from calibre.engine.rounds import Run
from calibre.engine.store import RunFolder
from calibre.engine.workers import Processes
from calibre.experiment import Experiment, read

CLIENTS, IMAGES, BATCH, EPOCHS = 10, 500, 250, 3


def experiment(encoder: str, width: int, method: str, images: Path | None) -> Experiment:
    source = "cifar10" if images is None else str(images)
    return read(
        None,
        [
            f"data.source={source}", "federation.scheme=iid", f"federation.clients={CLIENTS}",
            "federation.novel=0", f"federation.samples={IMAGES}", f"network.encoder={encoder}",
            f"network.width={width}", f"method.name={method}", f"method.sgd.batch={BATCH}",
            f"training.clients_per_round={CLIENTS}", f"training.epochs={EPOCHS}",
            "training.rounds=100",
        ],
    )  # fmt: skip


@contextlib.contextmanager
def running(settings: Experiment) -> Iterator[Run]:
    """A run with two workers that are warm: one round is already behind it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = RunFolder(folder)
        store.open(settings)
        pool = load(settings.data)
        federation = federations.build(pool, settings.federation, settings.seed)
        federation.save(folder)
        host = Host(settings, pool, federation, folder, torch.device("cpu"))
        workers = Processes(folder, ["cpu", "cpu"], [])
        try:
            run = Run(settings, store, federation, host, workers, lambda event: None, 0.0)
            yield run
        finally:
            workers.close()
            store.close()


def measure(encoder: str, width: int, repeats: int) -> list[dict[str, Any]]:
    """Alternate bare loop, pFL-SimCLR round and Calibre round; ratios of the medians."""
    with tempfile.TemporaryDirectory() as name:
        images = None if find("cifar10") else _noise(Path(name) / "noise.npz")
        plain = experiment(encoder, width, "pfl-ssl", images)
        calibrated = experiment(encoder, width, "calibre", images)
        steps = CLIENTS * EPOCHS * -(-IMAGES // BATCH) // 2
        bare = BareLoops(plain, BATCH)
        seconds: dict[str, list[float]] = {"bare": [], "pfl-ssl": [], "calibre": []}
        with running(plain) as plain_run, running(calibrated) as calibrated_run:
            plain_run.round()
            calibrated_run.round()
            bare.seconds(2)
            for _ in range(repeats):
                seconds["bare"].append(bare.seconds(steps))
                for key, run in (("pfl-ssl", plain_run), ("calibre", calibrated_run)):
                    began = time.perf_counter()
                    run.round()
                    seconds[key].append(time.perf_counter() - began)
        bare.close()
    middle = {key: statistics.median(values) for key, values in seconds.items()}
    settings = {
        "encoder": encoder, "width": width, "clients": CLIENTS, "images": IMAGES, "batch": BATCH,
        "epochs": EPOCHS, "data": "cifar10" if images is None else "noise of CIFAR-10's shape",
        "repeats": repeats, "seconds": {k: [round(v, 2) for v in vs] for k, vs in seconds.items()},
        "bare pairs per second": round(CLIENTS * IMAGES * EPOCHS / middle["bare"], 1),
    }  # fmt: skip
    return [
        {
            "name": f"federated SimCLR round against the bare loop, {encoder} width {width}",
            "ratio": middle["bare"] / middle["pfl-ssl"],
            "target": ">= 0.90",
            "settings": settings,
        },
        {
            "name": f"Calibre's round against pFL-SimCLR's, {encoder} width {width}",
            "ratio": middle["calibre"] / middle["pfl-ssl"],
            "target": "<= 1.10",
            "settings": settings,
        },
    ]


def _noise(path: Path) -> Path:
    import numpy as np

    random = np.random.default_rng(0)
    np.savez(
        path,
        x_train=random.integers(0, 256, (5200, 32, 32, 3), dtype=np.uint8),
        y_train=np.arange(5200) % 10,
        x_test=random.integers(0, 256, (1000, 32, 32, 3), dtype=np.uint8),
        y_test=np.arange(1000) % 10,
    )
    return path
