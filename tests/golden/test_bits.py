"""A change that moves code without changing mathematics leaves every bit as it was."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calibre.experiment import RESULTS
from tests.golden.bits import INSTRUCTIONS, METHODS, held, processor

# On another kind of processor sums round differently. Gradients forgive that; k-means may put an
# image into another cluster, and goes another way from there.
STEADY = [method for method in METHODS if not method.startswith("calibre/")]
ONE_IMAGE = 1 / 12 + 1e-9  # of the 12 that each client is tested on


@pytest.fixture(scope="module")
def now() -> dict[str, dict[str, object]]:
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("the golden bits are those of a processor with AVX2, which this one lacks")
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.bits"], env={**os.environ, **INSTRUCTIONS},
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("method", METHODS)
def test_three_rounds_give_the_same_bits_as_ever(now, method):
    known = held()
    if processor() not in known:
        pytest.skip(f"no bits are kept of this kind of processor ({processor()}): see bits.py")
    assert now[method] == known[processor()][method]


@pytest.mark.parametrize("method", STEADY)
def test_three_rounds_give_the_same_accuracies_on_any_processor(now, method):
    for known in held().values():
        assert now[method]["accuracy"] == pytest.approx(known[method]["accuracy"], abs=ONE_IMAGE)


def test_whoever_renews_the_bits_raises_the_version_of_results():
    """Else published tables would mix runs of unlike mathematics; then note the new pair here."""
    first = next(iter(held().values()))  # of the processor on which they were renewed
    bits = hashlib.sha256(json.dumps(first).encode()).hexdigest()[:8]
    assert (RESULTS, bits) == (3, "1181f3a8")
