"""What the training loop tells an objective, and when."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from calibre.engine import rounds
from calibre.errors import UserError
from calibre.local.sgd import SGD
from calibre.methods.self_supervised import collapse_monitors, first_views, train_objective
from calibre.ssl.objective import Objective, Pair
from tests.methods.helpers import equal, host


class Diary(Objective):
    """A tiny network that writes down all it is told."""

    shared = ("encoder",)

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 3))
        self.told = []

    def begin_round(self, draw):
        self.told.append(("begin", draw(7)))

    def forward(self, a, b, step):
        self.told.append(("forward", step, a, b, self.encoder[-1].weight.grad))
        z_a, z_b = self.encoder(a), self.encoder(b)
        return Pair((z_a - z_b).square().mean(), z_a, z_b, z_a, z_b, {"extra": z_a.sum()})

    def before_step(self, step):
        self.told.append(("before", step, self.encoder[-1].weight.grad.clone(), self.weight()))

    def after_step(self, step):
        self.told.append(("after", step, self.weight()))

    def weight(self):
        return self.encoder[-1].weight.detach().clone()


def watched(tiny, tmp_path, *changes, round_=0):
    """The site of client 0 with a diary for a network, and the report of its training."""
    home = host(tiny("method.name=pfl-ssl", *changes), tmp_path)
    torch.manual_seed(0)
    site = home.site("method", home.initial_state(), 0)
    site = replace(site, network=Diary(), round=round_)
    sgd = SGD(lr=0.1, momentum=0, weight_decay=0, batch=16, schedule="constant")
    return site, train_objective(site, sgd)


def test_a_step_is_forward_backward_before_the_optimizer_after(tiny, tmp_path):
    site, report = watched(tiny, tmp_path)
    told = site.network.told
    assert [entry[0] for entry in told] == ["begin", *["forward", "before", "after"] * 3]
    for forward, before, after in zip(told[1::3], told[2::3], told[3::3], strict=True):
        assert forward[4] is None  # gradients of the last step are gone
        torch.testing.assert_close(after[2], before[3] - 0.1 * before[2])
        for other in (before[1], after[1]):
            assert torch.equal(other.rows, forward[1].rows)
            assert other.progress == forward[1].progress
    assert {"loss", "l_s", "extra", "spread", "similarity"} <= report.keys()


def test_a_step_knows_its_images_their_labels_and_how_far_the_run_is(tiny, tmp_path):
    site, _ = watched(tiny, tmp_path, "training.epochs=2", "training.rounds=4", round_=3)
    steps = [entry[1] for entry in site.network.told if entry[0] == "forward"]
    for epoch in (0, 1):
        mine = steps[3 * epoch : 3 * epoch + 3]
        assert sorted(torch.cat([step.rows for step in mine]).tolist()) == list(range(40))
        assert all(step.progress == (3 * 2 + epoch) / (4 * 2) for step in mine)
    for step in steps:
        assert torch.equal(step.labels, site.labels[step.rows])
        assert not step.both
    assert min(step.labels.min() for step in steps) == -1


def test_the_views_are_those_of_the_steps_images(tiny, tmp_path):
    site, _ = watched(tiny, tmp_path)
    for count, (_, step, a, b, _) in enumerate(e for e in site.network.told if e[0] == "forward"):
        expected = site.two_views(step.rows, site.generator("views", count))
        assert torch.equal(a, expected[0])
        assert torch.equal(b, expected[1])


def test_randomness_is_of_this_step_and_purpose_alone(tiny, tmp_path):
    site, _ = watched(tiny, tmp_path)
    first, second = [e[1] for e in site.network.told if e[0] == "forward"][:2]
    draws = [
        torch.rand(3, generator=step.random(purpose)).tolist()
        for step in (first, second) for purpose in ("one", "other")
    ]  # fmt: skip
    assert len({tuple(draw) for draw in draws}) == 4
    assert torch.rand(3, generator=first.random("one")).tolist() == draws[0]


def test_a_round_begins_with_some_of_the_clients_own_images(tiny, tmp_path):
    site, _ = watched(tiny, tmp_path)
    sample = site.network.told[0][1]
    assert len(set(sample.rows.tolist())) == len(sample.views) == 7
    again = first_views(site, 7)
    assert torch.equal(sample.rows, again.rows)
    assert torch.equal(sample.views, again.views)
    everyone = first_views(site, 1000)  # no more than there are
    assert sorted(everyone.rows.tolist()) == list(range(40))
    assert torch.equal(everyone.rows[:7], sample.rows)
    plain = site.plain(site.images[sample.rows])
    near = (sample.views - plain).flatten(1).norm(dim=1)
    far = (sample.views - plain.roll(1, 0)).flatten(1).norm(dim=1)
    assert near.mean() < far.mean()  # augmented, but these images and in this order


def test_monitors_tell_collapse_from_health():
    generator = torch.Generator().manual_seed(0)
    healthy, alike = torch.randn(500, 16, generator=generator), torch.ones(500, 16)
    loss = torch.tensor(0.0)
    good = collapse_monitors(Pair(loss, healthy, healthy, healthy, healthy))
    bad = collapse_monitors(Pair(loss, alike, alike, alike, alike))
    assert 0.9 < good["spread"] < 1.1
    assert bad["spread"] < 1e-3
    unit = nn.functional.normalize(healthy, dim=1)
    cosines = unit @ unit.T
    expected = (cosines.sum() - cosines.trace()) / (500 * 499)
    torch.testing.assert_close(good["similarity"], expected, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(bad["similarity"], torch.tensor(1.0))


def test_labels_make_no_difference(tiny, tmp_path):
    home = host(tiny("method.name=pfl-ssl"), tmp_path)
    state, method = home.initial_state(), home.load("method").method
    site = home.site("method", state, 0)
    labelled = method.local_update(state, None, site)
    none = replace(home.site("method", state, 0), labels=torch.full((40,), -1), labelled=0)
    unlabelled = method.local_update(state, None, none)
    assert labelled.samples == unlabelled.samples == 40
    assert equal(labelled.shared["model"], unlabelled.shared["model"])


def test_small_views_are_handed_over_with_draws_of_their_own(tiny, tmp_path):
    plain, _ = watched(tiny, tmp_path / "a")
    site, _ = watched(tiny, tmp_path / "b", "views.extra=3", "views.extra_size=5")
    forwards = [entry for entry in site.network.told if entry[0] == "forward"]
    alone = [entry for entry in plain.network.told if entry[0] == "forward"]
    for (_, step, a, *_), (_, without, same, *_) in zip(forwards, alone, strict=True):
        assert step.small.shape == (3 * len(step.rows), 1, 5, 5)
        assert without.small is None
        assert torch.equal(a, same)
    first, second = (step.small for _, step, *_ in forwards[:2])
    assert not torch.equal(first[:5], second[:5])


def test_small_views_are_refused_where_nothing_would_use_them(tiny, tmp_path):
    with pytest.raises(UserError, match=r"views.extra = 2: 'fedavg' has no use for small views"):
        tiny("method.name=fedavg", "views.extra=2")
    vit = ("network.encoder=vit_tiny", "network.patch=4")
    with pytest.raises(UserError, match=r"views.extra = 2: network.encoder = 'vit_tiny' takes no"):
        host(tiny("method.name=pfl-ssl", "views.extra=2", *vit), tmp_path).initial_state()


@pytest.mark.parametrize("objective", ["simclr", "smog"])
def test_rounds_with_small_views_train(tiny, tmp_path, objective):
    chosen = ("method.name=calibre", f"method.objective={objective}")
    metrics = rounds.run(tiny(*chosen, "views.extra=2", "views.extra_size=4"), tmp_path)
    assert metrics.failures == 0
