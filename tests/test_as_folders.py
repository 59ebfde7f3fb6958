"""examples/as_folders.py: a known data set as folders to try `run --data` with."""

import subprocess
import sys
from pathlib import Path

import pytest

from calibre.data.sources import facts, find
from calibre.sections import DataSettings

SCRIPT = Path(__file__).parents[1] / "examples" / "as_folders.py"


def export(*arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True
    )


def test_eight_sites_hold_five_classes_each_and_every_image_once(tmp_path):
    if find("fashion-mnist") is None:
        pytest.skip("no Fashion-MNIST: install Debian's dataset-fashion-mnist, as .ci/run does")
    done = export("fashion-mnist", tmp_path / "sites", "--rehearsal")
    assert done.returncode == 0, done.stderr
    found = facts(DataSettings(source=str(tmp_path / "sites")))
    assert found.owned
    assert found.tested
    assert (found.table > 0).sum(1).tolist() == [5] * 8
    assert all(55 <= labelled <= 65 for labelled in found.table.sum(1))
    rows = [file.stem.split("-")[-1] for file in (tmp_path / "sites").rglob("*.png")]
    assert len(set(rows)) == len(rows) > 4700


@pytest.mark.parametrize(
    ("source", "place", "words"),
    [("digits", "sites", "too few images"), ("cifra10", "sites", "cifar10"),
     ("digits", "", "is there already")],
)  # fmt: skip
def test_what_cannot_be_exported_is_told_in_words(source, place, words, tmp_path):
    done = export(source, tmp_path / place)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
