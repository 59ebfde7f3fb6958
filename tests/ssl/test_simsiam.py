import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from calibre import rng
from calibre.methods.self_supervised import collapse_monitors
from calibre.ssl.simsiam import SimSiam, distance
from tests.ssl.helpers import a_step


def objective(**settings):
    with rng.isolated(0, "test"):
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 6))
        sizes = {"hidden": 8, "projection": 7, "predictor": 3}
        return SimSiam(**{**sizes, **settings}).build(encoder, 6)


def views(n=5):
    generator = rng.stream(0, "test")
    return [torch.randn(n, 3, 2, 2, generator=generator) for _ in range(2)]


def cosine(u, v):
    u, v = u.double().tolist(), v.double().tolist()
    return sum(x * y for x, y in zip(u, v, strict=True)) / math.hypot(*u) / math.hypot(*v)


def heads(network, x):
    h = network.projector(network.encoder(x))
    return h, network.predictor(h)


def test_everything_travels():
    network = objective()
    assert network.shared == ("encoder", "projector", "predictor")
    assert network.kept == ()
    assert {name.split(".")[0] for name in network.state_dict()} == set(network.shared)


def test_at_512_features_the_heads_are_those_of_the_paper():
    network = SimSiam().build(nn.Identity(), 512)
    linear = [layer for layer in network.projector if isinstance(layer, nn.Linear)]
    norms = [layer for layer in network.projector if isinstance(layer, nn.BatchNorm1d)]
    names = [type(layer).__name__ for layer in network.projector]
    assert names == ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear", "BatchNorm1d"]
    assert [layer.weight.shape[::-1] for layer in linear] == [
        (512, 2048), (2048, 2048), (2048, 2048),
    ]  # fmt: skip
    assert [norm.affine for norm in norms] == [True, True, False]
    names = [type(layer).__name__ for layer in network.predictor]
    assert names == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert network.predictor[0].weight.shape == (512, 2048)  # a bottleneck
    assert network.predictor[3].weight.shape == (2048, 512)


def test_equal_vectors_are_at_minus_one():
    p = torch.randn(4, 6, generator=rng.stream(0, "test"))
    assert distance(p, 2 * p).item() == pytest.approx(-1)
    assert distance(torch.eye(4), torch.eye(4).roll(1, 0)).item() == pytest.approx(0)


def test_loss_by_a_plain_loop():
    network = objective()
    a, b = views()
    (h_a, p_a), (h_b, p_b) = heads(network, a), heads(network, b)
    forth = sum(-cosine(p_a[i], h_b[i]) for i in range(5)) / 5
    back = sum(-cosine(p_b[i], h_a[i]) for i in range(5)) / 5
    pair = network(a, b, a_step())
    assert pair.loss.item() == pytest.approx((forth + back) / 2, rel=1e-5)
    torch.testing.assert_close(pair.h_a, h_a)
    torch.testing.assert_close(pair.h_b, h_b)


@pytest.mark.parametrize("stop", [True, False])
def test_gradient_is_that_with_stop_gradient_and_not_that_without(stop):
    network = objective()
    a, b = views()
    parameters = list(network.parameters())
    actual = torch.autograd.grad(network(a, b, a_step()).loss, parameters)
    (h_a, p_a), (h_b, p_b) = heads(network, a), heads(network, b)
    if stop:
        h_a, h_b = h_a.detach(), h_b.detach()
    cosines = cosine_similarity(p_a, h_b) + cosine_similarity(p_b, h_a)
    by_hand = torch.autograd.grad(-cosines.mean() / 2, parameters)
    same = all(torch.allclose(x, y, atol=1e-6) for x, y in zip(actual, by_hand, strict=True))
    assert same == stop


def test_z_and_h_carry_gradient_for_both_views():
    pair = objective()(*views(), a_step())
    for tensor in (pair.z_a, pair.z_b, pair.h_a, pair.h_b):
        assert tensor.requires_grad


def test_views_pass_batch_norm_separately():
    network = objective()
    network(*views(), a_step())
    assert network.projector[1].num_batches_tracked == 2


def test_the_spread_of_projections_shows_collapse():
    network = objective(projection=64, hidden=128)
    healthy = collapse_monitors(network(*views(256), a_step()))
    assert 0.8 < healthy["spread"] < 1.1
    same = torch.ones(16, 3, 2, 2)
    assert collapse_monitors(network(same, same, a_step()))["spread"] < 0.01
