import dataclasses
import math

import pytest
import torch

from calibre.errors import UserError
from calibre.methods.fedema import FedEMA, divergence, mixture
from calibre.methods.method import ServerState, Update
from calibre.tensors import grouped, prefixed
from tests.methods.helpers import close, equal, host, parts, stopped_and_whole
from tests.methods.test_fedu import PFL_BYOL, SIZES, one_round, part, start_of

FEDEMA = ("method.name=calibre.methods.fedema:FedEMA", *SIZES)
ONLINE = ("encoder", "projector", "predictor")


@pytest.fixture
def second_round(tiny, tmp_path):
    """A host whose clients 0, 1 and 2 have trained once, the state after it, their updates."""

    def make(*changes):
        home = host(tiny(*FEDEMA, *changes), tmp_path)
        return home, *one_round(home, home.initial_state(), (0, 1, 2))

    return make


def with_groups(state, **groups):
    return dataclasses.replace(state, groups={**state.groups, **groups})


def scalar(value):
    return torch.tensor(value, dtype=torch.float64)


def test_with_tau_zero_it_is_pfl_byol_bit_for_bit(tiny, tmp_path):
    one = host(tiny(*FEDEMA, "method.tau=0"), tmp_path / "a")
    other = host(tiny(*PFL_BYOL), tmp_path / "b")
    a, b = one.initial_state(), other.initial_state()
    for clients in ((0, 1), (0, 2), (0, 1)):
        a, updates = one_round(one, a, clients)
        b, plain = one_round(other, b, clients)
        assert equal(a.model, b.model)
        for mine, expected in zip(updates, plain, strict=True):
            assert equal(part(mine.personal, "target"), part(expected.personal, "target"))
            assert mine.report["mu"] == 0
    assert {client: t.item() for client, t in a.groups["lambda"].items()} == dict.fromkeys("012", 0)


def test_the_first_time_everything_is_received(tiny, tmp_path, monkeypatch):
    home = host(tiny(*FEDEMA), tmp_path)
    state = home.initial_state()
    other = {n: t + 1 if t.is_floating_point() else t for n, t in state.model.items()}
    state = with_groups(state, model=other, **{"lambda": {"3": scalar(1e9)}})
    begun = start_of(home, state, 3, monkeypatch)
    assert equal(part(begun, *ONLINE), other)
    for name, tensor in part(other, "encoder", "projector").items():
        assert torch.equal(begun[f"target.{name}"], tensor)
    assert home.update(state, 3).report["mu"] == 0


def test_lambda_is_tau_over_the_distance_of_the_parameters_from_the_new_mean(second_round):
    home, state, updates = second_round("method.tau=0.6")
    names = [name for name, _ in home.load("method").network.named_parameters()]
    assert state.groups["lambda"].keys() == {"0", "1", "2"}
    for update in updates:
        sent, total = update.shared["model"], 0.0
        for name in names:
            if name.startswith("encoder."):
                pairs = zip(state.model[name].flatten(), sent[name].flatten(), strict=True)
                total += sum((g.item() - k.item()) ** 2 for g, k in pairs)
        found = state.groups["lambda"][str(update.client)]
        assert found.item() == pytest.approx(0.6 / math.sqrt(total), rel=1e-9)


def test_at_the_first_distance_mu_is_tau_and_halfway_half_of_it(second_round):
    home, state, updates = second_round()
    for update in updates:
        assert home.update(state, update.client).report["mu"] == pytest.approx(0.7, rel=1e-12)
        sent = update.shared["model"]
        nearer = {
            n: (t + sent[n]) / 2 if t.is_floating_point() else t for n, t in state.model.items()
        }
        mu = home.update(with_groups(state, model=nearer), update.client).report["mu"]
        assert mu == pytest.approx(0.35, rel=1e-5)


def test_online_parts_are_mixed_by_the_same_mu_and_the_target_is_own(second_round, monkeypatch):
    home, state, (update, *_) = second_round()
    raised = {n: t if t.is_floating_point() else t + 5 for n, t in state.model.items()}
    state = with_groups(state, model=raised)
    begun = start_of(home, state, 0, monkeypatch)
    own = update.shared["model"]
    mixed = set()
    for name, received in state.model.items():
        if received.is_floating_point():
            expected = 0.7 * own[name].double() + 0.3 * received.double()
            torch.testing.assert_close(begun[name].double(), expected, rtol=1e-6, atol=1e-7)
            if not torch.allclose(own[name], received):
                mixed.add((name.partition(".")[0], name.rpartition(".")[2]))
        else:
            assert begun[name] == max(own[name], received) == received
    assert {(p, "weight") for p in ONLINE} <= mixed  # there was something to mix, everywhere
    assert {("encoder", "running_var"), ("predictor", "running_mean")} <= mixed
    assert begun.pop("target.participations") == 2
    kept = part(update.personal, "target")
    assert kept.pop("target.participations") == 1
    assert equal(part(begun, "target"), kept)


def test_mu_ends_at_one_where_the_client_keeps_its_own_network(second_round, monkeypatch):
    home, state, (update, *_) = second_round()
    far = with_groups(state, **{"lambda": {"0": 2 * state.groups["lambda"]["0"]}})  # 2 tau > 1
    begun = start_of(home, far, 0, monkeypatch)
    own, counter = update.shared["model"], "num_batches_tracked"
    assert equal(
        {n: t for n, t in part(begun, *ONLINE).items() if not n.endswith(counter)},
        {n: t for n, t in own.items() if not n.endswith(counter)},
    )
    assert not close(own, state.model)
    assert home.update(far, 0).report["mu"] == 1


