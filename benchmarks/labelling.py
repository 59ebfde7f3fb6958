"""How long ``calibre-fl suggest`` and ``calibre-fl label`` let people wait, with 10,000 images.

Suggestions are timed without encoding, on two threads, for each of: no label yet, 1,000 labels.
The slower one counts.

The page is served by a process of its own, as a user starts it, on a folder of 10,000 digits of
which 1,000 have a label. A round trip is what somebody waits for who labels as fast as they can: a
label is sent, its answer read, and the next image fetched. Every label has the head solved again
behind it, with everything else that a page asks for, so the two compete.

    python -m benchmarks.labelling
"""

import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from calibre.calibration.typical import suggest
from calibre.data import labels_file
from calibre.engine import rounds
from calibre.experiment import read
from calibre.rng import stream

IMAGES, LABELS, CLASSES = 10_000, 1000, 10
FEATURES = 512  # of the largest encoder that comes with Calibre
TRIPS = 100
RUN = ("training.rounds=1", "federation.clients=4", "federation.novel=0",
       "training.clients_per_round=4", "personal.floors=[]", "engine.workers=0")  # fmt: skip


def measure() -> list[dict[str, Any]]:
    return [_suggesting(), _labelling()]


def _suggesting() -> dict[str, Any]:
    draw = stream(0, "benchmark-suggesting")
    centres = torch.randn(3 * CLASSES, FEATURES, generator=draw)
    kinds = torch.randint(len(centres), (IMAGES,), generator=draw)
    encodings = (centres[kinds] + torch.randn(IMAGES, FEATURES, generator=draw)).relu_()
    torch.set_num_threads(2)
    took, busy = {}, time.process_time()
    for labels in (0, LABELS):
        began = time.perf_counter()
        suggest(encodings, range(labels), 20, stream(0, "suggestions"))
        took[labels] = time.perf_counter() - began
    busy = time.process_time() - busy
    return {
        "name": "seconds to suggest 20 of 10,000 images of one client, once they are encoded",
        "ratio": max(took.values()),
        "target": "<= 10",
        "settings": {
            "features": FEATURES,
            "processor seconds of both": round(busy, 2),
            **{f"seconds with {labels:,} labels": round(s, 2) for labels, s in took.items()},
        },
    }


def _labelling() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run, images = Path(folder, "run"), Path(folder, "images")
        rounds.run(read(None, RUN), run)
        _write(images)
        with _served(run, images) as port:
            trips, behind = _trips(port)
    return {
        "name": "milliseconds of 19 in 20 labels until the next image is there, with 1,000 labels",
        "ratio": 1000 * statistics.quantiles(trips, n=20)[-1],
        "target": "<= 200",
        "settings": {
            "images": IMAGES,
            "labels": LABELS,
            "classes": CLASSES,
            "median ms": round(1000 * statistics.median(trips), 1),
            "slowest ms": round(1000 * max(trips), 1),
            "seconds until the estimate follows": round(behind, 2),
        },
    }


def _write(folder: Path) -> None:
    """Digits with a little noise, named by their class; some have a label in labels.csv."""
    folder.mkdir()
    held, rng = load_digits(), np.random.default_rng(0)
    rows = rng.integers(len(held.images), size=IMAGES)
    pixels = held.images[rows] * 15 + rng.integers(0, 16, (IMAGES, 8, 8))
    for number, row in enumerate(rows):
        file = folder / _name(number, held.target[row])
        Image.fromarray(pixels[number].astype(np.uint8)).save(file)
    given = [
        (_name(number, held.target[row]), str(held.target[row]), "")
        for number, row in enumerate(rows[:LABELS])
    ]
    labels_file.write(folder / labels_file.NAME, given)


def _name(number: int, digit: int) -> str:
    return f"{digit}-{number}.png"


@contextmanager
def _served(run: Path, images: Path) -> Iterator[int]:
    """The port that ``calibre-fl label`` answers at, until the block ends."""
    command = [sys.executable, "-m", "calibre", "label", run, "--data", images, "--port", "0"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield int(process.stderr.readline().rsplit(":", 1)[1].strip().strip("/"))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def _trips(port: int) -> tuple[list[float], float]:
    """Seconds of each round trip, and from the last label until the estimate has it."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(path: str, **body: object) -> bytes:
        sent = json.dumps(body) if body else None
        line.request("POST" if body else "GET", path, sent)
        answer = line.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content

    def settled() -> dict[str, Any]:
        while True:
            state: dict[str, Any] = json.loads(ask("/state"))
            if state["queue"] and not (state["pending"] or state["looking"]):
                return state
            time.sleep(0.02)

    state = settled()
    took: list[float] = []
    while len(took) < TRIPS:
        if not state["queue"]:  # faster than anybody labels: the next ones are being looked for
            state = settled()
        first = state["queue"][0]
        began = time.perf_counter()
        label = first["name"][0]
        state = json.loads(ask("/label", index=first["index"], label=label, was=None))
        if state["queue"]:
            ask(f"/image?index={state['queue'][0]['index']}&side=1400")
        took.append(time.perf_counter() - began)
    began = time.perf_counter()
    settled()
    return took, time.perf_counter() - began


if __name__ == "__main__":
    for result in measure():
        print(f"{result['name']}: {result['ratio']:.2f} (target {result['target']})")
        for key, value in result["settings"].items():
            print(f"  {key}: {value}")
