import dataclasses
import math

import pytest
import torch

from calibre.calibration.calibrated import Calibrated
from calibre.engine import rounds
from calibre.errors import UserError
from calibre.methods.calibre import PROTOTYPES, common
from calibre.methods.method import ServerState, Update
from calibre.ssl.simclr import SimCLRObjective
from tests.methods.helpers import close, equal, host


def updates_of(home, state, clients=(0, 1, 2)):
    return [home.update(state, client) for client in clients]


def test_without_its_terms_calibre_is_pfl_simclr_bit_for_bit(tiny, tmp_path):
    off = (
        "method.prototypes.alpha_p=0",
        "method.prototypes.alpha_n=0",
        "method.aggregation.gamma=0",
    )
    plain = host(tiny("method.name=pfl-ssl"), tmp_path / "a")
    calibrated = host(tiny("method.name=calibre", *off), tmp_path / "b")
    one, other = plain.initial_state(), calibrated.initial_state()
    for _ in range(2):
        one = plain.load("method").method.aggregate(one, updates_of(plain, one))
        other = calibrated.load("method").method.aggregate(other, updates_of(calibrated, other))
        assert equal(one.model, other.model)


def test_terms_of_no_weight_do_not_disturb_the_trajectory(tiny, tmp_path):
    """k-means and the terms are computed here, but only alpha_n counts: its weight is tiny."""
    plain = host(tiny("method.name=pfl-ssl"), tmp_path / "a")
    faint = ("method.prototypes.alpha_p=0", "method.prototypes.alpha_n=1e-30")
    calibrated = host(tiny("method.name=calibre", *faint), tmp_path / "b")
    state = plain.initial_state()
    assert equal(
        plain.update(state, 0).shared["model"], calibrated.update(state, 0).shared["model"]
    )


def test_its_terms_change_the_encoder(tiny, tmp_path):
    plain = host(tiny("method.name=pfl-ssl"), tmp_path / "a")
    calibrated = host(tiny("method.name=calibre"), tmp_path / "b")
    state = plain.initial_state()
    assert not equal(
        plain.update(state, 0).shared["model"], calibrated.update(state, 0).shared["model"]
    )


def test_an_update_is_a_function_of_its_inputs(tiny, tmp_path):
    home = host(tiny("method.name=calibre"), tmp_path)
    state = home.initial_state()
    first = home.update(state, 0)
    home.update(state, 3)  # another client uses the same network in between
    torch.rand(10)
    again = home.update(state, 0)
    assert equal(first.shared["model"], again.shared["model"])
    assert first.numbers == again.numbers


def test_a_client_sends_how_far_its_encodings_lie_from_their_prototypes(tiny, tmp_path):
    home = host(tiny("method.name=calibre"), tmp_path)
    update = home.update(home.initial_state(), 0)
    assert update.samples == 40  # unlabelled images count: training needs no labels
    assert update.numbers == {"divergence": update.report["divergence"]}
    assert 0 < update.numbers["divergence"] <= 2


@pytest.mark.parametrize("gamma", [-10, 10])
@pytest.mark.parametrize("rate", [0.0, 2.0, 1e20])
def test_no_divergence_that_is_let_in_makes_a_weight_that_is_no_number(tiny, gamma, rate):
    changes = (f"method.aggregation.gamma={gamma}", "method.aggregation.divergence=raw")
    assert tiny(*changes).method.numbers["divergence"].accepts(rate)
    updates = [fake(0, 1.0, rate, samples=10**6), fake(1, 1.0, 0.5)]
    assert aggregate(tiny, updates, *changes) == pytest.approx(1.0)


@pytest.mark.parametrize("measure", ["unit", "raw", "ref"])
def test_unit_encodings_lie_at_most_two_apart(tiny, measure):
    declared = tiny(f"method.aggregation.divergence={measure}").method.numbers
    assert declared.keys() == {"divergence"}
    assert declared["divergence"].accepts(2.0)
    assert declared["divergence"].accepts(2.1) == (measure != "unit")
    assert declared["divergence"].accepts(math.nan)
    assert not declared["divergence"].accepts(-0.1)
    assert not declared["divergence"].accepts(1.1e20)
    assert not declared["divergence"].accepts(math.inf)


def test_a_divergence_that_weighs_nothing_is_not_measured(tiny, tmp_path):
    home = host(tiny("method.name=calibre", "method.aggregation.gamma=0"), tmp_path)
    update = home.update(home.initial_state(), 0)
    assert math.isnan(update.numbers["divergence"])
    assert "divergence" not in update.report


