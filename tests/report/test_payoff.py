"""Where a floor does better than a method, its run says so."""

import pytest

from calibre.experiment import read
from calibre.methods.calibre import Calibre
from calibre.methods.fedavg import FedAvg
from calibre.report.floors import FLOORS
from calibre.report.metrics import ClientResult
from calibre.report.payoff import warnings
from calibre.sections import PersonalSettings


def rows(accuracy, floors, images=10_000, novel=False):
    """Five clients alike."""
    return [
        ClientResult(i, f"site-{i}", novel, 9, 0, images, 2, accuracy, floors) for i in range(5)
    ]


FROZEN, TUNED = PersonalSettings(), PersonalSettings(finetune_encoder=True)


@pytest.mark.parametrize("local", [0.5, 0.605])
def test_a_method_that_is_not_worse_beyond_noise_needs_no_word(local):
    assert warnings(Calibre(), FROZEN, rows(0.6, {"local": local})) == []


@pytest.mark.parametrize("best", FLOORS)
def test_the_best_floor_is_named_with_points_and_what_to_try(best):
    floors = dict.fromkeys(FLOORS, 0.62) | {best: 0.654}
    (text,) = warnings(read(None, ["method.name=pfl-ssl"]).method, FROZEN, rows(0.6, floors))
    assert f"has not paid off: on average {FLOORS[best].phrase} is better by 5.4 points (95" in text
    assert "2.0 points" not in text
    assert "personal.finetune_encoder=true" in text
    assert "method.labels.weight=1" in text


def test_what_is_done_already_is_not_advised():
    found = rows(0.6, {"local": 0.7})
    (text,) = warnings(Calibre(), TUNED, found)
    assert "finetune" not in text
    assert "labels.weight" not in text
    (text,) = warnings(read(None, ["method.name=fedavg-ft"]).method, FROZEN, found)
    assert "labels.weight" not in text
    assert "finetune" in text


def test_fine_tuning_is_not_advised_where_models_are_as_received():
    (text,) = warnings(FedAvg(), FROZEN, rows(0.6, {"local": 0.7}))
    assert "finetune" not in text


def test_without_clients_that_trained_there_is_nothing_to_say():
    assert warnings(FedAvg(), FROZEN, []) == []
    assert warnings(FedAvg(), FROZEN, rows(0.1, {"local": 0.9}, novel=True)) == []


def test_without_floors_there_is_nothing_to_compare_with():
    assert warnings(FedAvg(), FROZEN, rows(0.1, {})) == []


def test_methods_that_do_not_train_together_are_not_judged_by_it():
    alone = read(None, ["method.name=untrained"]).method
    assert warnings(alone, FROZEN, rows(0.4, {"local": 0.7})) == []


def test_few_test_images_establish_nothing_and_it_is_said():
    (text,) = warnings(FedAvg(), FROZEN, rows(0.6, {"local": 0.698}, images=1))
    assert "may not have paid off" in text
    assert "better by 9.8 points, but 5 test images: not established (95 % interval" in text
