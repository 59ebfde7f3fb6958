"""A hundred thousand clients in one federation, against a thousand: memory, start-up, building.

Rounds are of clients that own their images, as real ones do. Building is measured where it is
hardest: every client draws its own from a common pool.

    python -m benchmarks.scale
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from calibre.data.federation import Federation, build
from calibre.data.pool import Pool
from calibre.data.sources import load
from calibre.sections import DataSettings, FederationSettings

FEW, MANY = 1_000, 100_000
CLASSES = 10


def measure() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        runs = {clients: _run(Path(name), clients) for clients in (FEW, MANY)}
    few, many = runs[FEW], runs[MANY]
    return [
        {
            "name": f"seconds to build and hash a federation of {MANY:,} clients",
            "ratio": build_seconds(MANY),
            "target": "<= 10",
            "settings": {"clients": MANY, "images each": 30},
        },
        {
            "name": f"peak memory of rounds with {MANY:,} clients against {FEW:,}",
            "ratio": many["bytes"] / few["bytes"],
            "target": "<= 1.15",
            "settings": {"MiB": {str(c): round(r["bytes"] / 2**20) for c, r in runs.items()}},
        },
        {
            "name": f"start-up with {MANY:,} clients against {FEW:,}",
            "ratio": many["start"] / few["start"],
            "target": "<= 2",
            "settings": {"seconds": {str(c): round(r["start"], 2) for c, r in runs.items()}},
        },
    ]


def build_seconds(clients: int) -> float:
    """Of the processor, to share a pool out and to hash who holds what."""
    began = time.process_time()
    assert made_up(clients).hash
    return time.process_time() - began


def made_up(clients: int) -> Federation:
    """Clients of 20 images and 10 to test on, drawn from a common pool."""
    count = 5_000
    cut = count * 4 // 5
    pool = Pool(
        name="tiny",
        images=np.zeros((count, 8, 8, 1), np.uint8),
        labels=np.random.default_rng(0).integers(0, CLASSES, count),
        classes=tuple(map(str, range(CLASSES))),
        train=range(cut),
        test=range(cut, count),
        unlabelled=range(count, count),
        fingerprint="made up",
    )
    settings = FederationSettings(
        scheme="iid", clients=clients, novel=0, samples=20, test_samples=10, overlap="independent"
    )
    return build(pool, settings, seed=0)


def _run(place: Path, clients: int) -> dict[str, float]:
    """Bytes at most until the first rounds are over, and seconds until the first client trains.

    The images are imported before: that is paid once, and per image.
    """
    folder, images = place / str(clients), _images(place / f"{clients}.npz", clients)
    load(DataSettings(source=str(images)))
    changes = (
        f"data.source={images}", "federation.novel=0", "training.clients_per_round=200",
        "training.rounds=2", "training.epochs=1", "network.width=8", "personal.floors=[]",
    )  # fmt: skip
    sets = [part for change in changes for part in ("--set", change)]
    command = [sys.executable, "-m", "calibre", "run", "--out", str(folder), *sets]
    began, peak = time.time(), 0
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            peak = max(peak, _bytes(process))
            rounds = _rounds(folder / "events.jsonl")
            if len(rounds) == 2:
                starts = [client["began"] for client in rounds[0]["clients"].values()]
                return {"bytes": peak, "start": min(starts) - began}
            time.sleep(0.1)
        raise RuntimeError("the run ended before its second round")
    finally:
        process.kill()
        process.wait()


def _rounds(events: Path) -> list[dict[str, Any]]:
    if not events.exists():
        return []
    lines = events.read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "round"]


def _bytes(process: psutil.Process) -> int:
    """What all processes hold, shared pages in parts."""
    total = 0
    for member in [process, *process.children(recursive=True)]:
        try:
            total += member.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def _images(path: Path, clients: int) -> Path:
    """Eight tiny images of each client to train on and four to test on."""
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, each in (("train", 8), ("test", 4)):
        arrays[f"x_{part}"] = random.integers(0, 256, (clients * each, 8, 8, 1), dtype=np.uint8)
        arrays[f"y_{part}"] = random.integers(0, CLASSES, clients * each)
        arrays[f"clients_{part}"] = np.repeat(np.arange(clients), each)
    np.savez(path, **arrays)
    return path


if __name__ == "__main__":
    for result in measure():
        print(f"{result['name']}: {result['ratio']:.3f} (promise {result['target']})")
