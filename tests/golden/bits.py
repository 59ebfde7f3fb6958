"""What three rounds of eight methods on digits come to, as hashes: see test_bits.py.

    python -m tests.golden.bits            prints what they come to now
    python -m tests.golden.bits --keep     keeps that in bits.json, for this kind of processor
    python -m tests.golden.bits --renew    keeps it, and forgets all other kinds

Libraries choose how to sum by a processor's instructions and caches, so bits are those of a kind of
processor. To hold a refactoring to its bits on a kind that is not in the file, ``--keep`` them at
the commit before it. A commit that renews them says which mathematics it changed, and why.
"""

import argparse
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("bits.json")  # of each kind of processor: what methods come to

# One instruction set on every processor that has it: others round sums differently. Set before
# torch is loaded.
INSTRUCTIONS = {
    "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2",
    "OMP_NUM_THREADS": "1",
}  # fmt: skip

BASE = (
    "federation.clients=5", "federation.novel=2", "federation.samples=40",
    "federation.test_samples=12", "federation.labels=3", "network.width=2",
    "method.sgd.batch=16", "training.rounds=3", "training.clients_per_round=3",
    "training.epochs=2", "personal.head=paper", "personal.epochs=2", "personal.floors=[]",
    "engine.workers=0",
)  # fmt: skip
SMALL = ("method.objective.hidden=8", "method.objective.projection=4")
NO_LABELS = "method.labels.weight=0"
METHODS = {
    "calibre/simclr": ("method.name=calibre", NO_LABELS, *SMALL, "method.exchange=encoder"),
    "calibre/moco": (
        "method.name=calibre", NO_LABELS, "method.objective=moco", *SMALL,
        "method.objective.persist=true",
    ),
    "calibre/smog": (
        "method.name=calibre", NO_LABELS, "method.objective=smog", *SMALL,
        'method.objective.target_init="local"', "method.objective.groups=6",
    ),
    "fedavg-ft": ("method.name=fedavg-ft",),
    "scaffold": ("method.name=scaffold",),
    "fedrep": ("method.name=fedrep",),
    "apfl": ("method.name=apfl",),
    "fedema": ("method.name=fedema", *SMALL),
}  # fmt: skip


def hash_of(file: Path) -> str:
    """Of all tensors of a file, by name."""
    import safetensors.torch as st

    digest = hashlib.sha256()
    for name, tensor in sorted(st.load(file.read_bytes()).items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def bits_of(changes: tuple[str, ...]) -> dict[str, object]:
    import calibre

    with tempfile.TemporaryDirectory() as place:
        run = calibre.run(calibre.read_experiment(None, [*BASE, *changes]), place)
        server = next(Path(place).glob("checkpoints/round-0003.safetensors"))
        kept = sorted(Path(place).glob("clients/*/0003.safetensors"))  # of those of the last round
        return {
            "server": hash_of(server),
            "kept": hash_of(kept[0]) if kept else None,
            "accuracy": [client.accuracy for client in run.clients],
        }


def processor() -> str:
    """The kind of this machine's processor: what decides how sums are rounded."""
    told = Path("/proc/cpuinfo").read_text().splitlines()
    said = dict((part.strip() for part in line.split(":", 1)) for line in told if ":" in line)
    kind = "/".join(said.get(key, "?") for key in ("vendor_id", "cpu family", "model", "stepping"))
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return " ".join([kind, *(size.read_text().strip() for size in caches)])


def held() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.bits")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--renew", action="store_true")
    asked = parser.parse_args()
    os.environ.update(INSTRUCTIONS)
    from calibre.report import results

    results.accuracy_figure = lambda *_, **__: []  # to draw it takes longer than the run
    now = {name: bits_of(changes) for name, changes in METHODS.items()}
    if asked.keep or asked.renew:
        others = {} if asked.renew else held()
        FILE.write_text(json.dumps({**others, processor(): now}, indent=1) + "\n")
    else:
        print(json.dumps(now, indent=1))


if __name__ == "__main__":
    main()
