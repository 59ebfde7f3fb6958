import re

import pytest
import torch

from calibre.engine import rounds
from calibre.engine.plausible import GROWTH, check_size
from calibre.errors import UserError
from calibre.methods.fedavg import FedAvg
from calibre.report import events
from tests.engine.hostile import Hostile
from tests.methods.helpers import results

OLD = {"model": {"short": torch.full((4,), 1e-3), "long": torch.full((4,), 50.0)}}


@pytest.mark.parametrize(("name", "most"), [("short", GROWTH), ("long", 100 * GROWTH)])
def test_a_tensor_may_grow_by_a_large_factor_and_no_more(name, most):
    for factor, fine in ((0.99, True), (1.01, False)):
        grown = {"model": {**OLD["model"], name: torch.full((4,), factor * most / 2)}}
        if fine:
            check_size(grown, OLD)
        else:
            with pytest.raises(ValueError, match=f"'{name}' has a length of .* is not plausible"):
                check_size(grown, OLD)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_what_no_number_can_hold_is_refused(value):
    with pytest.raises(ValueError, match="tensor 'short'"):
        check_size({"model": {"short": torch.full((4,), value)}}, OLD)


def test_counters_and_new_tensors_are_no_matter_of_size():
    new = {"model": {"n": torch.tensor(2**60)}, "lambda": {"3": torch.tensor(1e30)}}
    assert check_size(new, OLD) is None


def test_a_client_whose_tensors_are_out_of_all_measure_is_named_and_left_out(tiny, tmp_path):
    five = (f"method.name={Hostile.__module__}:Hostile", "training.clients_per_round=5")
    metrics = rounds.run(tiny(*five, "method.harm=huge"), tmp_path)
    log = [e for e in events.read(tmp_path / "events.jsonl") if e.event == "failure"]
    assert [(e.round, e.client) for e in log] == [(1, 1), (2, 1), (3, 1)]
    assert all("its update was refused: tensor" in e.cause for e in log)
    assert metrics.failures == 3


class Exploding(FedAvg):
    """Whose server makes of sound updates a state that is none, in round 2."""

    title = "Exploding"
    name: str = "tests.engine.test_plausible:Exploding"

    def aggregate(self, server, updates):
        state = super().aggregate(server, updates)
        if server.round == 1 and FUSE:
            state.model["head.bias"].fill_(FUSE[0])
        return state


FUSE = [0.0]


@pytest.mark.parametrize("value", [1e20, float("nan")])
def test_a_state_that_is_not_sound_is_never_a_checkpoint(tiny, tmp_path, value):
    experiment = tiny(f"method.name={Exploding.__module__}:Exploding")
    FUSE[:] = [value]
    with pytest.raises(UserError, match=r"round 2 was not kept: .*'head.bias'.* took part") as told:
        rounds.run(experiment, tmp_path / "run")
    log = events.read(tmp_path / "run" / "events.jsonl")
    assert [e.round for e in log if e.event == "round"] == [1]
    assert len(re.findall(r"client-\d", str(told.value))) == 3
    FUSE.clear()
    rounds.run(experiment, tmp_path / "run")
    rounds.run(experiment, tmp_path / "whole")
    assert results(tmp_path / "run") == results(tmp_path / "whole")
