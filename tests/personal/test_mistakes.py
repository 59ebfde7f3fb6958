import io
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.metrics import confusion_matrix, recall_score

from calibre.errors import UserError
from calibre.personal.assemble import assemble
from calibre.personal.bundle import load
from calibre.personal.card import Mistakes
from calibre.personal.card_text import MATRIX, markdown
from calibre.personal.judge import problems
from calibre.personal.making import Making
from calibre.personal.mistakes import FEW, PICTURED, SIDE, answered, contact_sheet
from calibre.personal.outside import fit_prototypes
from tests.personal.made_bundle import COLOURS, make_bundle, making, square

NAMES = [*COLOURS]


def muddled() -> Making:
    """A client some of whose test images have another's label, so that its model is wrong."""
    made = making(per_class=20, test=30)
    labels = made.test.labels.clone()
    labels[::7] = (labels[::7] + 1) % 3
    return replace(made, test=made.test._replace(labels=labels))


def as_matrix(found: Mistakes) -> np.ndarray:
    counts = np.zeros((3, 3), int)
    for each in found.classes:
        counts[NAMES.index(each.name), NAMES.index(each.name)] = each.correct
    for pair in found.confused:
        counts[NAMES.index(pair.truth), NAMES.index(pair.answer)] = pair.images
    return counts


def test_recall_and_confusions_are_those_of_scikit_learn():
    made = muddled()
    card = assemble(made).card
    found = card.mistakes
    answers = F.linear(made.test.features, *made.head).argmax(1)
    assert found.how == "test images"
    assert found.images == len(made.test.labels) >= FEW
    assert np.array_equal(as_matrix(found), confusion_matrix(made.test.labels, answers))
    expected = recall_score(made.test.labels, answers, average=None)
    assert [each.correct / each.images for each in found.classes] == pytest.approx([*expected])
    assert sum(each.correct for each in found.classes) == card.accuracy.correct
    for each in found.classes:
        assert each.low < each.correct / each.images < each.high
    assert [pair.images for pair in found.confused] == sorted(
        (pair.images for pair in found.confused), reverse=True
    )


def test_few_test_images_give_way_to_held_out_ones():
    made = making(per_class=20, test=3)
    found = assemble(made).card.mistakes
    held = made.held_out
    assert found.how == "cross-validation"
    assert found.images == len(held.labels) == 60
    assert np.array_equal(as_matrix(found), confusion_matrix(held.labels, held.logits.argmax(1)))
    one = assemble(making(per_class=2, test=9)).card.mistakes  # fewer are held out than tested
    assert one.how == "test images"
    alone = assemble(making(per_class=20, test=3, usable=False)).card.mistakes
    assert alone.how == "test images"


def test_the_surest_mistakes_are_pictured_first():
    made = muddled()
    bundle = assemble(made)
    temperature, limit = bundle.card.calibration.temperature, bundle.card.outside.limit
    sure, answers = (F.linear(made.test.features, *made.head) / temperature).softmax(1).max(1)
    prototypes, usual = fit_prototypes(*made.labelled), bundle.card.usual
    seen = answered(made, temperature, prototypes, usual)
    accepted = [
        not problems(made.test_images[row : row + 1].numpy(), usual)[0]
        and float(prototypes.distance(made.test.features[row : row + 1])) <= limit
        for row in range(len(answers))
    ]
    assert seen.refused(limit).tolist() == [not each for each in accepted]
    wrong = sure[(answers != made.test.labels) & torch.tensor(accepted)].tolist()
    told = [each for each in bundle.card.mistakes.pictured if each.kind == "wrong class"]
    assert [each.probability for each in told] == pytest.approx(
        sorted(wrong, reverse=True)[:PICTURED]
    )
    assert told


def test_pictures_are_the_images_that_are_named():
    """The first cell of the sheet is the image of the first mistake, pixel by pixel."""
    made = muddled()
    bundle = assemble(made)
    first = bundle.card.mistakes.pictured[0]
    answers = F.linear(made.test.features, *made.head).softmax(1)
    sure, said = (F.linear(made.test.features, *made.head)
                  / bundle.card.calibration.temperature).softmax(1).max(1)  # fmt: skip
    matching = [
        row
        for row in range(len(answers))
        if float(sure[row]) == pytest.approx(first.probability, abs=1e-6)
        and NAMES[int(said[row])] == first.answer
        and NAMES[int(made.test.labels[row])] == first.truth
    ]
    cell = np.asarray(Image.open(io.BytesIO(bundle.pictures)))[8 : 8 + SIDE, 8 : 8 + SIDE]
    small = cell[SIDE // 24 :: SIDE // 12, SIDE // 24 :: SIDE // 12]  # one of each 8 x 8 block
    assert any(np.array_equal(small, made.test_images[row].numpy()) for row in matching)


def test_own_images_refused_and_made_up_ones_accepted_are_told():
    made = making(per_class=30, test=30)
    spoiled = made.test_images.clone()
    spoiled[:5] = 255 - spoiled[:5]
    card = assemble(replace(made, test_images=spoiled)).card
    kinds = Counter(each.kind for each in card.mistakes.pictured)
    assert kinds["refused"] >= 5
    red = next(each for each in card.mistakes.classes if each.name == "red")
    assert red.refused >= 5
    assert all(each.answer is None for each in card.mistakes.pictured if each.kind == "refused")
    accepted = sum(kind.accepted for kind in card.outside.kinds)
    assert kinds["accepted"] == min(accepted, PICTURED)


def test_a_sheet_of_any_images():
    gray = np.full((10, 20, 1), 7, np.uint8)
    sheet = Image.open(io.BytesIO(contact_sheet([gray, square((9, 99, 199), 1)] * 6)))
    pixels = np.asarray(sheet)
    assert sheet.mode == "RGB"
    assert pixels[8 + 20, 8 + 40].tolist() == [7, 7, 7]
    assert sheet.height > 2 * SIDE  # a second row
    assert sheet.info == {}


def test_the_card_says_it_with_a_matrix_or_with_pairs():
    card = assemble(muddled()).card
    text = markdown(card)
    assert "## What it gets wrong" in text
    assert "Rows are what an image is" in text
    assert "![the surest mistakes](mistakes.png)" in text
    classes = [each.model_copy(update={"name": f"c{i}"}) for i in range(MATRIX + 1)
               for each in card.mistakes.classes[:1]]  # fmt: skip
    many = card.mistakes.model_copy(update={"classes": tuple(classes)})
    assert "Most often mixed up" in markdown(card.model_copy(update={"mistakes": many}))
    none = card.mistakes.model_copy(update={"confused": ()})
    assert "No image was taken" in markdown(card.model_copy(update={"mistakes": none}))


def test_a_bundle_is_whole_without_its_pictures_but_not_with_others(tmp_path):
    made = make_bundle(per_class=20, test=3)
    assert made.pictures is not None
    made.save(tmp_path / "b")
    assert load(tmp_path / "b").pictures == made.pictures
    load(tmp_path / "b").save(tmp_path / "b")  # it is known for a bundle
    (tmp_path / "b" / "mistakes.png").write_bytes(b"another")
    with pytest.raises(UserError, match=r"mistakes\.png is damaged"):
        load(tmp_path / "b")
    (tmp_path / "b" / "mistakes.png").unlink()
    assert load(tmp_path / "b").pictures is None
