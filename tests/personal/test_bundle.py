import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import calibre
from calibre.errors import UserError
from calibre.personal.bundle import NONE, load
from tests.personal.made_bundle import (
    COLOURS,
    SIZE,
    STRANGER,
    images,
    make_bundle,
    make_gray_bundle,
    square,
)


def test_what_was_saved_answers_the_same_bits(bundle):
    pixels, _ = images(5, first_seed=500)
    before, after = make_bundle().answers(pixels), load(bundle).answers(pixels)
    np.testing.assert_array_equal(before[0], after[0])
    np.testing.assert_array_equal(before[1], after[1])


def test_probabilities_are_those_of_the_formula(bundle):
    """Step by step in float64 from the stored tensors, without the module that made them."""
    model, tensors = load(bundle), load_file(bundle / "model.safetensors")
    pixels, _ = images(2, first_seed=700)
    p = model.card.preprocessing
    x = (pixels / 255.0 - np.array(p.mean)) / np.array(p.std)
    encoder = model.predictor.network.encoder.encoders[0]
    with torch.no_grad():
        z = encoder(torch.from_numpy(x.transpose(0, 3, 1, 2)).float()).double().numpy()
    weight = tensors["network.head.weight"].double().numpy()
    logits = z @ weight.T + tensors["network.head.bias"].double().numpy()
    scaled = logits / float(tensors["temperature"])
    expected = np.exp(scaled) / np.exp(scaled).sum(1, keepdims=True)
    whitening = tensors["whitening"].double().numpy()
    gaps = [np.linalg.norm((z - mean) @ whitening, axis=1) for mean in tensors["means"].numpy()]
    found, distances = model.answers(pixels)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(distances, np.min(gaps, axis=0) / np.sqrt(z.shape[1]), rtol=1e-3)


def test_own_images_are_told_apart_and_strangers_refused(bundle):
    model = load(bundle)
    pixels, labels = images(10, first_seed=2000)
    found = model.predict(pixels)
    right = sum(row.label == model.classes[k] for row, k in zip(found, labels, strict=True))
    assert right >= 26
    strangers = model.predict([square(STRANGER, i) for i in range(10)])
    assert sum(row.label is None for row in strangers) >= 8
    refused = next(row for row in strangers if row.label is None)
    assert refused.answer == "none of your classes"
    assert refused.nearest in COLOURS
    assert refused.distance > model.limit


def test_a_larger_share_refused_is_a_lower_limit(bundle):
    model = load(bundle)
    limits = [model.refuse(rate).limit for rate in (0.01, 0.05, 0.2)]
    assert limits[0] >= limits[1] > limits[2]
    with pytest.raises(UserError, match=r"has limits for 0\.01"):
        model.refuse(0.33)


def test_any_kind_of_image_goes_the_way_of_the_import(bundle, tmp_path):
    """One picture larger than the model's, in every shape that a person may hold it."""
    large = square(COLOURS["green"], 3, size=48)
    picture = Image.fromarray(large)
    picture.save(tmp_path / "a.png")
    picture.save(tmp_path / "a.tif")
    rgba = picture.convert("RGBA")
    given = [tmp_path / "a.png", str(tmp_path / "a.tif"), (tmp_path / "a.png").read_bytes(),
             picture, large, rgba, np.asarray(rgba)]  # fmt: skip
    found = load(bundle).predict(given)
    assert {row.label for row in found} == {"green"}
    for row in found:  # their place in a batch may cost the last bit
        assert row.probabilities == pytest.approx(found[0].probabilities, abs=1e-6)
    by_hand = np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    expected = load(bundle).answers(by_hand[None])[0][0]
    np.testing.assert_allclose(list(found[0].probabilities.values()), expected, atol=1e-6)


def test_one_image_is_no_list(bundle, tmp_path):
    model = load(bundle)
    Image.fromarray(square(COLOURS["red"], 1)).save(tmp_path / "x.png")
    for one in (tmp_path / "x.png", str(tmp_path / "x.png"), square(COLOURS["red"], 1)):
        assert [row.label for row in model.predict(one)] == ["red"]


