import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from calibre.data.augment import statistics
from calibre.data.sources import load as load_pool
from calibre.engine import rounds
from calibre.errors import UserError
from calibre.experiment import read
from calibre.finished import run
from calibre.finished.newcomer import personalize_newcomer
from calibre.personal.bundle import load
from tests.conftest import TINY

NAMES = {1: "eins", 4: "vier", 7: "sieben"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "r"
    small = ("method.objective.hidden=16", "method.objective.projection=8", "network.width=8")
    rounds.run(read(None, [*TINY, *small, "training.rounds=2"]), folder)
    return folder


def draw(folder, per_class, skip=0, size=8):
    """Digits as files, under names of the newcomer's own."""
    digits = load_digits()
    for digit, name in NAMES.items():
        (folder / name).mkdir(parents=True)
        rows = np.random.default_rng(digit).permutation(np.flatnonzero(digits.target == digit))
        for row in rows[skip : skip + per_class]:  # shuffled: neighbours are of one writer
            picture = Image.fromarray((digits.images[row] * 255 / 16).round().astype(np.uint8))
            picture.resize((size, size)).save(folder / name / f"{row}.png")
    return folder


def test_a_few_images_give_a_model_that_does_what_it_expects(finished, tmp_path):
    """The cross-validated accuracy is one of images that really are new: within its interval."""
    draw(tmp_path / "praxis", per_class=20)
    bundle = personalize_newcomer(finished, tmp_path / "praxis")
    card = bundle.card
    assert card.client == "praxis"
    assert card.novel
    assert card.names == ("eins", "sieben", "vier")
    assert [held.labelled for held in card.classes] == [20, 20, 20]
    assert card.accuracy.how == "cross-validation"
    assert card.accuracy.images == 60
    draw(tmp_path / "later", per_class=40, skip=60)
    later = sorted((tmp_path / "later").glob("*/*.png"))
    found = bundle.predict(later)
    right = np.mean(
        [row.nearest == file.parent.name for row, file in zip(found, later, strict=True)]
    )
    assert card.accuracy.low - 0.05 < right < card.accuracy.high + 0.05
    assert right > 0.7
    bundle.save(tmp_path / "b")
    assert load(tmp_path / "b").predict(later) == found


def test_the_runs_own_images_are_not_needed(finished, tmp_path, monkeypatch):
    def gone(settings):
        raise AssertionError("the run's data was asked for")

    monkeypatch.setattr(run, "load", gone)
    card = personalize_newcomer(finished, draw(tmp_path / "n", 5)).card
    pool = load_pool(read(finished / "experiment.toml").data)
    expected = statistics(pool.images[pool.train.start : pool.train.stop])
    assert card.preprocessing.shape == (8, 8, 1)
    assert (card.preprocessing.mean, card.preprocessing.std) == (expected.mean, expected.std)


def test_an_older_run_that_noted_no_preprocessing_falls_back_on_its_images(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "old")
    (folder / "preprocessing.json").unlink()
    data = draw(tmp_path / "n", 5)
    old, new = personalize_newcomer(folder, data).card, personalize_newcomer(finished, data).card
    assert old == new


def test_the_encoder_is_the_servers_bit_for_bit(finished, tmp_path):
    import safetensors.torch as st

    bundle = personalize_newcomer(finished, draw(tmp_path / "n", 4))
    shared = st.load((finished / "model.safetensors").read_bytes())
    own = bundle.predictor.network.encoder.encoders[0].state_dict()
    assert own
    for name, tensor in own.items():
        assert torch.equal(tensor, shared[f"encoder.{name}"])


def test_a_test_part_of_its_own_measures_and_is_never_trained_on(finished, tmp_path):
    draw(tmp_path / "with" / "train", 8)
    draw(tmp_path / "with" / "test", 30, skip=100)
    card = personalize_newcomer(finished, tmp_path / "with").card
    assert card.accuracy.how == "test images"
    assert card.accuracy.images == 90
    alone = personalize_newcomer(finished, tmp_path / "with" / "train").card
    assert card.calibration.temperature == alone.calibration.temperature
    assert card.outside.limit == alone.outside.limit


def test_fedbn_gives_a_newcomer_the_statistics_of_its_own_images(tiny, tmp_path):
    rounds.run(tiny("method.name=fedbn", "training.rounds=1"), tmp_path / "r")
    light = draw(tmp_path / "light", 6)
    dark = draw(tmp_path / "dark", 6)
    for file in dark.glob("*/*.png"):
        Image.fromarray(np.asarray(Image.open(file)) // 4).save(file)
    one, other = (
        personalize_newcomer(tmp_path / "r", place).predictor.network.encoder.encoders[0].layers[1]
        for place in (light, dark)
    )
    assert not torch.equal(one.running_mean, other.running_mean)


@pytest.mark.parametrize("name", ["fedproto", "lg-fedavg", "local"])
def test_a_method_that_shares_no_encoder_has_none_for_a_newcomer(tiny, tmp_path, name):
    warmup = ["method.warmup=0"] if name == "lg-fedavg" else []
    rounds.run(tiny(f"method.name={name}", "training.rounds=1", *warmup), tmp_path / "r")
    with pytest.raises(UserError, match="shares no encoder"):
        personalize_newcomer(tmp_path / "r", draw(tmp_path / "n", 4))


def test_too_few_images_are_warned_of(finished, tmp_path):
    card = personalize_newcomer(finished, draw(tmp_path / "few", 3)).card
    said = " ".join(card.warnings)
    assert "fewer than 5 labelled images of eins, sieben, vier" in said
    assert "the accuracy may be anything from" in said


def test_an_unreadable_image_is_left_out_by_name(finished, tmp_path):
    folder = draw(tmp_path / "n", 6)
    (folder / "vier" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    card = personalize_newcomer(finished, folder).card
    assert any("torn.png" in text for text in card.warnings)
    assert sum(held.labelled for held in card.classes) == 18


def test_images_of_any_size_are_brought_to_the_encoders(finished, tmp_path):
    bundle = personalize_newcomer(finished, draw(tmp_path / "large", 8, size=64))
    assert bundle.card.preprocessing.shape == (8, 8, 1)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda folder: None, "no such folder"),
        (lambda folder: folder.mkdir(), "holds no images"),
        (lambda folder: _two(folder), "images of 2 clients"),
        (lambda folder: _torn(folder), "none of the images"),
    ],
    ids=["absent", "empty", "clients", "torn"],
)  # fmt: skip
def test_data_that_cannot_serve_is_told(finished, tmp_path, made, message):
    made(tmp_path / "data")
    with pytest.raises(UserError, match=message):
        personalize_newcomer(finished, tmp_path / "data")


def _two(folder):
    for client in ("anna", "ben"):
        draw(folder / client, 2)


def _torn(folder):
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "x.png").write_bytes(b"no image")


def test_a_run_without_its_model_says_so(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "r")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model.safetensors is missing or damaged"):
        personalize_newcomer(folder, draw(tmp_path / "n", 2))


def test_a_newcomer_gets_both_networks(tiny, tmp_path):
    two = ("method.name=calibre", "method.labels.weight=1", "method.labels.second=2")
    rounds.run(tiny(*two, "training.rounds=2"), tmp_path / "r")
    model = run.FinishedRun(tmp_path / "r").model
    draw(tmp_path / "praxis", per_class=12)
    bundle = personalize_newcomer(tmp_path / "r", tmp_path / "praxis")
    held = bundle.predictor.state_dict()
    for place, part in enumerate(("encoder", "second.encoder")):
        tensor = held[f"network.encoder.encoders.{place}.layers.0.weight"]
        assert torch.equal(tensor, model[f"{part}.layers.0.weight"])
    assert bundle.card.accuracy.correct > 18  # of 36