def test_encodings_that_are_not_finite_have_no_divergence(tiny, tmp_path, monkeypatch):
    home = host(tiny("method.name=calibre"), tmp_path)
    monkeypatch.setattr("calibre.methods.calibre.encode", lambda *_: torch.full((40, 8), math.inf))
    update = home.update(home.initial_state(), 0)
    assert math.isnan(update.numbers["divergence"])
    assert "divergence" not in update.report  # a report is JSON, which knows no NaN


@pytest.mark.parametrize(("alpha_p", "alpha_n"), [(0, 0), (0.3, 0), (0, 0.3)])
def test_where_no_term_has_a_weight_the_network_is_the_plain_objective(
    tiny, tmp_path, alpha_p, alpha_n
):
    terms = (f"method.prototypes.alpha_p={alpha_p}", f"method.prototypes.alpha_n={alpha_n}")
    network = host(tiny("method.name=calibre", *terms), tmp_path / "a").load("method").network
    plain = host(tiny("method.name=pfl-ssl"), tmp_path / "b").load("method").network
    assert type(plain) is SimCLRObjective
    assert type(network) is (Calibrated if alpha_p or alpha_n else SimCLRObjective)
    assert equal(network.state_dict(), plain.state_dict())


def fake(client, value, rate, samples=10):
    tensors = {"w": torch.tensor([float(value)], dtype=torch.float64)}
    return Update(client, samples, {"model": tensors}, {"divergence": rate})


def aggregate(tiny, updates, *changes, start=0.0):
    method = tiny("method.name=calibre", *changes).method
    state = ServerState(4, {"model": {"w": torch.tensor([start], dtype=torch.float64)}})
    result = method.aggregate(state, iter(updates))
    assert result.round == 5
    return result.model["w"].item()


def test_halving_a_divergence_doubles_a_client(tiny):
    updates = [fake(0, 0.0, rate=0.5), fake(1, 3.0, rate=0.25)]
    assert aggregate(tiny, updates) == pytest.approx(3 * 2 / 3)


def test_equal_divergences_are_fedavg(tiny):
    updates = [fake(0, 0.0, rate=0.5), fake(1, 4.0, rate=0.5, samples=30)]
    assert aggregate(tiny, updates) == pytest.approx(3.0)


def test_an_unknown_divergence_takes_the_rounds_median(tiny):
    updates = [
        fake(0, 7.0, rate=math.nan),
        fake(1, 0.0, rate=0.5),
        fake(2, 0.0, rate=0.2),
        fake(3, 1.0, rate=1.0),
    ]
    total = 1 / 0.5 + 1 / 0.5 + 1 / 0.2 + 1 / 1.0
    assert aggregate(tiny, updates) == pytest.approx((7 / 0.5 + 1 / 1.0) / total)


def test_the_declared_number_counts_and_not_the_report(tiny):
    told = [dataclasses.replace(fake(0, 0.0, 0.5), report={"divergence": 1e-3}), fake(1, 3.0, 0.25)]
    assert aggregate(tiny, told) == pytest.approx(3 * 2 / 3)


@pytest.mark.parametrize("gamma", [0.5, 1, 2, -1])
def test_weights_are_samples_over_a_power_of_the_divergence(tiny, gamma):
    rates, samples, values = [0.5, 0.25, 1.5], [10, 20, 10], [1.0, 2.0, 5.0]
    updates = [
        fake(i, v, d, n) for i, (v, d, n) in enumerate(zip(values, rates, samples, strict=True))
    ]
    w = [n / d**gamma for d, n in zip(rates, samples, strict=True)]
    expected = sum(v * x for v, x in zip(values, w, strict=True)) / sum(w)
    found = aggregate(tiny, updates, f"method.aggregation.gamma={gamma}")
    assert found == pytest.approx(expected)


def test_when_no_divergence_is_known_samples_decide(tiny):
    updates = [fake(0, 0.0, math.nan, samples=10), fake(1, 4.0, math.nan, samples=30)]
    assert aggregate(tiny, updates) == pytest.approx(3.0)


def test_the_server_rate_moves_part_of_the_way(tiny):
    updates = [fake(0, 8.0, rate=0.5)]
    assert aggregate(tiny, updates, "method.aggregation.server_rate=0.25", start=4.0) == (
        pytest.approx(5.0)
    )


def test_the_published_weights_sum_to_one_over_m(tiny):
    """w_c = (1/d_c)/sum(1/d) * n_c/sum(n), not renormalised: by the formula itself."""
    rates, samples, values = [0.5, 0.25, 1.0], [10, 20, 10], [1.0, 2.0, 5.0]
    updates = [
        fake(i, v, d, n) for i, (d, n, v) in enumerate(zip(rates, samples, values, strict=True))
    ]
    inverse = [1 / d for d in rates]
    w = [i / sum(inverse) * n / sum(samples) for i, n in zip(inverse, samples, strict=True)]
    expected = 3.0 + sum(weight * (v - 3.0) for weight, v in zip(w, values, strict=True))
    assert aggregate(tiny, updates, "method.aggregation.ref_double=true", start=3.0) == (
        pytest.approx(expected)
    )
    equal_clients = [fake(i, 1.0, 0.5) for i in range(4)]
    moved = aggregate(tiny, equal_clients, "method.aggregation.ref_double=true")
    assert moved == pytest.approx(1 / 4)


