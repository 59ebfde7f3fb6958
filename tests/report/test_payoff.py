"""Where a floor does better than a method, its run says so."""

import pytest

from calibre.experiment import read
from calibre.methods.calibre import Calibre
from calibre.methods.fedavg import FedAvg
from calibre.report.floors import FLOORS
from calibre.report.metrics import ByGroup, Summary
from calibre.report.payoff import warnings
from calibre.sections import PersonalSettings


def reached(mean):
    return ByGroup(train=Summary(clients=5, mean=mean), novel=Summary(clients=0))


FROZEN, TUNED = PersonalSettings(), PersonalSettings(finetune_encoder=True)


@pytest.mark.parametrize("local", [0.5, 0.605])
def test_a_method_that_is_not_worse_beyond_noise_needs_no_word(local):
    assert warnings(Calibre(), FROZEN, reached(0.6), {"local": reached(local)}) == []


@pytest.mark.parametrize("best", FLOORS)
def test_the_best_floor_is_named_with_points_and_what_to_try(best):
    floors = {name: reached(0.62) for name in FLOORS} | {best: reached(0.654)}
    (text,) = warnings(read(None, ["method.name=pfl-ssl"]).method, FROZEN, reached(0.6), floors)
    assert f"{FLOORS[best].phrase} is better by 5.4 points" in text
    assert "2.0 points" not in text
    assert "personal.finetune_encoder=true" in text
    assert "method.labels.weight=1" in text


def test_what_is_done_already_is_not_advised():
    floors = {"local": reached(0.7)}
    (text,) = warnings(Calibre(), TUNED, reached(0.6), floors)
    assert "finetune" not in text
    assert "labels.weight" not in text
    (text,) = warnings(read(None, ["method.name=fedavg-ft"]).method, FROZEN, reached(0.6), floors)
    assert "labels.weight" not in text


def test_without_clients_that_trained_there_is_nothing_to_say():
    assert warnings(FedAvg(), FROZEN, reached(None), {"local": reached(None)}) == []


def test_without_floors_there_is_nothing_to_compare_with():
    assert warnings(FedAvg(), FROZEN, reached(0.1), {}) == []


def test_methods_that_do_not_train_together_are_not_judged_by_it():
    alone = read(None, ["method.name=untrained"]).method
    assert warnings(alone, FROZEN, reached(0.4), {"local": reached(0.7)}) == []
