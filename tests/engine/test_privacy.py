"""Clipping, noise and their price, against closed forms and naive loops."""

import json
import math

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from calibre.engine import privacy, rounds
from calibre.engine.privacy import Mechanism, clip, epsilon, most_rounds, spent
from calibre.engine.selection import select
from calibre.errors import UserError
from calibre.experiment import read
from calibre.methods.method import ServerState, Update
from calibre.registry import METHODS
from calibre.report import events
from calibre.sections import PrivacySettings
from tests.methods.helpers import close


def model(*values: float) -> dict[str, torch.Tensor]:
    return {
        "encoder.norm.num_batches_tracked": torch.tensor(int(10 * values[0])),
        "encoder.weight": torch.tensor(values[:2]),
        "head.bias": torch.tensor(values[2:]),
    }


START = model(1.0, 2.0, 3.0)


def updates(*changes: tuple[float, float, float]) -> list[Update]:
    return [
        Update(i, samples=10 * i + 1, shared={"model": model(1 + a, 2 + b, 3 + c)})
        for i, (a, b, c) in enumerate(changes)
    ]


def test_a_change_is_cut_to_its_bound_over_all_tensors_together():
    change, length = clip(model(1 + 2.0, 2 + 3.0, 3 - 6.0), START, 3.5)
    assert length == pytest.approx(7)  # 2, 3, 6
    assert change["encoder.weight"].tolist() == pytest.approx([1.0, 1.5])
    assert change["head.bias"].tolist() == pytest.approx([-3.0])
    assert "encoder.norm.num_batches_tracked" not in change


def test_a_short_change_stays_as_it_is_and_none_at_all_is_none():
    change, _ = clip(model(1.1, 2.0, 3.0), START, 5)
    assert change["encoder.weight"].tolist() == pytest.approx([0.1, 0.0])
    nothing, length = clip(START, START, 5)
    assert length == 0
    assert not nothing["encoder.weight"].any()


def test_without_noise_it_is_the_plain_mean_of_clipped_changes():
    """All clients weigh the same, however many images they have."""
    changes = [(3.0, 4.0, 0.0), (0.0, 0.0, 1.0), (0.1, 0.0, 0.0)]
    found = Mechanism(PrivacySettings(clip=2, noise=0)).mean(
        ServerState(0, {"model": START}), updates(*changes)
    )
    total = [0.0, 0.0, 0.0]
    for change in changes:
        length = math.sqrt(sum(part**2 for part in change))
        for i, part in enumerate(change):
            total[i] += part * min(1, 2 / length) / 3
    told = found.shared["model"]
    assert told["encoder.weight"].tolist() == pytest.approx([1 + total[0], 2 + total[1]])
    assert told["head.bias"].tolist() == pytest.approx([3 + total[2]])
    assert told["encoder.norm.num_batches_tracked"] == 10  # the server's own


def test_one_client_moves_the_mean_no_further_than_its_bound():
    state = ServerState(0, {"model": START})
    for size in (1.0, 1e3, 1e12):
        others = [(0.1, 0.2, 0.3), (0.3, 0.0, 0.0)]
        settings = PrivacySettings(clip=2, noise=0)
        told = [
            Mechanism(settings).mean(state, updates(*others, last)).shared["model"]
            for last in ((0.0, 0.0, 0.0), (size, -size, size))
        ]
        moved = [told[1][name] - told[0][name] for name in ("encoder.weight", "head.bias")]
        assert torch.cat(moved).norm() * 3 <= 2 * (1 + 1e-5)


def test_the_noise_is_as_wide_as_the_accountant_is_told():
    wide = {"encoder.weight": torch.zeros(200_000)}
    state = ServerState(0, {"model": wide})
    same = [Update(i, 1, {"model": wide}) for i in range(4)]
    noise = Mechanism(PrivacySettings(clip=3, noise=2)).mean(state, same).shared["model"]
    values = noise["encoder.weight"].double()
    assert values.std().item() == pytest.approx(2 * 3 / 4, rel=0.01)
    assert abs(values.mean().item()) < 0.02
    again = Mechanism(PrivacySettings(clip=3, noise=2)).mean(state, same).shared["model"]
    assert not torch.equal(again["encoder.weight"], noise["encoder.weight"])


def test_a_variance_never_gets_negative():
    start = {"norm.running_var": torch.zeros(1000)}
    told = Mechanism(PrivacySettings(clip=1, noise=5)).mean(
        ServerState(0, {"model": start}), [Update(0, 1, {"model": start})]
    )
    assert told.shared["model"]["norm.running_var"].min() >= 0


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (1.0, 9), (3.0, 40)])
def test_epsilon_is_that_of_the_gaussian_mechanism(noise, count):
    """n of them are one with noise / sqrt(n); Balle and Wang, ICML 2018, Theorem 8."""
    mu = math.sqrt(count) / noise

    def excess(e):
        return norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu) - 1e-5

    assert epsilon(noise, count, 1e-5) == pytest.approx(brentq(excess, 0, 100), rel=1e-6)


def test_no_noise_has_no_bound_and_no_rounds_cost_nothing():
    assert epsilon(0, 3, 1e-5) == math.inf
    assert epsilon(0, 0, 1e-5) == 0
    assert epsilon(1, 0, 1e-5) == pytest.approx(0, abs=1e-9)


def test_infinity_is_kept_out_of_json():
    promise = spent(read(privacy={"clip": 1, "noise": 0}), 8)
    assert promise.epsilon is None
    assert json.loads(promise.model_dump_json())["epsilon"] is None


