"""Solved heads at work on digits: against scikit-learn, and at their limits."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from calibre.experiment import read
from calibre.personal import cross_validation, solved_head
from calibre.personal.cross_validation import curves_of, held_out, strengths_for
from calibre.personal.encoded import NEAR, NEAR_SHARES, SHARES
from calibre.personal.model import Kept, as_classifier
from calibre.personal.pooling import STRENGTHS, pooled
from calibre.personal.predictor import SideBySide
from calibre.personal.solve import HeadProblem, solve_heads
from calibre.personal.solved_head import encoded, mixes_of, solved, trained_parts
from calibre.tensors import take
from tests.methods.helpers import equal, host

SOLVED = ("personal.head=solved", "federation.labels=6", "federation.samples=60")


def a_site(tiny, tmp_path, *changes, client=0):
    home = host(tiny("method.name=pfl-ssl", *SOLVED, *changes), tmp_path)
    return home.prepared("method", home.initial_state(), client)


def alone(expert, strength, classes=10):
    return solve_heads([HeadProblem(*expert.samples, strength, expert.prior)], classes)[0]


def test_the_head_is_the_regression_of_scikit_learn_on_standardised_features(tiny, tmp_path):
    site = a_site(tiny, tmp_path, "personal.features=encoder").site
    (expert,) = encoded(site).experts
    x, y = (part.numpy() for part in expert.samples)
    with torch.no_grad():
        z = site.network.encoder.eval()(site.plain(site.images)).double().numpy()
    spread = z.std(0)
    floor = 0.01 * np.median(spread[spread > 0])
    assert np.allclose(x, ((z - z.mean(0)) / spread.clip(floor))[: site.labelled], atol=1e-4)
    oracle = LogisticRegression(C=0.1, max_iter=5000, tol=1e-8).fit(x, y)
    held = sorted(set(y.tolist()))
    head = alone(expert, 0.1)
    found = F.linear(expert.samples.features, *head)[:, held].log_softmax(1).numpy()
    assert np.allclose(found, oracle.predict_log_proba(x), atol=2e-3)


def test_experts_are_one_head_that_adds_their_logits(tiny, tmp_path):
    prepared = a_site(tiny, tmp_path)
    site, test = prepared.site, prepared.test
    seen = encoded(site)
    strengths = [0.3, 0.2, 0.1]
    shown = seen.shown(test.images, site.normalization)
    found = F.linear(shown, *solved([seen], [strengths])[0]).double()
    added = 0
    with torch.no_grad():
        for expert, strength in zip(seen.experts, strengths, strict=True):
            raw = expert.part.eval()(site.plain(test.images)).double()
            x = (raw - expert.scaling.centre) / expert.scaling.spread
            added = added + SHARES[expert.name] * F.linear(x, *alone(expert, strength))
    held = sorted(set(seen.labels.tolist()))
    assert torch.allclose(found[:, held], added[:, held], atol=1e-3)


def test_classes_without_a_label_are_never_answered(tiny, tmp_path):
    prepared = a_site(tiny, tmp_path)
    seen = encoded(prepared.site)
    shown = seen.shown(prepared.test.images, prepared.site.normalization)
    answers = F.linear(shown, *solved([seen], [[10.0] * 3])[0]).argmax(1)
    assert set(answers.tolist()) <= set(seen.labels.tolist())


def test_held_out_labels_are_answered_by_heads_that_did_not_see_them(tiny, tmp_path):
    """By hand: heads fitted to the other folds, for one of them."""
    seen = encoded(a_site(tiny, tmp_path).site)
    (found,) = held_out([seen], [[0.3, 0.2, 0.1]])
    fold = int(found.folds[0])
    rows = seen.fold != fold
    expected = 0
    for expert, strength in zip(seen.experts, (0.3, 0.2, 0.1), strict=True):
        x, y = expert.samples
        head = solve_heads([HeadProblem(x[rows], y[rows], strength, expert.prior)], 10)[0]
        expected = expected + SHARES[expert.name] * F.linear(x[seen.fold == fold], *head)
    assert torch.allclose(found.logits[found.folds == fold].double(), expected, atol=1e-3)


def test_a_curve_is_the_summed_log_loss_of_held_out_labels(tiny, tmp_path):
    seen = encoded(a_site(tiny, tmp_path, "personal.features=encoder").site)
    curve = curves_of([seen])[0]["encoder"]
    for i in (0, 4, len(STRENGTHS) - 1):
        (held,) = held_out([seen], [[STRENGTHS[i]]])
        expected = F.cross_entropy(held.logits.double(), held.labels, reduction="sum").item()
        assert abs(curve.losses[i] - expected) < 1e-3 * max(1, expected)
    assert curve.images == len(held.labels)
    assert strengths_for([seen], pooled([{"encoder": curve}]))[0][0] in STRENGTHS


def test_a_strong_penalty_leaves_the_servers_head_and_a_weak_one_the_clients(tiny, tmp_path):
    home = host(tiny("method.name=fedavg-ft", *SOLVED), tmp_path)
    state = home.initial_state()
    (part,) = trained_parts(home.site("method", state, 0))
    assert part.head is None  # nobody has trained it
    state = home.load("method").method.aggregate(state, [home.update(state, c) for c in (0, 1)])
    site = home.site("method", state, 0)
    (part,) = trained_parts(site)
    assert torch.equal(part.head.weight, state.model["head.weight"])
    expert = encoded(site).experts[0]
    held = sorted(set(expert.samples.labels.tolist()))

    def directions(head):
        return head.weight[held] - head.weight[held].mean(0)

    near, far = (alone(expert, strength) for strength in (1e-9, 1e3))
    assert torch.allclose(directions(near), directions(expert.prior), atol=1e-6)
    assert not torch.allclose(directions(far), directions(expert.prior), atol=1e-2)


def test_the_model_that_is_kept_is_the_model_that_was_scored(tiny, tmp_path):
    home = host(tiny("method.name=pfl-ssl", *SOLVED), tmp_path)
    state = home.initial_state()
    told = home.assess(state, "method", [0, 1, 5])
    models = home.personalize(state, "method", [0, 1, 5], pooled(told.values()))
    for model in models:
        kept = Kept.of(home.keep.clients.load_personal(model.client))
        assert equal(kept.own, model.tensors)
        prepared = home.prepared("method", state, model.client)
        parts, head = as_classifier(home.load("method").method, prepared.site.network, kept.own)
        assert len(parts) == 3
        with torch.no_grad():
            z = SideBySide(parts).eval()(prepared.site.plain(prepared.test.images))
        right = (F.linear(z, *head).argmax(1) == prepared.test.labels).sum()
        assert right == model.correct
        assert kept.final is not None  # after all labels, the test images' too
        assert not torch.equal(kept.final.weight, head.weight)


def test_a_group_is_solved_as_its_clients_are_alone(tiny, tmp_path):
    home = host(tiny("method.name=pfl-ssl", *SOLVED), tmp_path)
    state = home.initial_state()
    choice = pooled(home.assess(state, "method", range(7)).values())
    together = home.personalize(state, "method", range(7), choice)
    for model in together:
        (by_itself,) = home.personalize(state, "method", [model.client], choice)
        assert by_itself.correct == model.correct
        weights = [m.tensors["head.weight"] for m in (by_itself, model)]
        assert torch.allclose(*weights, atol=1e-5)


def test_what_clients_told_is_not_computed_again(tiny, tmp_path, monkeypatch):
    home = host(tiny("method.name=pfl-ssl", *SOLVED), tmp_path)
    state = home.initial_state()
    told = home.assess(state, "method", range(5))
    choice = pooled(told.values())
    afresh = home.personalize(state, "method", range(5), choice)
    monkeypatch.setattr(cross_validation, "_curve", None)  # nobody asks for another
    models = home.personalize(state, "method", range(5), choice, told)
    for one, other in zip(afresh, models, strict=True):
        assert equal(one.to_keep(), other.to_keep())


def test_a_group_too_large_for_memory_comes_to_the_same(tiny, tmp_path, monkeypatch):
    home = host(tiny("method.name=pfl-ssl", *SOLVED), tmp_path)
    state = home.initial_state()
    together = home.assess(state, "method", range(7))
    monkeypatch.setattr(solved_head, "NUMBERS", 1)
    one_by_one = home.assess(state, "method", range(7))
    assert list(one_by_one) == list(together)
    for client, curves in together.items():
        for name, curve in curves.items():
            assert np.allclose(curve.losses, one_by_one[client][name].losses, rtol=1e-5)


def test_the_majority_floor_answers_the_most_frequent_class(tiny, tmp_path):
    home = host(tiny("method.name=pfl-ssl", *SOLVED), tmp_path)
    state = home.initial_state("majority")
    for client in range(3):
        prepared = home.prepared("majority", state, client)
        (model,) = home.personalize(state, "majority", [client])
        labels = prepared.site.labels[: prepared.site.labelled]
        counts = labels.bincount(minlength=10)
        often = counts == counts.max()
        if often.sum() == 1:
            expected = (prepared.test.labels == counts.argmax()).sum().item()
            assert model.correct == expected


def test_a_head_that_was_taught_by_class_learns_how_frequent_classes_are(tiny, tmp_path):
    few = ("federation.labels=2", "federation.samples=60", "personal.head=solved")
    told = []
    for draw in ("class", "random"):
        home = host(
            tiny("method.name=pfl-ssl", *few, f"federation.label_draw={draw}"), tmp_path / draw
        )
        state = home.initial_state()
        site = home.prepared("method", state, 0).site
        seen = encoded(site)
        (plain,) = solved([seen], [[0.1] * 3])
        others = seen.shown(site.images[site.labelled :], site.normalization)
        shown = others if site.labels_by_class else None
        (mix,) = mixes_of([seen], [shown], [[0.1] * 3], [plain])
        told.append(torch.equal(mix(plain).bias, plain.bias))
    assert told == [False, True]


def test_where_the_encoder_has_met_the_labels_a_head_stays_near_the_one_it_was_trained_with(
    tiny, tmp_path
):
    """Cross-validation would be flattered, so it is not asked; for a novel client it is."""
    home = host(tiny("method.name=fedavg-ft", *SOLVED), tmp_path)
    method, start = home.load("method").method, home.initial_state()
    state = method.aggregate(start, [home.update(start, client) for client in (0, 1)])
    novel = home.federation.novel_ids[0]
    trained, new = (encoded(home.prepared("method", state, c).site) for c in (0, novel))
    assert (trained.experts[0].strength, new.experts[0].strength) == (NEAR, None)
    for place, name in ((1, "patches"), (2, "pixels")):
        assert trained.experts[place].strength is None  # they have met nothing
        shares = trained.experts[place].share, new.experts[place].share
        assert shares == (NEAR_SHARES[name], SHARES[name])
    told = curves_of([trained, new])
    expected = [{"patches", "pixels"}, {"encoder", "patches", "pixels"}]
    assert [set(curves) for curves in told] == expected
    strengths = strengths_for([trained, new], pooled(told))
    assert strengths[0][0] == NEAR
    assert all(strength in STRENGTHS for strength in (*strengths[0][1:], *strengths[1]))


def test_another_role_does_not_solve_the_same_pixels_again(tiny, tmp_path, monkeypatch):
    """The method's encoder and the untrained floor's differ; the client's pixels do not."""
    experiment = tiny("method.name=pfl-ssl", *SOLVED)
    widths: list[int] = []

    def counted(solve):
        def counting(problems, *how):
            widths.extend(problem.features.shape[1] for problem in problems)
            return solve(problems, *how)

        counting.__qualname__ = solve.__qualname__
        return counting

    monkeypatch.setattr(solved_head, "solve_heads", counted(solve_heads))
    monkeypatch.setattr(cross_validation, "answer_folds", counted(cross_validation.answer_folds))

    def models(home, role):
        state = home.initial_state(role)
        told = home.assess(state, role, [0, 1])
        return [m.to_keep() for m in home.personalize(state, role, [0, 1], pooled(told.values()))]

    home = host(experiment, tmp_path / "one")
    models(home, "method")
    pixels = experiment.personal.components
    assert pixels in widths
    widths.clear()
    again = models(home, "untrained")
    assert widths
    assert pixels not in widths
    fresh = models(host(experiment, tmp_path / "other"), "untrained")
    assert pixels in widths
    assert all(equal(one, other) for one, other in zip(again, fresh, strict=True))


