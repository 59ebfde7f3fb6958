import copy
import math

import pytest
import torch
from torch import nn

from calibre import rng
from calibre.ssl.byol import BYOL, distance
from tests.ssl.helpers import a_step


def objective(**settings):
    with rng.isolated(0, "test"):
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 6))
        network = BYOL(**{"hidden": 8, "projection": 4, "predictor": 5, **settings}).build(
            encoder, 6
        )
        with torch.no_grad():  # a copy that lags behind, as in the midst of training
            for parameter in network.target.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return network


def views(n=5):
    generator = rng.stream(0, "test")
    return [torch.randn(n, 3, 2, 2, generator=generator) for _ in range(2)]


def cosine(u, v):
    u, v = u.double().tolist(), v.double().tolist()
    return sum(x * y for x, y in zip(u, v, strict=True)) / math.hypot(*u) / math.hypot(*v)


def layers(module):
    return [
        tuple(layer.weight.shape[::-1]) if isinstance(layer, nn.Linear) else type(layer).__name__
        for layer in module
    ]


def test_online_parts_travel_and_the_momentum_copy_does_not():
    network = objective()
    assert network.shared == ("encoder", "projector", "predictor")
    assert network.kept == ()
    parts = {name.split(".")[0] for name in network.state_dict()}
    assert parts == {"encoder", "projector", "predictor", "target"}
    assert objective(target_init="average").shared == (*network.shared, "target")
    assert objective(target_init="local").shared == network.shared
    assert objective(target_init="local").kept == ("target",)


def test_at_512_features_the_heads_are_those_of_the_paper():
    network = BYOL().build(nn.Identity(), 512)
    assert layers(network.projector) == [(512, 2048), "BatchNorm1d", "ReLU", (2048, 256)]
    assert layers(network.predictor) == [(256, 2048), "BatchNorm1d", "ReLU", (2048, 256)]
    assert network.projector[-1].bias is not None


def test_distance_of_equal_orthogonal_and_opposite_vectors():
    p = torch.randn(4, 6, generator=rng.stream(0, "test"))
    assert distance(p, 3 * p).item() == pytest.approx(0, abs=1e-6)
    assert distance(torch.eye(4), torch.eye(4).roll(1, 0)).item() == pytest.approx(2)
    assert distance(p, -p).item() == pytest.approx(4)


def test_loss_by_a_plain_loop():
    network = objective()
    a, b = views()
    h = [network.projector(network.encoder(x)) for x in (a, b)]
    p = [network.predictor(x) for x in h]
    t = [network.target.projector(network.target.encoder(x)) for x in (a, b)]
    forth = sum(2 - 2 * cosine(p[0][i], t[1][i]) for i in range(5)) / 5
    back = sum(2 - 2 * cosine(p[1][i], t[0][i]) for i in range(5)) / 5
    pair = network(a, b, a_step())
    assert pair.loss.item() == pytest.approx((forth + back) / 2, rel=1e-5)
    torch.testing.assert_close(pair.h_a, h[0])
    torch.testing.assert_close(pair.h_b, h[1])
    torch.testing.assert_close(pair.z_b, network.encoder(b))


def test_the_target_gets_no_gradient_and_all_else_does():
    network = objective()
    network(*views(), a_step()).loss.backward()
    for name, parameter in network.named_parameters():
        if name.startswith("target."):
            assert parameter.grad is None
        else:
            assert parameter.grad.abs().sum() > 0


def test_z_and_h_carry_gradient_for_both_views():
    pair = objective()(*views(), a_step())
    for tensor in (pair.z_a, pair.z_b, pair.h_a, pair.h_b):
        assert tensor.requires_grad


def test_views_pass_both_networks_separately():
    network = objective()
    network(*views(), a_step())
    assert network.projector[1].num_batches_tracked == 2
    assert network.target.projector[1].num_batches_tracked == 2


def test_a_round_begins_with_a_copy_of_the_received_network():
    network = objective()
    network.begin_round(None)
    for part in ("encoder", "projector"):
        own, online = getattr(network.target, part), getattr(network, part)
        assert all(torch.equal(own.state_dict()[n], t) for n, t in online.state_dict().items())


@pytest.mark.parametrize(("progress", "m"), [(0.0, 0.6), (0.5, 0.8), (1.0, 1.0)])
def test_the_copy_follows_after_the_step(progress, m):
    network = objective(momentum=0.6)
    step = a_step(progress=progress)
    before = copy.deepcopy(network.target)
    network(*views(), step).loss.backward()
    for xi, old in zip(network.target.parameters(), before.parameters(), strict=True):
        assert torch.equal(xi, old)  # not yet
    torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.5).step()
    network.after_step(step)
    theta = dict(network.named_parameters())
    for name, old in before.named_parameters():
        expected = m * old + (1 - m) * theta[name].detach()
        torch.testing.assert_close(theta[f"target.{name}"].data, expected)


def test_full_precision_of_the_loss_and_no_harm_from_a_zero_vector():
    p = torch.randn(3, 4, generator=rng.stream(0, "test")).index_fill_(0, torch.tensor([1]), 0)
    p.requires_grad_()
    loss = distance(p, torch.ones(3, 4))
    loss.backward()
    assert p.grad.isfinite().all()
    assert distance(p.bfloat16(), torch.ones(3, 4).bfloat16()).dtype == torch.float32