def test_a_client_is_charged_for_the_rounds_it_is_drawn_for():
    experiment = read(training={"rounds": 20, "clients_per_round": 3}, privacy={"clip": 1})
    drawn = [client for round_ in range(20) for client in select(0, round_, 8, 3)]
    most = max(drawn.count(client) for client in range(8))
    assert most_rounds(experiment, 8) == most < 20
    assert spent(experiment, 8).epsilon == epsilon(1, most, 1e-5)


@pytest.mark.parametrize("name", ["scaffold", "qffl", "fedproto", "fedema", "local"])
def test_a_method_that_needs_more_than_a_mean_is_refused(name, tmp_path):
    with pytest.raises(UserError, match=r"privacy\.clip: the server of"):
        rounds.run(read(method=name, privacy={"clip": 1}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rounds_that_a_kill_would_repeat_are_refused(tiny, tmp_path):
    with pytest.raises(UserError, match="checkpoint_every must be 1"):
        rounds.run(tiny("privacy.clip=1", "engine.checkpoint_every=2"), tmp_path / "run")


def test_methods_of_one_mean_send_models_alone(tiny, tmp_path):
    from tests.methods.helpers import host

    for name in METHODS:
        asked = tiny(f"method.name={name}")
        if asked.method.one_mean and asked.method.federated:
            home = host(asked, tmp_path)
            state = home.initial_state()
            assert set(state.groups) == {"model"}, name
            assert set(home.load("method").method.expected_update(state)) == {"model"}, name


def test_the_accountant_is_asked_for_before_anything_is_run(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(privacy, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'calibre-fl\[privacy\]'"):
        rounds.run(tiny("privacy.clip=1"), tmp_path / "run")


def test_without_clipping_or_noise_it_is_fedavg_with_equal_weights(tiny, tmp_path):
    """A generous bound, no noise: as if nothing were there, on clients of equal size."""
    same = ("method.name=fedavg-ft", "federation.labels=40")
    rounds.run(tiny(*same), tmp_path / "plain")
    rounds.run(tiny(*same, "privacy.clip=1e6", "privacy.noise=0"), tmp_path / "private")
    import safetensors.torch as st

    plain, private = (
        {
            name: tensor
            for name, tensor in st.load_file(tmp_path / run / "model.safetensors").items()
            if tensor.is_floating_point()
        }
        for run in ("plain", "private")
    )
    assert close(plain, private)


def test_a_private_run_tells_its_price(tiny, tmp_path):
    experiment = tiny("privacy.clip=0.5", "privacy.noise=0.8")
    metrics = rounds.run(experiment, tmp_path / "run")
    assert metrics.privacy == spent(experiment, 5)
    assert 0 < metrics.privacy.epsilon < math.inf
    log = events.read(tmp_path / "run" / "events.jsonl")
    told = [event.privacy for event in log if event.event == "round"]
    assert len(told) == 3
    assert all(0 <= one["clipped"] <= 1 and one["median_norm"] > 0 for one in told)


def test_privacy_that_is_off_changes_no_hash():
    assert read(privacy={"noise": 3}).hash() == read().hash()
    assert read(privacy={"clip": 1}).hash() != read().hash()
    assert read(privacy={"clip": 1, "noise": 3}).hash() != read(privacy={"clip": 1}).hash()


def test_a_round_that_was_sent_twice_is_paid_twice(tiny, tmp_path):
    """The newest checkpoint is damaged after its model was sent: new noise on the same clients."""
    experiment = tiny("privacy.clip=1", "training.clients_per_round=5")

    def stop(event):
        if event.event == "round" and event.round == 3:
            raise KeyboardInterrupt  # round 2's model has been sent for it

    with pytest.raises(KeyboardInterrupt):
        rounds.run(experiment, tmp_path / "run", stop)
    file = tmp_path / "run" / "checkpoints" / "round-0002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    told = []
    metrics = rounds.run(experiment, tmp_path / "run", told.append)
    (start,) = [event for event in told if event.event == "start"]
    assert metrics.privacy.rounds == 4  # rounds 1 and 3 once, round 2 twice
    assert metrics.privacy == start.privacy
    assert metrics.privacy.epsilon == epsilon(1, 4, 1e-5) > spent(experiment, 5).epsilon
    # and whoever only reads the end again sends nothing new
    assert rounds.run(experiment, tmp_path / "run").privacy == metrics.privacy


def test_a_kill_before_anything_was_sent_costs_nothing(tiny, tmp_path):
    experiment = tiny("privacy.clip=1", "training.clients_per_round=5")

    def stop(event):
        if event.event == "round" and event.round == 2:
            raise KeyboardInterrupt  # before its checkpoint: this model is seen by nobody

    with pytest.raises(KeyboardInterrupt):
        rounds.run(experiment, tmp_path / "run", stop)
    assert rounds.run(experiment, tmp_path / "run").privacy.rounds == 3


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_without_its_account_a_private_run_does_not_go_on(tiny, tmp_path, damage):
    experiment = tiny("privacy.clip=1")
    rounds.run(experiment, tmp_path)
    if damage == "missing":
        (tmp_path / "sent.json").unlink()
    else:
        (tmp_path / "sent.json").write_text("[{")
    with pytest.raises(UserError, match=f"sent.json is {damage}"):
        rounds.run(experiment, tmp_path)


def test_a_run_taken_back_still_owes_what_it_sent(tiny, tmp_path):
    from calibre.engine.rewind import rewind
    from calibre.run_folder import RunFolder

    experiment = tiny("privacy.clip=1", "training.clients_per_round=5")
    rounds.run(experiment, tmp_path)
    rewind(RunFolder(tmp_path), 2)
    assert rounds.run(experiment, tmp_path).privacy.rounds == 4
