import dataclasses
import math

import pytest
import torch
from torch import nn

from calibre.engine import rounds
from calibre.models.resnet import resnet18
from calibre.ssl.swav import SwAV, sinkhorn
from tests.methods.helpers import close, equal, host
from tests.ssl.helpers import a_step, drawing

HERE = "method.objective.name=calibre.ssl.swav:SwAV"
METHODS = ("pfl-ssl", "calibre")


def objective(**settings):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 6))
    small = {"hidden": 8, "projection": 4, "prototypes": 5}
    return SwAV(**{**small, **settings}).build(encoder, 6)


def images(seed=0, count=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 2, 2, generator=generator)


def sinkhorn_of_the_paper(scores, epsilon, iterations):
    """Rows are prototypes, as in the paper, in float64 and with its own divisions."""
    scores = scores.double()
    q = torch.exp((scores - scores.max()) / epsilon).T  # [K, N]
    q /= q.sum()
    k, n = q.shape
    for _ in range(iterations):
        q /= q.sum(dim=1, keepdim=True)
        q /= k
        q /= q.sum(dim=0, keepdim=True)
        q /= n
    return (q * n).T


def scores_of(seed, n=16, k=5, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * (2 * torch.rand(n, k, generator=generator) - 1)


@pytest.mark.parametrize("iterations", [1, 3, 50])
@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_sinkhorn_is_the_papers(iterations, epsilon):
    scores = scores_of(1)
    expected = sinkhorn_of_the_paper(scores, epsilon, iterations)
    assert torch.allclose(sinkhorn(scores, epsilon, iterations).double(), expected, atol=2e-6)


@pytest.mark.parametrize("iterations", [1, 2, 3, 50])
def test_every_code_sums_to_one_and_prototypes_share_alike_only_in_the_end(iterations):
    codes = sinkhorn(scores_of(2, scale=0.3), 0.05, iterations)
    assert torch.allclose(codes.sum(dim=1), torch.ones(16), atol=1e-6)
    off = float((codes.sum(dim=0) - 16 / 5).abs().max())
    assert off < 1e-3 if iterations == 50 else off > 1e-2


def test_sinkhorn_does_not_overflow():
    codes = sinkhorn(scores_of(3, scale=100.0), 0.001, 3)
    assert torch.isfinite(codes).all()
    assert torch.allclose(codes.sum(dim=1), torch.ones(16), atol=1e-6)


def test_zero_scores_give_uniform_codes_and_the_loss_ln_k():
    assert torch.allclose(sinkhorn(torch.zeros(6, 5), 0.05, 3), torch.full((6, 5), 1 / 5))
    network = objective()
    with torch.no_grad():  # all projections orthogonal to all prototypes
        network.projector[-1].weight.zero_()
        network.projector[-1].bias.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0]))
        network.prototypes.weight[:, 3] = 0
    loss = network(images(1), images(2), a_step()).loss
    assert loss.item() == pytest.approx(math.log(5), abs=1e-6)


def test_the_loss_by_a_naive_loop_in_which_each_view_predicts_the_others_code():
    network = objective(temperature=0.2)
    pair = network(images(1), images(2), a_step())
    prototypes = network.prototypes.weight.detach().double()
    h_a, h_b = pair.h_a.detach().double(), pair.h_b.detach().double()
    q_a = sinkhorn_of_the_paper(h_a @ prototypes.T, 0.05, 3)
    q_b = sinkhorn_of_the_paper(h_b @ prototypes.T, 0.05, 3)
    total = 0.0
    for h, codes in ((h_a, q_b), (h_b, q_a)):
        for i in range(7):
            weights = [math.exp(float(h[i] @ prototypes[k]) / 0.2) for k in range(5)]
            for k in range(5):
                total -= float(codes[i, k]) * math.log(weights[k] / sum(weights)) / 7 / 2
    assert pair.loss.item() == pytest.approx(total, abs=1e-5)


def test_no_gradient_passes_through_the_codes():
    """The gradient equals that of the loss with the codes as given numbers."""
    network = objective()
    network(images(1), images(2), a_step()).loss.backward()
    through = network.prototypes.weight.grad.clone()
    weight = network.prototypes.weight.detach().clone().requires_grad_()
    pair = network(images(1), images(2), a_step())
    s_a, s_b = pair.h_a.detach() @ weight.T, pair.h_b.detach() @ weight.T
    q_a = sinkhorn_of_the_paper(s_a.detach(), 0.05, 3).float()
    q_b = sinkhorn_of_the_paper(s_b.detach(), 0.05, 3).float()
    loss = -(q_b * (s_a / 0.1).log_softmax(1)).sum(1).mean() / 2
    loss = loss - (q_a * (s_b / 0.1).log_softmax(1)).sum(1).mean() / 2
    loss.backward()
    assert torch.allclose(through, weight.grad, atol=1e-5)


def test_prototypes_and_projections_are_unit_whatever_arrives():
    network = objective()
    with torch.no_grad():
        network.prototypes.weight.mul_(torch.tensor([[3.0], [0.1], [1.0], [7.0], [0.5]]))
    direction = nn.functional.normalize(network.prototypes.weight.detach(), dim=1)
    pair = network(images(1), images(2), a_step())
    assert torch.allclose(network.prototypes.weight, direction)
    for h in (pair.h_a, pair.h_b):
        assert torch.allclose(h.norm(dim=1), torch.ones(7))
    assert all(tensor.requires_grad for tensor in (pair.z_a, pair.z_b, pair.h_a, pair.h_b))


