"""Small views beside the two ("multi-crop"), in every objective that has a use for them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from calibre import rng
from calibre.registry import OBJECTIVES
from calibre.settings import look_up, validate
from calibre.ssl.moco import info_nce
from calibre.ssl.ntxent import find_image, ntxent
from calibre.ssl.small_views import pass_small
from calibre.ssl.smog import cosines
from tests.ssl.helpers import a_step, drawing

N, SMALL = 6, 3


class Pooling(nn.Module):
    """An encoder that takes images of any size."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return self.norm(self.conv(x)).relu().mean(dim=(2, 3))


def views(count, side, seed):
    return torch.randn(count, 3, side, side, generator=rng.stream(seed, "views"))


def objective(name):
    settings = validate(look_up("objective", name, OBJECTIVES), {"hidden": 8, "projection": 4})
    with rng.isolated(0, "objective"):
        return settings.build(Pooling(), 8)


def forward(network, small):
    a, b = views(N, 8, 1), views(N, 8, 2)
    network.begin_round(drawing(views(N, 8, 4)))
    return network(a, b, a_step(N, small=small))


def of_small(name, network, small, pair):
    """The mean loss of the small views over both targets, from the network's parts."""
    h = network.projector(network.encoder(small))
    a, b = views(N, 8, 1), views(N, 8, 2)
    each = h.split(N)
    if name == "simclr":
        return find_image(h, pair.h_a, pair.h_b, network.temperature)
    if name == "swav":
        tau = network.settings.temperature
        with torch.no_grad():
            codes = [network._codes(network.prototypes(x), network.past[:0, 0]) for x in
                     (pair.h_a, pair.h_b)]  # fmt: skip
        scores = [network.prototypes(normalize(x, dim=1)) / tau for x in each]
        return torch.stack([cross_entropy(s, q) for s in scores for q in codes]).mean()
    if name == "smog":
        y = cosines(network.target(b), network.groups.vectors).argmax(dim=1)
        guesses = network.predictor(h).split(N)
        scores = [cosines(p, network.updated) / 0.1 for p in guesses]
        return torch.stack([cross_entropy(s, y) for s in scores]).mean()
    if name == "moco":
        keys = [network._keys(x) for x in (a, b)]
        own = torch.eye(N, dtype=torch.bool)  # of the queue's keys: those of the same image
        losses = [info_nce(x, k, network.queue.keys, own, 0.2) for x in each for k in keys]
        return torch.stack(losses).mean()
    guesses = network.predictor(h).split(N)
    if name == "byol":
        targets = [network.target(x) for x in (a, b)]
        near = [cosine_similarity(p, t).mean() for p in guesses for t in targets]
        return 2 - 2 * torch.stack(near).mean()
    near = [cosine_similarity(p, t).mean() for p in guesses for t in (pair.h_a, pair.h_b)]
    return -torch.stack(near).mean()


@pytest.mark.parametrize("name", [*OBJECTIVES])
def test_all_views_count_alike_and_only_the_two_are_targets(name):
    small = views(SMALL * N, 5, 3)
    network = objective(name)
    other = copy.deepcopy(network)
    alone = forward(other, None)
    pair = forward(network, small)
    for mine, theirs in zip(network.buffers(), other.buffers(), strict=True):
        assert torch.equal(mine, theirs)
    expected = (alone.loss + SMALL * of_small(name, network, small, pair)) / (1 + SMALL)
    torch.testing.assert_close(pair.loss, expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(pair.h_a, alone.h_a)  # what Calibre's terms see stays the same


@pytest.mark.parametrize("name", [*OBJECTIVES])
def test_gradients_come_from_the_small_views_too(name):
    small = views(N, 5, 3).requires_grad_()
    forward(objective(name), small).loss.backward()
    assert small.grad.abs().sum() > 0


def test_small_views_leave_no_trace_in_running_statistics():
    network = Pooling()
    before = copy.deepcopy(network.state_dict())
    x = views(N, 5, 3)
    found = pass_small(network, x)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert network.norm.track_running_stats
    assert torch.equal(found, network(x))  # the batch's own statistics count, as ever in training
    assert not torch.equal(network.norm.running_mean, before["norm.running_mean"])
    network.eval()
    assert torch.equal(pass_small(network, x), network(x))


def test_simclr_with_small_views_is_ntxent_and_the_search_for_images():
    network = objective("simclr")
    small = views(2 * N, 5, 3)
    pair = forward(network, small)
    h_s = network.projector(network.encoder(small))
    tau = network.temperature
    expected = (ntxent(pair.h_a, pair.h_b, tau) + 2 * find_image(h_s, pair.h_a, pair.h_b, tau)) / 3
    torch.testing.assert_close(pair.loss, expected)
