import re
from itertools import pairwise

import pytest
import torch

from calibre.personal.assemble import assemble
from calibre.personal.card_text import markdown
from calibre.personal.holdout import cross_validate, refit_heads
from calibre.personal.trust import wilson
from tests.personal.made_bundle import COLOURS, fit_head, make_bundle, making


def test_the_card_counts_what_there_is():
    card = make_bundle(per_class=12, test=10).card
    assert [(held.name, held.labelled, held.test) for held in card.classes] == [
        (name, 12, 10) for name in COLOURS
    ]
    found = card.accuracy
    assert found.images == 30
    assert found.value == found.correct / 30
    assert (found.low, found.high) == wilson(found.correct, 30)


def test_nothing_is_fitted_to_test_images():
    one, other = making(), making(test=4)
    assert (
        assemble(one).card.calibration.temperature == assemble(other).card.calibration.temperature
    )
    assert assemble(one).card.outside.limit == assemble(other).card.outside.limit
    assert torch.equal(assemble(one).predictor.means, assemble(other).predictor.means)


def test_without_test_images_accuracy_is_cross_validated():
    card = make_bundle(test=None).card
    assert card.accuracy.how == "cross-validation"
    assert card.accuracy.images == 36
    assert card.outside.own_images == 0
    assert all(row.own is None for row in card.outside.tradeoff)
    assert "by cross-validation" in markdown(card)


def test_the_trade_off_grows_both_ways():
    rows = make_bundle().card.outside.tradeoff
    assert [row.rate for row in rows] == [0.01, 0.02, 0.05, 0.1, 0.2]
    for before, after in pairwise(rows):
        assert after.limit <= before.limit
        assert after.own >= before.own
        assert after.foreign >= before.foreign
    assert rows[-1].foreign > 0.8


def test_a_rate_of_ones_own_is_in_the_table():
    outside = make_bundle(rate=0.15).card.outside
    assert outside.limit == next(row.limit for row in outside.tradeoff if row.rate == 0.15)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"per_class": 3}, "fewer than 5 labelled images of red, green, blue"),
        ({"test": 2}, "the accuracy may be anything from"),
        ({"per_class": 4}, "12 held-out images are too few to refuse 5 %"),
        ({"notes": ("two files were left out",)}, "two files were left out"),
    ],
    ids=["class", "interval", "limit", "note"],
)
def test_too_little_is_told(changes, said):
    card = make_bundle(**changes).card
    assert any(said in text for text in card.warnings)
    assert "**Warning:**" in markdown(card)


def test_enough_is_not_complained_about():
    assert make_bundle(per_class=12, test=20).card.warnings == ()


def test_two_images_a_class_leave_the_temperature_alone():
    card = make_bundle(per_class=2).card
    assert card.calibration.temperature == 1
    assert "6 held-out images are too few" in card.calibration.fitted


def test_one_image_a_class_still_makes_a_bundle():
    labelled = making(per_class=1).labelled
    head, held_out = fit_head(labelled, 3)
    card = make_bundle(per_class=1, head=head, held_out=held_out, test=None).card
    assert card.accuracy is None
    assert card.outside.limit is None
    assert any("too few images to estimate" in text for text in card.warnings)
    assert "No limit of the distance" in markdown(card)
    assert "Pixels are not looked at" in markdown(card)


def _settings():
    from calibre.sections import PersonalSettings

    return PersonalSettings()


def test_one_class_only_is_told():
    full = making()
    rows = full.labelled.labels == 0
    labelled = full.labelled._replace(
        features=full.labelled.features[rows], labels=full.labelled.labels[rows]
    )
    held = cross_validate(
        labelled.labels,
        refit_heads(labelled, full.head, _settings(), 0),
        torch.Generator().manual_seed(0),
    )
    card = make_bundle(labelled=labelled, held_out=held).card
    assert any("of one class" in text for text in card.warnings)


def test_answers_unlike_the_models_own_fit_no_temperature():
    card = make_bundle(usable=False, fitted="left at 1, for a reason").card
    assert card.calibration.temperature == 1
    assert card.calibration.images == 0
    assert "Temperature 1.000: left at 1, for a reason." in markdown(card)


def test_names_cannot_become_markup():
    hostile = ("<script>alert(1)</script>", "a | b\n# c", "[x](http://x)")
    text = markdown(make_bundle(client="`**x**`\n# y", classes=hostile).card)
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "\n# y" not in text
    assert "\n# c" not in text
    assert not re.search(r"(?<!\\)\[x", text)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "12 | 10 |" in line]
    assert len(rows) == 3


@pytest.mark.parametrize("key", ["client", "accuracy", "warnings", "files", "preprocessing"])
def test_the_hash_covers_every_key(key):
    card = make_bundle().card
    changed = card.model_dump(mode="json")
    changed[key] = {"client": "x", "accuracy": None, "warnings": ["x"], "files": {"a": "b"},
                    "preprocessing": changed["preprocessing"] | {"height": 13}}[key]  # fmt: skip
    assert type(card).model_validate(changed).digest() != card.digest()


def test_a_floor_that_does_better_is_told_with_what_that_rests_on():
    found = make_bundle().card
    own = found.accuracy.model_copy(update={"value": 0.6, "correct": 3, "images": 5})
    card = found.model_copy(update={"accuracy": own, "floors": {"local": 0.8, "majority": 0.2}})
    text = markdown(card)
    assert "- for comparison, local: 80.0 %, better by 20.0 points, but 5 test images: not" in text
    assert "- for comparison, majority: 20.0 %\n" in text