def test_past_projections_help_to_share_out_and_nothing_else():
    network = objective(queue=10)
    first = network(images(1), images(2), a_step())
    second = network(images(3), images(4), a_step())
    prototypes = network.prototypes.weight.detach()
    codes = {
        view: sinkhorn_of_the_paper(torch.cat([new, old]).detach() @ prototypes.T, 0.05, 3)[:7]
        for view, new, old in (("a", second.h_a, first.h_a), ("b", second.h_b, first.h_b))
    }
    expected = 0.0
    for h, q in ((second.h_a, codes["b"]), (second.h_b, codes["a"])):
        logs = (h.detach() @ prototypes.T / 0.1).log_softmax(1)
        expected -= float((q * logs).sum(1).mean()) / 2
    assert second.loss.item() == pytest.approx(expected, abs=1e-5)
    # the newest ten, then none
    assert torch.equal(network.past[:7, 0], second.h_a.detach())
    assert torch.equal(network.past[7:, 1], first.h_b.detach()[:3])
    network.begin_round(drawing(images(5)))
    assert len(network.past) == 0
    assert torch.equal(network(images(1), images(2), a_step()).loss, first.loss)


def test_without_a_queue_nothing_is_remembered():
    network = objective()
    network(images(1), images(2), a_step())
    assert len(network.past) == 0


def test_prototypes_stay_put_in_the_first_steps_of_the_first_epoch_only():
    network = objective(freeze_prototypes=2)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, weight_decay=0.1)

    def moves(progress):
        step = a_step(progress=progress)
        network(images(1), images(2), step)  # makes the prototypes unit
        before = network.prototypes.weight.detach().clone()
        optimizer.zero_grad()
        network(images(1), images(2), step).loss.backward()
        network.before_step(step)
        optimizer.step()
        network.after_step(step)
        return not torch.allclose(before, network.prototypes.weight)

    assert [moves(progress=0.0) for _ in range(4)] == [False, False, True, True]
    network.begin_round(drawing(images(5)))
    assert moves(progress=0.01)


def test_sizes_are_the_papers_at_512_features():
    network = SwAV().build(resnet18(channels=3, width=64, stem="cifar"), 512)
    shapes = {name: tuple(t.shape) for name, t in network.projector.state_dict().items()}
    assert shapes["0.weight"] == (2048, 512)
    assert shapes["3.weight"] == (128, 2048)
    layers = [type(layer).__name__ for layer in network.projector]
    assert layers == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert network.prototypes.weight.shape == (100, 128)
    assert network.prototypes.bias is None
    assert len(objective(prototypes=None).prototypes.weight) == 30


def test_encoder_projector_and_prototypes_travel_and_nothing_is_kept(tiny, tmp_path):
    home = host(tiny("method.name=pfl-ssl", HERE, "method.objective.queue=32"), tmp_path)
    state = home.initial_state()
    update = home.update(state, 0)
    names = update.shared["model"]
    assert {name.split(".")[0] for name in names} == {"encoder", "projector", "prototypes"}
    assert names["prototypes.weight"].shape == (30, 4)
    assert update.personal is None


@pytest.mark.parametrize("method", METHODS)
def test_the_same_update_twice_whoever_trained_in_between(tiny, tmp_path, method):
    home = host(tiny(f"method.name={method}", HERE, "method.objective.queue=32"), tmp_path)
    state = home.initial_state()
    first = home.update(state, 0)
    home.update(state, 1)
    again = home.update(state, 0)
    assert equal(first.shared["model"], again.shared["model"])
    assert first.report == again.report
    assert not close(first.shared["model"], state.model)


def test_a_whole_experiment_gives_the_same_bits_twice(tiny, tmp_path):
    for name in ("one", "two"):
        rounds.run(tiny("method.name=calibre", HERE, "training.rounds=2"), tmp_path / name)
    for file in ("model.safetensors", "clients.csv"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_federation_of_one_is_training_without_one(tiny, tmp_path):
    """Two rounds through the server equal an unbroken torch loop over the same batches."""
    experiment = tiny(
        "method.name=pfl-ssl", HERE, "method.sgd.momentum=0", "training.rounds=2",
        "method.sgd.schedule=constant", "method.objective.freeze_prototypes=1",
    )  # fmt: skip
    home = host(experiment, tmp_path)
    start = home.initial_state()
    state = start
    for _ in range(2):
        state = home.load("method").method.aggregate(state, [home.update(state, 0)])

    sgd = experiment.method.sgd
    site = home.site("method", start, 0)
    network = site.network.train()
    optimizer = torch.optim.SGD(network.parameters(), sgd.lr, weight_decay=sgd.weight_decay)
    for round_ in range(2):
        at = dataclasses.replace(site, round=round_)
        order = torch.randperm(40, generator=at.generator("batches", 0))
        for step, rows in enumerate(torch.tensor_split(order, 3)):
            a, b = at.two_views(rows, at.generator("views", step))
            optimizer.zero_grad()
            network(a, b, a_step()).loss.backward()
            if round_ == 0 and step == 0:
                network.prototypes.weight.grad = None
            optimizer.step()
    assert close(state.model, dict(network.state_dict()))
