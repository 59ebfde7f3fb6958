import copy
import dataclasses
import math

import pytest
import torch

from calibre.engine import rounds
from calibre.errors import UserError
from calibre.methods.fedu import layer_distance
from calibre.tensors import belongs
from tests.methods.helpers import close, equal, host, parts, stopped_and_whole

SIZES = (
    "method.objective.hidden=8",
    "method.objective.projection=4",
    "method.objective.predictor=6",
)
FEDU = ("method.name=calibre.methods.fedu:FedU", *SIZES)
PFL_BYOL = (
    "method.name=pfl-ssl", "method.objective.name=byol", "method.objective.target_init=local",
    *SIZES[2:],
)  # fmt: skip
ALWAYS_GLOBAL, ALWAYS_OWN = "method.mu_th=1e9", "method.mu_th=0"


def part(tensors, *names):
    return {name: tensor for name, tensor in tensors.items() if belongs(name, names)}


def one_round(home, state, clients):
    updates = [home.update(state, client) for client in clients]
    return home.load("method").method.aggregate(state, updates), updates


def start_of(home, state, client, monkeypatch):
    """The network as it is when training begins, once the round was set up; and what was kept."""
    seen = {}

    def instead(site, sgd):
        site.network.begin_round(None)
        seen.update(copy.deepcopy(site.network.state_dict()))
        return {"loss": 0.0}

    with monkeypatch.context() as patch:
        patch.setattr("calibre.methods.self_supervised.train_objective", instead)
        kept = home.keep.clients.load(client, state.round)
        site = home.site("method", state, client)
        home.load("method").method.local_update(state, kept, site)
    return seen


@pytest.fixture
def second_round(tiny, tmp_path):
    """A host whose client 0 has trained once, and the state after that round."""

    def make(*changes):
        home = host(tiny(*FEDU, *changes), tmp_path)
        state, updates = one_round(home, home.initial_state(), (0, 1, 2))
        return home, state, updates[0]

    return make


def test_the_first_time_everything_is_received(tiny, tmp_path, monkeypatch):
    home = host(tiny(*FEDU, ALWAYS_OWN), tmp_path)
    state = home.initial_state()
    other = {n: t + 1 if t.is_floating_point() else t for n, t in state.model.items()}
    state = dataclasses.replace(state, groups={"model": other})  # not the common start
    begun = start_of(home, state, 3, monkeypatch)
    assert equal(part(begun, "encoder", "projector", "predictor"), other)
    for name, tensor in part(other, "encoder", "projector").items():
        assert torch.equal(begun[f"target.{name}"], tensor)


@pytest.mark.parametrize("own", [False, True])
def test_encoder_and_projector_are_global_the_target_is_own_and_the_threshold_decides_the_predictor(
    second_round, monkeypatch, own
):
    home, state, update = second_round(ALWAYS_OWN if own else ALWAYS_GLOBAL)
    begun = start_of(home, state, 0, monkeypatch)
    mine = update.shared["model"]
    assert not close(part(mine, "encoder"), part(state.model, "encoder"))
    assert not close(part(mine, "predictor"), part(state.model, "predictor"))
    for name in ("encoder", "projector"):
        assert equal(part(begun, name), part(state.model, name))
    expected = mine if own else state.model
    assert equal(part(begun, "predictor"), part(expected, "predictor"))
    assert begun.pop("target.participations") == 2
    kept = part(update.personal, "target")
    assert kept.pop("target.participations") == 1
    assert equal(part(begun, "target"), kept)


def test_the_threshold_is_the_distance_of_the_encoders(second_round):
    home, state, update = second_round()
    reported = home.update(state, 0).report["distance"]
    convolutions = [
        name for name in state.model if name.startswith("encoder.") and "weight" in name
        and state.model[name].dim() == 4
    ]  # fmt: skip
    assert len(convolutions) == 4  # of the small encoder
    total = 0.0
    for name in convolutions:
        there, here = state.model[name].flatten(), update.shared["model"][name].flatten()
        total += math.dist(there.tolist(), here.tolist())
    assert reported == pytest.approx(total / 4, rel=1e-5)
    assert "distance" not in home.update(state, 4).report  # it has nothing to be far from


@pytest.mark.parametrize(("factor", "own"), [(0.999, True), (1.001, False)])
def test_below_the_threshold_means_global(second_round, monkeypatch, tiny, factor, own):
    home, state, update = second_round()
    distance = home.update(state, 0).report["distance"]
    sharp = host(tiny(*FEDU, f"method.mu_th={factor * distance}"), home.keep)
    begun = start_of(sharp, state, 0, monkeypatch)
    expected = update.shared["model"] if own else state.model
    assert equal(part(begun, "predictor"), part(expected, "predictor"))


