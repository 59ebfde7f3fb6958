"""Bounds and robust means, against naive loops; and a client that does harm among five."""

import math
import statistics

import pytest
import torch

from calibre.engine import rounds
from calibre.engine.checkpoints import Checkpoints
from calibre.engine.robust import Robust, combined
from calibre.errors import UserError
from calibre.experiment import read
from calibre.methods.calibre import Calibre
from calibre.methods.method import ServerState, Update
from calibre.methods.pfl_ssl import PflSsl
from calibre.report import events
from calibre.report.events import Bounded
from calibre.sections import RobustSettings
from calibre.tensors import EmptyMeanError, read_file
from tests.deploy.local_grid import LocalGrid
from tests.deploy.test_bits import gathered, on_grid, shares
from tests.engine.hostile import HARMFUL, SENT, outside
from tests.methods.helpers import equal, results

FIVE = ("method.name=tests.engine.hostile:Hostile", "training.clients_per_round=5")


def model(*values: float, counter: int = 3) -> dict[str, torch.Tensor]:
    return {
        "encoder.norm.num_batches_tracked": torch.tensor(counter),
        "encoder.weight": torch.tensor(values[:2]),
        "head.bias": torch.tensor(values[2:]),
    }


START = ServerState(0, {"model": model(1.0, 2.0, 3.0)})


def sent(*changes: tuple[float, float, float], **fields) -> list[Update]:
    return [
        Update(i, 10 + i, {"model": model(1 + a, 2 + b, 3 + c, counter=10 * i)}, **fields)
        for i, (a, b, c) in enumerate(changes)
    ]


CHANGES = [(3.0, 4.0, 0.0), (0.0, 0.0, 1.0), (0.0, 2.0, 0.0), (0.5, 0.0, 0.0), (60.0, 0.0, -80.0)]


def test_a_change_is_cut_to_a_multiple_of_the_rounds_median():
    robust = Robust(RobustSettings(bound=1.5))
    found = list(robust.defend(START, sent(*CHANGES)))
    lengths = [math.sqrt(sum(part**2 for part in change)) for change in CHANGES]
    most = 1.5 * statistics.median(lengths)
    assert most == 3
    for update, change, length in zip(found, CHANGES, lengths, strict=True):
        expected = [part * min(1, most / length) for part in change]
        told = update.shared["model"]
        assert told["encoder.weight"].tolist() == pytest.approx([1 + expected[0], 2 + expected[1]])
        assert told["head.bias"].tolist() == pytest.approx([3 + expected[2]])
        assert told["encoder.norm.num_batches_tracked"] == 20  # the median of all
    assert robust.report() == Bounded(median_norm=2.0, bounded={0: 5.0, 4: 100.0})
    assert [update.samples for update in found] == [10, 11, 12, 13, 14]


def test_what_is_within_the_bound_keeps_its_bits():
    before = sent(*CHANGES[:4])
    after = Robust(RobustSettings(bound=1e6)).defend(START, before)
    for one, other in zip(before, after, strict=True):
        for name in ("encoder.weight", "head.bias"):
            assert torch.equal(one.shared["model"][name], other.shared["model"][name])


def test_numbers_beside_the_model_are_brought_within_the_same_multiple():
    told = [0.5, 1e-12, math.nan, 0.7, 2.0]
    updates = [
        Update(u.client, u.samples, u.shared, {"divergence": rate})
        for u, rate in zip(sent(*CHANGES), told, strict=True)
    ]
    found = Robust(RobustSettings(bound=2)).defend(START, updates)
    rates = [update.numbers["divergence"] for update in found]
    assert rates[:2] + rates[3:] == pytest.approx([0.5, 0.3, 0.7, 1.2])  # the median is 0.6
    assert math.isnan(rates[2])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 11])
