"""A change that moves code without changing mathematics leaves every bit as it was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.golden.bits import INSTRUCTIONS, METHODS

HELD = json.loads(Path(__file__).with_name("bits.json").read_text())


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
    assert now[method] == HELD[method]
