"""Runs and bundles that lie among somebody's images."""

import shutil

import numpy as np
import pytest
from PIL import Image

from calibre.data.formats.folder import survey
from calibre.data.formats.own_output import nothing_else
from calibre.data.sources import load, read
from calibre.errors import UserError
from calibre.sections import DataSettings
from tests.personal.made_bundle import make_bundle


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Six images of two classes, each of a shade of its own."""
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "pools"))
    for i in range(12):
        folder = tmp_path / "pets" / ("cat" if i < 6 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), i, np.uint8)).save(folder / f"{i}.png")
    return tmp_path / "pets"


@pytest.fixture
def run(tmp_path):
    """As a run leaves its folder, with pictures that look like data."""
    folder = tmp_path / "run"
    for inside in ("figures", "checkpoints", "bundles"):
        (folder / inside).mkdir(parents=True)
    for name in ("experiment.toml", "events.jsonl", "checkpoints/round-0001.safetensors"):
        (folder / name).write_text("")
    for name in ("figures/accuracies.png", "figures/federation.png"):
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / name)
    make_bundle().save(folder / "bundles" / "client-0")
    return folder


def test_runs_and_bundles_among_the_images_change_nothing_but_a_note(place, run):
    settings = DataSettings(source=str(place))
    before = load(settings)
    alone = read(settings)
    shutil.copytree(run, place / "runs" / "first")
    shutil.copytree(run, place / "second")
    make_bundle().save(place / "mine")
    make_bundle().save(place / "cat" / "theirs")
    assert [image for _, image in survey(place).images] == sorted(
        str(file) for file in place.glob("*/*.png") if file.stem.isdecimal()
    )
    found = read(settings)
    assert found.classes == alone.classes == ("cat", "dog")
    assert found.notes == (
        "Calibre's own runs and bundles, left out: 'cat/theirs', 'mine', 'runs/first', 'second'",
    )
    (place / "cat" / "0.png").touch()  # its pool is made anew
    assert load(settings).fingerprint == before.fingerprint


def test_images_that_lie_in_a_runs_own_folder_are_found_without_its_figures(place, run):
    shutil.copytree(run, place, dirs_exist_ok=True)
    assert read(DataSettings(source=str(place))).classes == ("cat", "dog")
    with pytest.raises(UserError, match="holds no images"):
        read(DataSettings(source=str(run)))


def test_a_folder_with_something_beside_runs_stays():
    own = [("runs", "a"), ("runs", "b"), ("x", "more", "c")]
    seen = {(), ("runs",), ("x",), ("x", "more"), ("x", "cat")}
    assert nothing_else(own, seen, {("x", "cat")}) == {("runs",), ("x", "more")}
    assert nothing_else(own, seen, {("runs",)}) == {("x", "more")}
