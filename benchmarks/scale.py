"""A hundred thousand clients in one federation, against a thousand: memory, start-up, building.

The images are tiny and made up; every client draws its own from a common pool.

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
from calibre.sections import FederationSettings

FEW, MANY = 1_000, 100_000
CLASSES = 10


def measure() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        images = _images(Path(name) / "tiny.npz")
        runs = {clients: _run(images, Path(name), clients) for clients in (FEW, MANY)}
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


def _run(images: Path, place: Path, clients: int) -> dict[str, float]:
    """Bytes at most until the first rounds are over, and seconds until the first client trains."""
    folder = place / str(clients)
    changes = (
        f"federation.clients={clients}", "federation.novel=0", "federation.scheme=iid",
        "federation.samples=20", "federation.test_samples=10", "federation.overlap=independent",
        "training.clients_per_round=200", "training.rounds=2", "training.epochs=1",
        "network.width=8", "personal.floors=[]", f"data.source={images}",
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


def _images(path: Path) -> Path:
    random = np.random.default_rng(0)
    np.savez(
        path,
        x_train=random.integers(0, 256, (4000, 8, 8, 1), dtype=np.uint8),
        y_train=np.arange(4000) % CLASSES,
        x_test=random.integers(0, 256, (1000, 8, 8, 1), dtype=np.uint8),
        y_test=np.arange(1000) % CLASSES,
    )
    return path


if __name__ == "__main__":
    for result in measure():
        print(f"{result['name']}: {result['ratio']:.3f} (promise {result['target']})")
