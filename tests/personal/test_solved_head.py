"""Solved heads at work on digits: against scikit-learn, and at their limits."""

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from calibre.personal.choosing import STRENGTHS, pooled
from calibre.personal.model import Kept, as_classifier
from calibre.personal.predictor import SideBySide
from calibre.personal.solved_head import (
    curve_of,
    encoded,
    held_out,
    prior_of,
    solved,
    strength_for,
)
from tests.methods.helpers import equal, host

SOLVED = ("personal.head=solved", "federation.labels=6", "federation.samples=60")


def a_site(tiny, tmp_path, *changes, client=0):
    home = host(tiny("method.name=pfl-ssl", *SOLVED, *changes), tmp_path)
    return home.prepared("method", home.initial_state(), client)


def test_the_head_is_the_regression_of_scikit_learn_on_standardised_features(tiny, tmp_path):
    site = a_site(tiny, tmp_path).site
    seen = encoded(site, "encoder")
    x, y = (part.numpy() for part in seen.labelled)
    raw = site.network.encoder.eval()
    with torch.no_grad():
        z = raw(site.plain(site.images)).double().numpy()
    spread = z.std(0)
    floor = 0.01 * np.median(spread[spread > 0])
    assert np.allclose(x, ((z - z.mean(0)) / spread.clip(floor))[: site.labelled], atol=1e-4)
    head = solved(seen, 0.1)
    oracle = LogisticRegression(C=0.1, max_iter=5000, tol=1e-8).fit(x, y)
    held = sorted(set(y.tolist()))
    expected = oracle.predict_log_proba(x)
    found = F.linear(seen.labelled.features, *head)[:, held].log_softmax(1).numpy()
    assert np.allclose(found, expected, atol=2e-3)


def test_classes_without_a_label_are_never_answered(tiny, tmp_path):
    prepared = a_site(tiny, tmp_path)
    seen = encoded(prepared.site, "pixels")
    head = seen.raw(solved(seen, 10.0))
    shown = seen.more(*prepared.test, prepared.site.normalization)
    answers = F.linear(shown.features, *head).argmax(1)
    assert set(answers.tolist()) <= set(seen.labelled.labels.tolist())


def test_held_out_labels_are_answered_by_heads_that_did_not_see_them(tiny, tmp_path):
    """By hand: a head fitted to the other folds, for one of them."""
    seen = encoded(a_site(tiny, tmp_path).site, "encoder")
    found = held_out(seen, 0.3)
    fold = int(found.folds[0])
    rows = seen.fold != fold
    x, y = seen.labelled
    part = dataclasses.replace(seen, labelled=type(seen.labelled)(x[rows], y[rows]))
    expected = F.linear(x[seen.fold == fold], *solved(part, 0.3)).float()
    assert torch.allclose(found.logits[found.folds == fold], expected, atol=1e-4)


def test_the_curve_is_the_summed_log_loss_of_held_out_labels(tiny, tmp_path):
    seen = encoded(a_site(tiny, tmp_path).site, "encoder")
    curve = curve_of(seen)
    for i in (0, 4, len(STRENGTHS) - 1):
        held = held_out(seen, STRENGTHS[i])
        expected = F.cross_entropy(held.logits.double(), held.labels, reduction="sum").item()
        assert abs(curve.losses[i] - expected) < 1e-3 * max(1, expected)
    assert curve.images == len(held.labels)
    assert strength_for(seen, pooled([{"encoder": curve}])) in STRENGTHS


def test_a_strong_penalty_leaves_the_servers_head_and_a_weak_one_the_clients(tiny, tmp_path):
    home = host(tiny("method.name=fedavg-ft", *SOLVED), tmp_path)
    state = home.initial_state()
    assert prior_of(home.site("method", state, 0)) is None  # nobody has trained it
    state = home.load("method").method.aggregate(state, [home.update(state, c) for c in (0, 1)])
    site = home.site("method", state, 0)
    prior = prior_of(site)
    assert torch.equal(prior.weight, state.model["head.weight"])
    seen = encoded(site, "encoder")
    held = sorted(set(seen.labelled.labels.tolist()))

    def directions(head):
        return head.weight[held] - head.weight[held].mean(0)

    near, far = (solved(seen, strength) for strength in (1e-9, 1e3))
    assert torch.allclose(directions(near), directions(seen.prior), atol=1e-6)
    assert not torch.allclose(directions(far), directions(seen.prior), atol=1e-2)


def test_the_model_that_is_kept_is_the_model_that_was_scored(tiny, tmp_path):
    home = host(tiny("method.name=pfl-ssl", *SOLVED, "personal.features=pixels"), tmp_path)
    state = home.initial_state()
    told = home.assess(state, "method", [0, 1, 5])
    models = home.personalize(state, "method", [0, 1, 5], pooled(told.values()))
    for model in models:
        kept = Kept.of(home.keep.clients.load_personal(model.client))
        assert equal(kept.own, model.tensors)
        prepared = home.prepared("method", state, model.client)
        parts, head = as_classifier(home.load("method").method, prepared.site.network, kept.own)
        assert len(parts) == 2
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
        (alone,) = home.personalize(state, "method", [model.client], choice)
        assert alone.correct == model.correct
        assert torch.allclose(alone.tensors["head.weight"], model.tensors["head.weight"], atol=1e-5)


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