def test_the_distance_counts_weights_of_layers_of_the_encoder_only():
    zero = {
        "encoder.conv.weight": torch.zeros(2, 1, 1, 2),
        "encoder.deep.conv.weight": torch.zeros(1, 2),
        "encoder.norm.weight": torch.zeros(2),
        "encoder.norm.running_var": torch.zeros(2),
        "encoder.norm.num_batches_tracked": torch.tensor(0),
        "projector.0.weight": torch.zeros(2, 2),
    }
    other = {name: tensor + 100 for name, tensor in zero.items()}
    other["encoder.conv.weight"] = torch.tensor([1.0, 1.0, 1.0, 1.0]).reshape(2, 1, 1, 2)
    other["encoder.deep.conv.weight"] = torch.tensor([[3.0, 4.0]])
    assert layer_distance(zero, other) == pytest.approx((2 + 5) / 2)
    assert layer_distance(zero, zero) == 0


def test_always_global_is_pfl_byol_bit_for_bit(tiny, tmp_path):
    one = host(tiny(*FEDU, ALWAYS_GLOBAL), tmp_path / "a")
    other = host(tiny(*PFL_BYOL), tmp_path / "b")
    a, b = one.initial_state(), other.initial_state()
    for clients in ((0, 1), (0, 2), (0, 1)):
        a, _ = one_round(one, a, clients)
        b, _ = one_round(other, b, clients)
        assert equal(a.model, b.model)


def test_online_parts_travel_and_memory_stays(tiny, tmp_path):
    home = host(tiny(*FEDU), tmp_path)
    state = home.initial_state()
    assert state.groups.keys() == {"model"}
    update = home.update(state, 0)
    assert update.shared.keys() == {"model"}
    assert parts(update.shared["model"]) == {"encoder", "projector", "predictor"}
    assert update.shared["model"].keys() == state.model.keys()
    assert parts(update.personal) == {"target", "own"}
    own = {name.removeprefix("own."): t for name, t in part(update.personal, "own").items()}
    assert equal(own, part(update.shared["model"], "encoder", "predictor"))
    assert update.samples == 40  # all images: training needs no labels


def test_an_update_is_a_function_of_its_inputs(second_round):
    home, state, _ = second_round()
    first = home.update(state, 0)
    home.update(state, 3)  # another client uses the same network in between
    again = home.update(state, 0)
    assert equal(first.shared["model"], again.shared["model"])
    assert equal(first.personal, again.personal)
    assert first.report == again.report


def test_heads_stand_on_the_global_encoder(second_round, tiny, tmp_path):
    """pFL-SSL, whose clients keep no encoder, makes the same heads of the same model."""
    home, state, _ = second_round(ALWAYS_OWN)
    plain = host(tiny(*PFL_BYOL), tmp_path / "plain")
    for mine, expected in zip(
        home.personalize(state, "method", [0, 4, 6]),
        plain.personalize(state, "method", [0, 4, 6]),
        strict=True,
    ):
        assert equal(mine.tensors, expected.tensors)
        assert mine.accuracy == expected.accuracy


def test_a_stopped_run_goes_on_with_the_same_bits(tiny, tmp_path):
    stopped, whole = stopped_and_whole(tiny(*FEDU, ALWAYS_OWN), tmp_path)
    assert stopped == whole


def test_memory_makes_a_difference(tiny, tmp_path):
    models = []
    for threshold in (ALWAYS_OWN, ALWAYS_GLOBAL):
        folder = tmp_path / threshold
        assert rounds.run(tiny(*FEDU, threshold), folder).failures == 0
        models.append((folder / "model.safetensors").read_bytes())
    assert models[0] != models[1]


def test_another_objective_or_start_of_the_target_is_refused(tiny):
    name = FEDU[0]
    assert tiny(name, "method.objective=byol").method.objective.target_init == "local"
    assert tiny(*FEDU).method.objective.hidden == 8
    for objective in ("method.objective=simclr", "method.objective.name=simclr"):
        with pytest.raises(UserError, match=r"method\.objective = 'simclr': .*'byol'"):
            tiny(name, objective)
    with pytest.raises(UserError, match=r"no method\.objective called 'byl': did you mean 'byol'"):
        tiny(name, "method.objective=byl")
    for start in ("reset", "average"):
        with pytest.raises(UserError, match=rf"target_init = '{start}': .*leave it 'local'"):
            tiny(name, f"method.objective.target_init={start}")
