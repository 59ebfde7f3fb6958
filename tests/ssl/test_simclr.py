import math

import torch
from torch import nn

from calibre.ssl.simclr import SimCLR
from tests.ssl.helpers import a_step


def objective(**settings):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 6))
    return SimCLR(hidden=8, projection=4, **settings).build(encoder, 6)


def test_encoder_and_projector_travel():
    network = objective()
    assert network.shared == ("encoder", "projector")
    assert {name.split(".")[0] for name in network.state_dict()} == set(network.shared)


def test_the_projector_is_batch_normed_as_in_the_paper():
    layers = [type(layer).__name__ for layer in objective().projector]
    assert layers == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]


def test_loss_is_ntxent_of_the_projections_by_a_naive_loop():
    network = objective(temperature=0.3)
    a, b = torch.randn(5, 3, 2, 2), torch.randn(5, 3, 2, 2)
    pair = network(a, b, a_step())
    vectors = [v / v.norm() for v in torch.cat([pair.h_a, pair.h_b]).detach()]
    total = 0.0
    for i in range(10):
        positive = (i + 5) % 10
        weights = {j: math.exp(float(vectors[i] @ vectors[j]) / 0.3) for j in range(10) if j != i}
        total -= math.log(weights[positive] / sum(weights.values()))
    assert abs(pair.loss.item() - total / 10) < 1e-5


def test_z_and_h_carry_gradient_for_both_views():
    network = objective()
    pair = network(torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2), a_step())
    for tensor in (pair.z_a, pair.z_b, pair.h_a, pair.h_b):
        assert tensor.requires_grad


def test_views_pass_batch_norm_separately():
    network = objective()
    network.eval()
    before = network.projector[1].num_batches_tracked.clone()
    network.train()
    network(torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2), a_step())
    assert network.projector[1].num_batches_tracked - before == 2
