"""Where a floor does better than a method, its run says so."""

import pytest

from calibre.experiment import read
from calibre.methods.calibre import Calibre
from calibre.methods.fedavg import FedAvg
from calibre.report.payoff import warnings


def reached(mean):
    return {"train": {"mean": mean}, "novel": {"mean": None}}


@pytest.mark.parametrize("local", [0.5, 0.605])
def test_a_method_that_is_not_worse_beyond_noise_needs_no_word(local):
    assert warnings(Calibre(), False, reached(0.6), {"local": reached(local)}) == []


def test_the_better_floors_are_named_with_points_and_what_to_try():
    floors = {"local": reached(0.654), "untrained": reached(0.62), "other": reached(0.1)}
    (text,) = warnings(Calibre(), False, reached(0.6), floors)
    assert "training alone is better by 5.4 points" in text
    assert "never trained is better by 2.0 points" in text
    assert "personal.finetune_encoder=true" in text
    assert "method.name=fedavg-ft" in text


def test_what_is_done_already_is_not_advised():
    floors = {"local": reached(0.7)}
    (text,) = warnings(Calibre(), True, reached(0.6), floors)
    assert "finetune" not in text
    (text,) = warnings(read(None, ["method.name=fedavg-ft"]).method, False, reached(0.6), floors)
    assert "fedavg-ft" not in text


def test_without_clients_that_trained_there_is_nothing_to_say():
    assert warnings(FedAvg(), False, reached(None), {"local": reached(None)}) == []


def test_methods_that_do_not_train_together_are_not_judged_by_it():
    alone = read(None, ["method.name=untrained"]).method
    assert warnings(alone, False, reached(0.4), {"local": reached(0.7)}) == []