def test_heads_stay_home_when_only_the_encoder_is_exchanged(tiny, tmp_path):
    home = host(tiny("method.name=calibre", "method.exchange=encoder"), tmp_path)
    state = home.initial_state()
    assert all(name.startswith("encoder.") for name in state.model)
    update = home.update(state, 0)
    assert all(name.startswith("encoder.") for name in update.shared["model"])
    assert update.personal
    assert all(name.startswith("projector.") for name in update.personal)
    # next time the client goes on with its own head; another client starts from the common one
    later = dataclasses.replace(state, round=1)
    kept = home.keep.clients.load(0, later.round)
    assert kept is not None
    assert equal(kept, update.personal)
    assert home.keep.clients.load(1, later.round) is None
    again = home.update(later, 0)
    assert not close(again.personal, update.personal)


@pytest.mark.parametrize(
    "change",
    [
        "support=sym", "support=b", "ln_form=sample_contrast", "ln_form=neg_prob",
        "ln_reduction=sample_mean", "ln_metric=euclid_raw", "proto_of_unit=true",
        "kmeans=support_then_assign", "kmeans_normalize=true", "query_label=partner",
        "detach_proto=true", "oracle_labels=true", "kmeans=client", "kmeans=server",
        "kmeans=labels",
    ],
)  # fmt: skip
def test_every_reading_of_the_loss_trains(tiny, tmp_path, change):
    home = host(tiny("method.name=calibre", f"method.prototypes.{change}"), tmp_path)
    update = home.update(home.initial_state(), 0)
    assert math.isfinite(update.report["loss"])


def test_results_with_true_labels_say_so(tiny):
    assert "analysis only" in tiny("method.prototypes.oracle_labels=true").method.label
    assert tiny().method.label == "Calibre (SimCLR)"
    anchored = tiny("method.prototypes.kmeans=labels").method
    assert anchored.label == "Calibre (SimCLR) anchored by labels"
    assert anchored.uses_labels


def test_the_servers_prototypes_are_the_centres_of_all_clients_own():
    near = 10 * torch.eye(3)
    first, second = near + 0.5, near.flip(0) - 0.5  # the same three places, in another order
    found = common([first, second])
    assert torch.cdist(found, near).min(0).values.max() < 1e-5
    alike = common([torch.ones(3, 2)] * 2)  # fewer unlike ones than asked for
    assert equal({"v": alike}, {"v": torch.ones(3, 2)})


def test_prototypes_at_the_server_travel_both_ways(tiny, tmp_path):
    asked = tiny("method.name=calibre", "method.prototypes.kmeans=server")
    home = host(asked, tmp_path)
    state = home.initial_state()
    assert not state.model[PROTOTYPES].any()
    updates = updates_of(home, state)
    sent = [update.shared["model"][PROTOTYPES] for update in updates]
    assert all(vectors.any() for vectors in sent)
    later = asked.method.aggregate(state, updates)
    assert equal({"v": later.model[PROTOTYPES]}, {"v": common(sent)})
    own = home.update(later, 1).shared["model"][PROTOTYPES]  # of the encoder as it is now
    few = torch.cat([own[:2], own[2:] + 1e3])  # no image is near the rest
    told = {}
    for name, vectors in {"own": own, "few": few}.items():
        known = dataclasses.replace(later, groups={"model": {**later.model, PROTOTYPES: vectors}})
        told[name] = home.update(known, 1)
        assert equal({"v": told[name].shared["model"][PROTOTYPES]}, {"v": own})
    assert told["few"].report["clusters"] <= 2 < told["own"].report["clusters"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("method.exchange=encoder", "sends the encoder alone: set it to 'model'"),
        ("robust.mean=median", "needs more of its clients than the mean"),
    ],
)
def test_prototypes_at_the_server_need_what_they_need(tiny, tmp_path, change, said):
    with pytest.raises(UserError, match=said):
        rounds.run(tiny("method.prototypes.kmeans=server", change), tmp_path / "run")


def test_monitors_are_reported(tiny, tmp_path):
    home = host(tiny("method.name=calibre"), tmp_path)
    report = home.update(home.initial_state(), 0).report
    assert {"l_s", "l_p", "l_n", "spread", "similarity", "clusters", "agreement"} <= set(report)
    assert report["loss"] == pytest.approx(
        report["l_s"] + 0.3 * report["l_p"] + 0.3 * report["l_n"], rel=1e-4
    )