@pytest.mark.parametrize(("mean", "trim"), [("median", 0.1), ("trimmed", 0.1), ("trimmed", 0.3)])
def test_the_mean_of_each_number_leaves_out_its_extremes(count, mean, trim):
    random = torch.Generator().manual_seed(count)
    values = torch.randn(count, 3, generator=random).tolist()
    robust = Robust(RobustSettings(mean=mean, trim=trim))
    (found,) = robust.defend(START, sent(*values))
    for i, start in enumerate((1, 2, 3)):
        column = sorted(row[i] for row in values)
        if mean == "median":
            expected = statistics.median(column)
        else:
            cut = min(math.ceil(trim * count), (count - 1) // 2)
            expected = statistics.fmean(column[cut : count - cut])
        told = found.shared["model"]
        value = [*told["encoder.weight"].tolist(), *told["head.bias"].tolist()][i]
        assert value == pytest.approx(start + expected, abs=1e-6)


def test_a_row_of_a_head_is_taken_over_the_clients_that_hold_its_class():
    holds = [[1, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0]]
    heads = torch.tensor([[1.0, 5.0, 9.0], [2.0, 6.0, 9.0], [30.0, 8.0, 9.0], [40.0, 70.0, 9.0]])
    updates = [
        Update(i, 1, {"model": {"head.bias": heads[i], "head.weight": heads[i][:, None] * 2},
                      "held": {"classes": torch.tensor(holds[i])}})
        for i in range(4)
    ]  # fmt: skip
    before = {"head.bias": torch.zeros(3), "head.weight": torch.zeros(3, 1)}
    found = combined(updates, trim=1)
    new = PflSsl().aggregate(ServerState(0, {"model": before}), [found])
    # class 0: the median of 1, 2, 30; class 1: that of 5 and 8; class 2: nobody's, so as it was
    assert new.model["head.bias"].tolist() == [2.0, 6.5, 0.0]
    assert new.model["head.weight"].flatten().tolist() == [4.0, 13.0, 0.0]


def test_a_second_network_is_taken_over_the_clients_that_have_labels():
    """Most clients have none and send it back as it was: it moves all the same."""
    moved, holds = [1.0, 3.0, 0.0, 0.0, 0.0], [[1, 0], [0, 1], [0, 0], [0, 0], [0, 0]]
    updates = [
        Update(i, 1, {"model": {"encoder.w": torch.tensor([value]), "head.bias": torch.zeros(2),
                                "second.n": torch.tensor(int(value)),
                                "second.encoder.w": torch.tensor([value])},
                      "held": {"classes": torch.tensor(held)}})
        for i, (value, held) in enumerate(zip(moved, holds, strict=True))
    ]  # fmt: skip
    model = combined(updates, trim=2).shared["model"]
    assert model["second.encoder.w"].tolist() == [2.0]
    assert model["second.n"] == 1  # the lower median of 1 and 3
    assert model["encoder.w"].tolist() == [0.0]  # of everybody


def test_calibre_steps_to_the_robust_mean():
    (one,) = Robust(RobustSettings(mean="median")).defend(
        START, sent(*CHANGES, numbers={"divergence": 0.1})
    )
    new = Calibre().aggregate(START, [one])
    assert new.model["encoder.weight"].tolist() == [1.5, 2.0]
    assert new.round == 1


def test_nobodys_update_has_no_mean():
    with pytest.raises(EmptyMeanError):
        Robust(RobustSettings(mean="median")).defend(START, [])


@pytest.mark.parametrize("name", ["scaffold", "qffl", "fedproto", "fedema", "local"])
@pytest.mark.parametrize("robust", [{"bound": 3}, {"mean": "median"}])
def test_a_method_that_needs_more_than_a_mean_is_refused(name, robust, tmp_path):
    with pytest.raises(UserError, match=r"robust\..*the server of .* take one of calibre, "):
        rounds.run(read(method=name, robust=robust), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_noise_has_its_own_bound(tmp_path):
    with pytest.raises(UserError, match=r"robust\.mean and privacy\.clip"):
        rounds.run(read(privacy={"clip": 1}, robust={"mean": "median"}), tmp_path / "run")


def test_robustness_that_is_off_changes_no_hash():
    assert read(robust={"trim": 0.3}).hash() == read().hash()
    assert len({read(robust=r).hash() for r in ({}, {"bound": 3}, {"mean": "median"})}) == 3


@pytest.mark.parametrize(("harm", "last"), [("million", 1), ("replay", 3)])
def test_without_a_defence_one_client_of_five_drags_the_model_along(tiny, tmp_path, harm, last):
    rounds.run(tiny(*FIVE, f"method.harm={harm}", f"training.rounds={last}"), tmp_path)
    assert outside(read_file(tmp_path / "model.safetensors"), last) > 10


@pytest.mark.parametrize("harm", ["million", "replay"])
@pytest.mark.parametrize("mean", ["median", "trimmed"])
def test_one_client_of_five_no_longer_decides_the_model(tiny, tmp_path, harm, mean):
    """Every number of the model is one that honest clients agree with."""
    SENT.clear()
    experiment = tiny(*FIVE, f"method.harm={harm}", f"robust.mean={mean}")
    metrics = rounds.run(experiment, tmp_path / "embedded")
    model = read_file(tmp_path / "embedded" / "model.safetensors")
    assert outside(model, 3) == 0
    assert metrics.failures == 0


def test_a_bound_keeps_a_million_times_an_update_within_that_of_others(tiny, tmp_path):
    SENT.clear()
    experiment = tiny(*FIVE, "method.harm=million", "robust.bound=2", "engine.keep=3")
    rounds.run(experiment, tmp_path)
    log = [event for event in events.read(tmp_path / "events.jsonl") if event.event == "round"]
    states = {c.state.round: c.state for c in Checkpoints(tmp_path / "checkpoints").whole(print)}
    for round_ in (2, 3):
        assert list(log[round_ - 1].robust.bounded) == [HARMFUL]
        new, old = states[round_].model, states[round_ - 1].model
        lengths = [_distance(SENT[round_, client], old) for client in range(5) if client != HARMFUL]
        assert _distance(new, old) <= 2 * statistics.median([*lengths, math.inf])


def _distance(one, other) -> float:
    return math.sqrt(
        sum(float((one[n].double() - other[n].double()).square().sum())
            for n in one if one[n].is_floating_point())
    )  # fmt: skip


@pytest.mark.parametrize("robust", ["robust.mean=median", "robust.bound=1"])
def test_a_grid_and_a_resumed_run_give_the_same_bits(tiny, tmp_path, robust):
    experiment = tiny(robust, "method.labels.weight=1", "engine.sites=3")
    rounds.run(experiment, tmp_path / "embedded")
    on_grid(experiment, tmp_path, LocalGrid(shares(tmp_path / "nodes")))
    assert gathered(tmp_path) == results(tmp_path / "embedded")


def test_a_site_that_sends_its_last_reply_again_does_not_decide_the_model(tiny, tmp_path):
    from calibre.deploy.client import app
    from tests.deploy.test_grid import clients_of

    SENT.clear()
    first = []

    def fail(node, message):
        if message.metadata.message_type != "train" or clients_of(message) != [HARMFUL]:
            return None
        reply = app(message, grid.contexts[node])
        first.append(reply.content)
        reply.content = first[0]
        return reply

    grid = LocalGrid(shares(tmp_path / "nodes"), fail=fail)
    experiment = tiny(*FIVE, "robust.mean=median", "engine.sites=3")
    on_grid(experiment, tmp_path, grid)
    assert len(first) == 3
    assert not equal(SENT[1, HARMFUL], SENT[3, HARMFUL])
    assert outside(read_file(tmp_path / "run" / "model.safetensors"), 3) == 0
