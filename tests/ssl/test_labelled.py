"""The label term l_c, by naive loops and at its limits."""

import math

import pytest
import torch
from torch import nn

from calibre.ssl.labelled import LabelTerm, WithLabels, own_cross_entropy
from calibre.ssl.objective import LabelledBatch, Objective, Pair
from tests.methods.helpers import equal, host
from tests.ssl.helpers import a_step

LABELS = ("method.labels.weight=1", "method.labels.batch=8")


class Silent(Objective):
    """An objective without a loss of its own: what is left is l_c."""

    shared = ("encoder",)

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))

    def forward(self, a, b, step):
        z_a, z_b = self.encoder(a), self.encoder(b)
        return Pair(0 * z_a.sum(), z_a, z_b, z_a, z_b)


def batch(held=(0, 1, 3), n=7, classes=4):
    torch.manual_seed(0)
    labels = torch.tensor(held)[torch.arange(n) % len(held)]
    mask = torch.zeros(classes, dtype=torch.bool)
    mask[list(held)] = True
    return LabelledBatch(torch.randn(n, 3, 2, 2), labels, mask)


def network(**settings):
    torch.manual_seed(1)
    return WithLabels(Silent(), nn.Linear(5, 4), LabelTerm(weight=0.7, **settings))


def test_the_term_by_a_naive_loop_over_the_classes_that_the_client_holds():
    found = batch()
    model = network()
    step = a_step()._replace(labelled=lambda count: found)
    views = torch.randn(3, 3, 2, 2)
    pair = model(views, views, step)
    total = 0.0
    for image, label in zip(found.views, found.labels, strict=True):
        logits = model.head(model.encoder(image[None]))[0]
        total -= (logits[label] - torch.logsumexp(logits[[0, 1, 3]], 0)).item()
    assert pair.terms["l_c"].item() == pytest.approx(total / 7, rel=1e-5)
    assert pair.loss.item() == pytest.approx(0.7 * total / 7, rel=1e-5)


def test_rows_of_classes_that_a_client_does_not_hold_are_not_pushed():
    found, model = batch(), network()
    views = torch.randn(3, 3, 2, 2)
    model(views, views, a_step()._replace(labelled=lambda count: found)).loss.backward()
    assert model.head.weight.grad[2].abs().sum() == 0
    assert model.head.bias.grad[2] == 0
    assert all(model.head.weight.grad[k].abs().sum() > 0 for k in (0, 1, 3))


def test_one_class_has_nothing_to_learn():
    logits = torch.randn(4, 3)
    held = torch.tensor([False, True, False])
    assert own_cross_entropy(logits, torch.ones(4, dtype=torch.int64), held).item() == 0


def test_the_weight_grows_while_warming_up():
    term = LabelTerm(weight=2.0, warmup=0.25)
    assert [term.at(p) for p in (0, 0.125, 0.25, 0.9)] == [0, 1, 2, 2]
    assert LabelTerm(weight=2.0).at(0) == 2


def test_without_labels_the_inner_objective_is_all():
    model = network()
    views = torch.randn(3, 3, 2, 2)
    pair = model(views, views, a_step())
    assert pair.loss.item() == 0
    assert "l_c" not in pair.terms


def test_weight_0_is_the_label_free_method_bit_for_bit(tiny, tmp_path):
    for name in ("calibre", "pfl-ssl"):
        off = host(tiny(f"method.name={name}", "method.labels.weight=0"), tmp_path / f"{name}0")
        state = off.initial_state()
        assert "head.weight" not in state.model
        site = off.site("method", state, 0)
        shuffled = torch.randperm(site.labelled)
        site.labels[: site.labelled] = site.labels[: site.labelled][shuffled]  # nobody looks
        method = off.load("method").method
        with_other_labels = method.local_update(state, None, site)
        assert equal(off.update(state, 0).shared["model"], with_other_labels.shared["model"])


def test_labels_change_what_is_learnt(tiny, tmp_path):
    home = host(tiny("method.name=calibre", *LABELS), tmp_path)
    state = home.initial_state()
    site = home.site("method", state, 0)
    site.labels[: site.labelled] = site.labels[: site.labelled].flip(0)
    other = home.load("method").method.local_update(state, None, site)
    assert not equal(home.update(state, 0).shared["model"], other.shared["model"])


def test_every_label_is_seen_equally_often(tiny, tmp_path):
    from calibre.methods.self_supervised import labelled_batch

    home = host(tiny("method.name=calibre", *LABELS), tmp_path)
    site = home.site("method", home.initial_state(), 0)
    size = max(2, site.labelled // 2 + 1)
    dealt = torch.cat([labelled_batch(site, step, size).labels for step in range(site.labelled)])
    whole = site.labels[: site.labelled]
    for k in whole.unique():
        share = (dealt == k).sum().item() / len(dealt)
        assert share == pytest.approx((whole == k).float().mean().item(), abs=1e-6)


def test_a_row_is_the_mean_over_those_who_hold_its_class(tiny, tmp_path):
    home = host(tiny("method.name=pfl-ssl", *LABELS), tmp_path)
    method, state = home.load("method").method, home.initial_state()
    updates = [home.update(state, client) for client in (0, 1, 2)]
    new = method.aggregate(state, updates).model
    for k in range(10):
        holders = [u for u in updates if u.shared["held"]["classes"][k]]
        if not holders:
            assert torch.equal(new["head.weight"][k], state.model["head.weight"][k])
            continue
        total = sum(u.samples for u in holders)
        expected = sum(u.samples * u.shared["model"]["head.weight"][k].double() for u in holders)
        assert torch.allclose(new["head.weight"][k].double(), expected / total, atol=1e-6)


def test_a_private_head_stays_with_its_client(tiny, tmp_path):
    home = host(tiny("method.name=calibre", *LABELS, "method.labels.head=private"), tmp_path)
    state = home.initial_state()
    update = home.update(state, 0)
    assert not any(name.startswith("head") for name in update.shared["model"])
    assert {"head.weight", "head.bias"} <= update.personal.keys()
    assert home.kept("method", home.load("method").method.aggregate(state, [update]), 0)


def test_a_client_without_labels_takes_part(tiny, tmp_path):
    import dataclasses

    home = host(tiny("method.name=calibre", *LABELS), tmp_path)
    state = home.initial_state()
    site = dataclasses.replace(home.site("method", state, 0), labelled=0)
    site.labels[:] = -1
    update = home.load("method").method.local_update(state, None, site)
    assert update.shared["held"]["classes"].sum() == 0
    assert torch.equal(update.shared["model"]["head.bias"], state.model["head.bias"])
    assert math.isfinite(update.report["loss"])


def test_results_name_which_it_was(tiny):
    assert tiny("method.name=calibre", *LABELS).method.label == "Calibre (SimCLR) with labels"
    assert tiny("method.name=calibre", "method.labels.weight=0").method.label == "Calibre (SimCLR)"