def test_gray_and_unreadable_images_do_not_stop_the_others(bundle, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    Image.fromarray(square(COLOURS["blue"], 1)).save(tmp_path / "good.png")
    gray = np.full((5, 5), 90, np.uint8)
    found = load(bundle).predict([tmp_path / "broken.png", gray, tmp_path / "good.png",
                                  tmp_path / "absent.png"])  # fmt: skip
    assert [row.error is None for row in found] == [False, True, True, False]
    assert found[0].answer == "unreadable"
    assert found[2].label == "blue"
    assert found[2].image.endswith("good.png")


@pytest.mark.parametrize(
    "wrong", [np.zeros((4, 4), np.float32), np.zeros((4, 4, 2), np.uint8), 7], ids=str
)
def test_what_is_no_image_is_told(bundle, wrong):
    with pytest.raises(UserError, match="image 0"):
        load(bundle).predict([wrong])


def rewrite(folder, change) -> None:
    """An attacker's card: changed, and its hash made to fit."""
    from calibre.personal.card import Card

    values = json.loads((folder / "card.json").read_text())
    change(values)
    values["hash"] = Card.model_validate(values).digest()
    (folder / "card.json").write_text(json.dumps(values))


def test_a_card_that_promises_a_giant_costs_no_memory(copy):
    def widen(values):
        values["network"]["width"] = 10**6

    rewrite(copy, widen)
    with pytest.raises(UserError, match=r"is damaged.*expected"):
        load(copy)


def test_code_of_somebody_elses_runs_only_when_allowed(copy, tmp_path, monkeypatch):
    (tmp_path / "their_code.py").write_text(
        "from pathlib import Path\nfrom calibre.models.cnn import cnn\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rewrite(copy, lambda values: values["network"].update(encoder="their_code:cnn"))
    with pytest.raises(UserError, match=r"'their_code:cnn', code .* --own-code"):
        load(copy)
    assert not (tmp_path / "ran").exists()
    assert load(copy, own_code=True).predict(square(COLOURS["red"], 1))[0].label == "red"
    assert (tmp_path / "ran").exists()


def test_own_code_that_is_not_there_is_told(copy):
    rewrite(copy, lambda values: values["network"].update(encoder="no_such_module:f"))
    with pytest.raises(UserError, match="no_such_module"):
        load(copy, own_code=True)


def test_calibre_load_is_light_to_import(bundle):
    assert calibre.load(bundle).classes == tuple(COLOURS)
    code = "import sys, calibre; sys.exit('torch' in sys.modules or not callable(calibre.load))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_image_that_cannot_be_judged_is_refused_with_the_reason(bundle):
    model = load(bundle)
    own = square(COLOURS["red"], 77)
    dark = (own * 0.1).astype(np.uint8)
    found = model.predict([own, np.zeros_like(own), 255 - own, dark])
    assert [row.label for row in found] == ["red", None, None, None]
    assert [row.reasons[:1] != () for row in found] == [False, True, True, True]
    assert found[1].reasons == ("it is blank, or nearly so",)
    assert "darker" in found[3].reasons[0] or "blank" in found[3].reasons[0]
    assert {row.answer for row in found[1:]} == {NONE}


def test_colour_is_seen_by_a_model_of_gray_images(tmp_path):
    """And gray ones are answered to the bit as if they had been decoded to gray at once."""
    gray = np.stack([square(colour, i) for colour in COLOURS.values() for i in range(12)])[..., :1]
    model = make_gray_bundle(gray)
    assert model.card.preprocessing.channels == 1
    one = np.asarray(Image.fromarray(gray[3, ..., 0]).resize((50, 40)))
    Image.fromarray(one).save(tmp_path / "gray.png")
    Image.fromarray(one).convert("RGB").save(tmp_path / "rgb.png")
    tinted = np.stack([one, one // 2, one // 4], -1)
    found = model.predict([tmp_path / "gray.png", tmp_path / "rgb.png", tinted])
    assert "in colour" in found[2].reasons[0]
    assert not any("in colour" in reason for row in found[:2] for reason in row.reasons)
    small = Image.fromarray(one).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    expected, _ = model.answers(np.asarray(small)[None, ..., None])
    for row in found[:2]:
        assert [*row.probabilities.values()] == pytest.approx(expected[0].tolist(), abs=1e-6)
