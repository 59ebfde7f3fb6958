"""How fast ``calibre-fl serve`` answers for the small CNN: one caller, and many at once.

The server is a process of its own, as a user starts it; callers are threads of another one that
send PNG files of 32 x 32 pixels over open connections on this machine and do little else. Both
share the machine's cores. ONNX Runtime stands beside for one image and for a batch, without HTTP.

    python -m benchmarks.serving
"""

import io
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from PIL import Image

from calibre.cores import usable_cores
from calibre.data.augment import Normalization
from calibre.data.formats import PixelArray
from calibre.local.features import encode
from calibre.models.network import Head, Problem, build_encoder
from calibre.personal.assemble import assemble
from calibre.personal.bundle import Bundle
from calibre.personal.card import Preprocessing
from calibre.personal.export import export_onnx
from calibre.personal.heads import Samples
from calibre.personal.holdout import as_it_is, cross_validate
from calibre.personal.making import Making
from calibre.personal.solve import HeadProblem, solve_heads
from calibre.rng import stream
from calibre.sections import NetworkSettings

SIZE, CLASSES, PER_CLASS = 32, 10, 8
CALLERS, SECONDS, REPEATS = 16, 4.0, 3

# Latencies and answers of some callers; each waits for its answer before it asks again.
CALLS = """
import json, socket, sys, threading, time
port, callers, seconds, file = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
body = open(file, "rb").read()
head = f"POST /predict HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
asked, took = head.encode() + body, []
def call(line, end):
    while (began := time.perf_counter()) < end:
        line.sendall(asked)
        heard = b""
        while b"\\r\\n\\r\\n" not in heard:
            heard += line.recv(65536)
        head, _, rest = heard.partition(b"\\r\\n\\r\\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.split(b"Content-Length: ")[1].split(b"\\r")[0])
        while len(rest) < length:
            rest += line.recv(65536)
        took.append(time.perf_counter() - began)
lines = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(callers)]
end = time.perf_counter() + seconds
threads = [threading.Thread(target=call, args=(line, end)) for line in lines]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(took))
"""


def measure(repeats: int = REPEATS) -> list[dict[str, Any]]:
    """The median wait of one caller, and what all callers together get in a second."""
    waits, rates, crowd = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        bundle, images = _bundle()
        bundle.save(Path(folder, "bundle"))
        picture = Path(folder, "image.png")
        Image.fromarray(images[0]).save(picture)
        with _served(Path(folder, "bundle")) as port:
            _calls(port, 2, 1.0, picture)  # warm
            for _ in range(repeats):
                waits.append(1000 * statistics.median(_calls(port, 1, SECONDS, picture)))
                many = _calls(port, CALLERS, SECONDS, picture)
                rates.append(len(many) / SECONDS)
                crowd.append(1000 * statistics.median(many))
    settings = {
        "encoder": f"cnn, width 32, {SIZE} x {SIZE}",
        "cores": usable_cores(),
        "callers": CALLERS,
        "median ms of one among many": round(statistics.median(crowd), 2),
        **_bare(bundle, images),
    }
    return [
        {
            "name": "median milliseconds until the small CNN answers over HTTP",
            "ratio": statistics.median(waits),
            "target": "<= 5",
            "settings": settings,
        },
        {
            "name": "answers per second of the small CNN over HTTP",
            "ratio": statistics.median(rates),
            "target": ">= 300",
            "settings": settings,
        },
    ]


def _bundle() -> tuple[Bundle, PixelArray]:
    """A personal model of noise in ten colours, and images of it: speed does not ask for sense."""
    rng = np.random.default_rng(0)
    labels = np.arange(CLASSES).repeat(PER_CLASS)
    ground = rng.integers(40, 215, (CLASSES, 1, 1, 3))[labels]
    images = (ground + rng.integers(-40, 40, (len(labels), SIZE, SIZE, 3))).astype(np.uint8)
    network = NetworkSettings(encoder="cnn", width=32)
    normalization = Normalization((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    encoder = build_encoder(Problem(SIZE, 3, CLASSES, network, seed=0)).eval()
    features = encode(encoder, torch.from_numpy(images), normalization)
    labelled = Samples(features, torch.from_numpy(labels))
    (solved,) = solve_heads([HeadProblem(*labelled, strength=1.0)], CLASSES)
    head = Head(solved.weight.float(), solved.bias.float())
    refit = as_it_is(labelled.features, torch.nn.functional.linear(labelled.features, *head))
    held_out = cross_validate(labelled.labels, refit, stream(0, "folds"))
    making = Making(
        client="benchmark", novel=True, method="untrained",
        classes=tuple(f"class {label}" for label in range(CLASSES)), network=network,
        preprocessing=Preprocessing.of((SIZE, SIZE, 3), normalization), encoders=[encoder],
        head=head, labelled=labelled, held_out=held_out, fitted="", test=None,
        images=torch.from_numpy(images),
        fairness={}, run={"seed": 0},
    )  # fmt: skip
    return assemble(making), images


@contextmanager
def _served(bundle: Path) -> Iterator[int]:
    """The port that ``calibre-fl serve`` answers at, until the block ends."""
    command = [sys.executable, "-m", "calibre", "serve", str(bundle), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield int(process.stderr.readline().rsplit(":", 1)[1].strip().strip("/"))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def _calls(port: int, callers: int, seconds: float, picture: Path) -> list[float]:
    """Seconds of each answer."""
    done = subprocess.run(
        [sys.executable, "-c", CALLS, str(port), str(callers), str(seconds), str(picture)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    found: list[float] = json.loads(done.stdout)
    return found


def _bare(bundle: Bundle, images: PixelArray) -> dict[str, float]:
    """Milliseconds of the model alone, with one thread, in torch and in ONNX Runtime."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        export_onnx(bundle, Path(folder, "model.onnx"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(Path(folder, "model.onnx"), options)
    file = io.BytesIO()
    Image.fromarray(images[0]).save(file, "PNG")
    works: dict[str, Callable[[], object]] = {
        "torch, 1 image": lambda: bundle.answers(images[:1]),
        "torch, 8 images": lambda: bundle.answers(images[:8]),
        "ONNX Runtime, 1 image": lambda: session.run(None, {"images": images[:1]}),
        "ONNX Runtime, 8 images": lambda: session.run(None, {"images": images[:8]}),
        "predict() of 1 PNG": lambda: bundle.predict(file.getvalue()),
    }
    return {f"ms of {name}": round(_median_ms(work), 3) for name, work in works.items()}


def _median_ms(work: Callable[[], object], seconds: float = 1.0) -> float:
    work()
    took, end = [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        work()
        took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)


if __name__ == "__main__":
    results = measure()
    for result in results:
        print(f"{result['name']}: {result['ratio']:.2f} (target {result['target']})")
    for key, value in results[0]["settings"].items():
        print(f"  {key}: {value}")