TWO = ("method.name=pfl-ssl", "method.labels.weight=1", "method.labels.second=2", *SOLVED)


def test_a_second_network_is_one_more_expert_near_its_own_head(tiny, tmp_path):
    home = host(tiny(*TWO), tmp_path)
    method, start = home.load("method").method, home.initial_state()
    assert len(trained_parts(home.site("method", start, 0))) == 1  # no round has trained it
    state = method.aggregate(start, [home.update(start, client) for client in (0, 1)])
    novel = home.federation.novel_ids[0]
    trained, new = (encoded(home.prepared("method", state, c).site) for c in (0, novel))
    names = ["encoder", "second", "patches", "pixels"]
    for seen, strength in ((trained, NEAR), (new, None)):
        assert [expert.name for expert in seen.experts] == names
        assert [expert.strength for expert in seen.experts[:2]] == [strength, strength]
    for expert, part in zip(trained.experts, ("", "second."), strict=False):
        raw = expert.prior.weight / expert.scaling.spread  # of features as they are
        assert torch.allclose(raw, state.model[f"{part}head.weight"].double(), atol=1e-6)
    assert "second" in curves_of([new])[0]
    (model,) = home.personalize(state, "method", [0])
    site = home.prepared("method", state, 0).site
    parts, head = as_classifier(method, site.network, Kept.of(model.to_keep()).own)
    assert len(parts) == 4
    assert equal(take(parts[1]), take(site.network.second.encoder))
    shown = SideBySide(parts).eval()(site.plain(home.prepared("method", state, 0).test.images))
    right = F.linear(shown, *head).argmax(1) == home.prepared("method", state, 0).test.labels
    assert right.sum() == model.correct


def test_a_second_network_that_nobody_has_trained_takes_no_part(tiny, tmp_path):
    one = read(tiny(*TWO), (), federation={"labels": None, "label_count": 1})
    home = host(one, tmp_path)
    method, start = home.load("method").method, home.initial_state()
    state = method.aggregate(start, [home.update(start, client) for client in (0, 1)])
    assert not torch.equal(
        state.model["encoder.layers.0.weight"], start.model["encoder.layers.0.weight"]
    )
    novel = home.federation.novel_ids[0]
    assert len(trained_parts(home.site("method", state, novel))) == 1


def test_the_papers_head_looks_at_the_first_network_alone(tiny, tmp_path):
    home = host(tiny(*TWO, "personal.head=paper"), tmp_path)
    method, start = home.load("method").method, home.initial_state()
    state = method.aggregate(start, [home.update(start, client) for client in (0, 1)])
    (model,) = home.personalize(state, "method", [0])
    site = home.prepared("method", state, 0).site
    parts, head = as_classifier(method, site.network, Kept.of(model.to_keep()).own)
    assert len(parts) == 1
    assert head.weight.shape[1] == site.network.encoder.features
