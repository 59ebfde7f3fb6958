"""A bundle as one ONNX file, checked against the bundle itself.

Everything is inside the graph: uint8 images [N, H, W, C] of the bundle's size go in, calibrated
probabilities [N, K] and distances [N] come out. Class names, the limit, what images usually look
like (for :func:`calibre.personal.judge.problems`) and the bundle's hash are in its metadata.
"""

import importlib.util
import json
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibre.data.formats import PixelArray
from calibre.errors import UserError
from calibre.files import write_atomic
from calibre.personal.bundle import Bundle
from calibre.rng import numpy_stream

NEEDED = ("onnx", "onnxscript", "onnxruntime")
RANDOM = 64  # images of noise that both must agree on, in batches of unlike sizes
TOLERANCE = 1e-4  # of probabilities; of distances relative to their size
TIMED = 0.5  # seconds


@dataclass(frozen=True)
class Exported:
    """What was written, how exact it is and how fast, one image at a time."""

    path: str
    megabytes: float
    images: int  # that were compared
    difference: float  # the largest, of probabilities
    distance_difference: float  # the largest, relative
    onnx_ms: float  # per image
    torch_ms: float


def export_onnx(bundle: Bundle, path: Path, images: PixelArray | None = None) -> Exported:
    """Write the file, once it is seen to answer as the bundle does, noise and ``images`` alike."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX needs {', '.join(missing)}: pip install 'calibre-fl[export]'")
    import onnxruntime

    content = _graph(bundle)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def answers(batch: PixelArray) -> list[Any]:
        found: list[Any] = session.run(None, {"images": batch})
        return found

    noise = numpy_stream(0, "onnx").integers(
        0, 256, (RANDOM, *bundle.card.preprocessing.shape), np.uint8
    )
    seen = noise if images is None else np.concatenate([noise, images])
    apart, distance_apart = _differences(bundle, answers, seen)
    if not (apart <= TOLERANCE and distance_apart <= TOLERANCE):
        raise UserError(
            f"the ONNX graph does not answer as the bundle does: probabilities differ by "
            f"{apart:.1e}, distances by {distance_apart:.1e}; nothing was written"
        )
    write_atomic(path, content)
    one = seen[:1]
    return Exported(
        path=str(path),
        megabytes=len(content) / 1e6,
        images=len(seen),
        difference=apart,
        distance_difference=distance_apart,
        onnx_ms=_milliseconds(lambda: answers(one)),
        torch_ms=_milliseconds(lambda: bundle.answers(one)),
    )


def _graph(bundle: Bundle) -> bytes:
    shape = bundle.card.preprocessing.shape
    example = torch.zeros(2, *shape, dtype=torch.uint8)
    speak = logging.getLogger("torch.onnx")
    level = speak.level
    speak.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own future
            program = torch.onnx.export(
                bundle.predictor,
                (example,),
                input_names=["images"],
                output_names=["probabilities", "distances"],
                dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise UserError(
            f"the encoder '{bundle.card.network.encoder}' cannot be written as ONNX: "
            f"{str(error).splitlines()[0]}"
        ) from error
    finally:
        speak.setLevel(level)
    assert program is not None
    model = program.model_proto
    facts = {
        "classes": json.dumps(bundle.classes, ensure_ascii=False),
        "limit": json.dumps(bundle.limit),
        "usual": json.dumps(bundle.card.usual and bundle.card.usual.model_dump(mode="json")),
        "bundle": bundle.card.hash,
    }
    for key, value in facts.items():
        model.metadata_props.add(key=f"calibre.{key}", value=value)
    content: bytes = model.SerializeToString()
    return content


def _differences(
    bundle: Bundle, answers: Callable[[PixelArray], list[Any]], images: PixelArray
) -> tuple[float, float]:
    """The largest, over batches of 1, 2, 3, ... images: the batch size is free."""
    apart = distance_apart = 0.0
    start, size = 0, 1
    while start < len(images):
        batch = images[start : start + size]
        ours, theirs = bundle.answers(batch), answers(batch)
        scale = np.maximum(ours[1], 1)
        apart = max(apart, float(np.abs(ours[0] - theirs[0]).max()))
        distance_apart = max(distance_apart, float((np.abs(ours[1] - theirs[1]) / scale).max()))
        start, size = start + size, size + 1
    return apart, distance_apart


def _milliseconds(work: Callable[[], object]) -> float:
    """Of one call, the fastest of many: other programs only ever add to it."""
    work()
    best, end = float("inf"), time.perf_counter() + TIMED
    while time.perf_counter() < end:
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return 1000 * best