def test_a_mixture_is_exact_at_its_ends_and_counters_take_the_larger_value():
    own = {"w": torch.tensor([0.1, -3.7]), "n": torch.tensor(4), "other": torch.tensor(1.0)}
    received = {"w": torch.tensor([0.3, 1e-9]), "n": torch.tensor(2)}
    for mu, expected in ((0.0, received["w"]), (1.0, own["w"])):
        mixed = mixture(mu, own, received)
        assert mixed.keys() == {"w", "n"}
        assert torch.equal(mixed["w"], expected)
        assert mixed["n"] == 4
        assert mixed["n"].dtype == torch.int64
    quarter = mixture(0.25, own, received)["w"]
    torch.testing.assert_close(quarter, 0.25 * own["w"] + 0.75 * received["w"])


def fake(client, value, samples=10):
    sent = {
        "encoder.conv.weight": torch.tensor([value, 2 * value]),
        "encoder.norm.running_mean": torch.tensor([100 * value]),
        "encoder.norm.num_batches_tracked": torch.tensor(int(value)),
        "predictor.weight": torch.tensor([value]),
    }
    return Update(client, samples, {"model": sent})


def test_lambda_is_set_once():
    method, state = FedEMA(tau=0.5), ServerState(0, fake(0, 0.0).shared)
    state = method.aggregate(state, iter([fake(3, 1.0, samples=30), fake(11, 5.0)]))
    unit = math.sqrt(5)  # of the encoder's parameters per value; the mean is at 2
    assert state.model["predictor.weight"].item() == 2
    first = {"3": 0.5 / (1 * unit), "11": 0.5 / (3 * unit)}
    assert {c: t.item() for c, t in state.groups["lambda"].items()} == pytest.approx(first)
    again = method.aggregate(state, iter([fake(3, 8.0), fake(4, 2.0)]))
    assert again.round == 2
    later = {**first, "4": 0.5 / (3 * unit)}
    assert {c: t.item() for c, t in again.groups["lambda"].items()} == pytest.approx(later)
    assert state.groups["lambda"].keys() == first.keys()  # a state is a value


def test_the_divergence_is_of_parameters_of_the_encoder():
    one, other = fake(0, 1.0).shared["model"], fake(0, 4.0).shared["model"]
    assert divergence(one, other) == pytest.approx(math.hypot(3, 6))


def test_who_made_the_mean_alone_waits_for_its_lambda(tiny, tmp_path):
    home = host(tiny(*FEDEMA), tmp_path)
    state, _ = one_round(home, home.initial_state(), (0,))
    assert state.groups["lambda"] == {}
    state = dataclasses.replace(state, groups=grouped(prefixed(state.groups)))  # through a file
    state, updates = one_round(home, state, (0, 1))
    assert updates[0].report["mu"] == 0
    assert state.groups["lambda"].keys() == {"0", "1"}


def test_selective_mixes_only_with_the_round_just_before(second_round, tiny, monkeypatch):
    home, state, (update, *_) = second_round("method.selective=true")
    later, _ = one_round(home, state, (1, 2))  # client 0 pauses
    assert home.update(state, 0).report["mu"] == pytest.approx(0.7)
    assert home.update(later, 1).report["mu"] > 0
    home.keep.clients.discard(0, 2)  # what it just kept was only a trial
    always = host(tiny(*FEDEMA), home.keep)
    assert always.update(later, 0).report["mu"] > 0
    begun = start_of(home, later, 0, monkeypatch)
    assert equal(part(begun, *ONLINE), later.model)
    for name, tensor in part(later.model, "encoder", "projector").items():
        assert torch.equal(begun[f"target.{name}"], tensor)
    assert not close(update.shared["model"], later.model)


def test_online_parts_travel_and_memory_stays(second_round):
    home, state, (update, *_) = second_round()
    assert update.shared.keys() == {"model"}
    assert parts(update.shared["model"]) == set(ONLINE)
    assert parts(update.personal) == {"target", "own"}
    own = {name.removeprefix("own."): t for name, t in part(update.personal, "own").items()}
    assert own.pop("round") == 1
    assert equal(own, update.shared["model"])
    assert update.samples == 40  # all images: training needs no labels
    assert state.groups.keys() == {"model", "lambda"}
    expected = home.load("method").method.expected_update(state)
    assert expected.keys() == {"model"}
    assert expected["model"].keys() == update.shared["model"].keys()


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
    home, state, _ = second_round()
    plain = host(tiny(*PFL_BYOL), tmp_path / "plain")
    for mine, expected in zip(
        home.personalize(state, "method", [0, 4, 6]),
        plain.personalize(state, "method", [0, 4, 6]),
        strict=True,
    ):
        assert equal(mine.tensors, expected.tensors)
        assert mine.accuracy == expected.accuracy


def test_distances_do_not_depend_on_the_order_of_the_tensors():
    random = torch.Generator().manual_seed(0)
    one = {f"encoder.{i}.weight": torch.randn(3, 3, generator=random) for i in range(30)}
    other = {name: torch.randn(3, 3, generator=random) for name in one}
    backwards = dict(reversed(one.items()))
    assert divergence(one, other) == divergence(backwards, other)


@pytest.mark.parametrize("count", [1, 3])
def test_a_stopped_run_goes_on_with_the_same_bits(tiny, tmp_path, count):
    """With one client per round there is never a lambda, nor a group of them in a file."""
    experiment = tiny(*FEDEMA, f"training.clients_per_round={count}")
    stopped, whole = stopped_and_whole(experiment, tmp_path)
    assert stopped == whole


def test_mistakes_are_told(tiny):
    with pytest.raises(UserError, match=r"method\.tau = 1\.5"):
        tiny(*FEDEMA, "method.tau=1.5")
    with pytest.raises(UserError, match=r"target_init = 'reset': .*leave it 'local'"):
        tiny(*FEDEMA, "method.objective.target_init=reset")
