"""How fast a user's own images come in, against a bare loop that only decodes them with Pillow.

python -m benchmarks.importing [--images 100000]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from calibre.cores import usable_cores

IMAGES = 40_000
SIDE, SIZE = 160, 64  # pixels of the photographs, and what they are brought to
CLASSES, CLIENTS = 10, 4
REPEATS = 2

# As fast as Pillow goes: a JPEG is decoded at a fraction of its size, then resized.
BARE = f"""
import sys
import numpy as np
from PIL import Image
def pixels(path):
    with Image.open(path) as picture:
        picture.draft(None, ({2 * SIZE}, {2 * SIZE}))
        return np.asarray(picture.resize(({SIZE}, {SIZE}), Image.Resampling.BILINEAR))
paths = open(sys.argv[1]).read().splitlines()
for start in range(0, len(paths), 512):
    np.stack([pixels(path) for path in paths[start:start + 512]])
"""

# From the folder to the memory-mapped pool: listing, decoding, hashing, writing. And once more.
IMPORT = f"""
import json, resource, sys, time
import calibre.rng  # brings torch, which every run loads once
from calibre.data.sources import load
from calibre.sections import DataSettings
def seconds():
    began = time.perf_counter()
    assert len(load(DataSettings(source=sys.argv[1], size={SIZE})).labels) == int(sys.argv[2])
    return time.perf_counter() - began
first, again = seconds(), seconds()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(dict(first=first, again=again, peak=peak)))
"""


def measure(images: int = IMAGES, repeats: int = REPEATS) -> dict[str, Any]:
    """Images per second of the whole import, of those that bare loops on all cores decode."""
    cores = usable_cores()
    bare, imports = [], []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _draw(place / "photographs", images)
        for i in range(repeats):  # in turn, so that other programs disturb both alike
            bare.append(_bare(place, cores))
            imports.append(_imported(place / "photographs", images, place / f"cache{i}"))
    fastest = min(imports, key=lambda found: found["first"])
    return {
        "name": f"importing {images:,} JPEGs of {SIDE} x {SIDE} against decoding them with Pillow",
        "ratio": min(bare) / fastest["first"],
        "target": ">= 0.95" if images >= 100_000 else ">= 0.8",  # starting takes its time
        "settings": {
            "processes": cores,
            "imported per second": round(images / fastest["first"]),
            "decoded per second": round(images / min(bare)),
            "seconds of a later start": round(min(found["again"] for found in imports), 2),
            "peak MiB of the importing process": round(fastest["peak"]),
        },
    }


def _draw(place: Path, images: int) -> None:
    """Ellipses and some noise: about 6 kB each."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 6, (SIDE, SIDE, 1))
    for number in range(images):
        folder = place / f"client{number % CLIENTS}" / f"class{number // CLIENTS % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        ground, ink = rng.integers(0, 256, (2, 3)).tolist()
        image = Image.new("RGB", (SIDE, SIDE), tuple(ground))
        left, top = rng.integers(0, SIDE // 2, 2).tolist()
        ImageDraw.Draw(image).ellipse((left, top, left + SIDE // 2, top + 50), fill=tuple(ink))
        pixels = (np.asarray(image) + np.roll(noise, number, axis=1)).clip(0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.jpg", quality=85)


def _bare(place: Path, processes: int) -> float:
    """Seconds of one process per core; start-up, a fraction of a second, included as in ours."""
    paths = sorted(map(str, (place / "photographs").rglob("*.jpg")))
    lists = []
    for number in range(processes):
        lists.append(place / f"list{number}")
        lists[-1].write_text("\n".join(paths[number::processes]))
    began = time.perf_counter()
    running = [subprocess.Popen([sys.executable, "-c", BARE, str(paths)]) for paths in lists]
    codes = [process.wait() for process in running]
    assert not any(codes), codes
    return time.perf_counter() - began


def _imported(source: Path, images: int, cache: Path) -> dict[str, float]:
    """Seconds of the import and of a later start, and the peak of memory."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, str(source), str(images)],
        env={**os.environ, "CALIBRE_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.importing")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args()
    measured = measure(arguments.images, arguments.repeats)
    print(f"{measured['name']}: {measured['ratio']:.2f}")
    for name, value in measured["settings"].items():
        print(f"  {name}: {value:,}")


if __name__ == "__main__":
    main()
