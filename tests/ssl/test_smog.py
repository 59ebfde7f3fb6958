import dataclasses
import math

import pytest
import torch
from torch import nn

from calibre.engine import rounds
from calibre.models.resnet import resnet18
from calibre.ssl.smog import SMoG, moved
from tests.methods.helpers import close, equal, host
from tests.ssl.helpers import a_step, drawing

HERE = "method.objective.name=calibre.ssl.smog:SMoG"
METHODS = ("pfl-ssl", "calibre")


def objective(**settings):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 6))
    small = {"hidden": 8, "projection": 4, "groups": 9}
    network = SMoG(**{**small, **settings}).build(encoder, 6)
    network.begin_round(drawing(images(9)))
    return network


def images(seed=0, count=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 2, 2, generator=generator)


def vectors(count, seed):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def cosine(one, other):
    return float(one @ other / one.norm() / other.norm())


def nearest(vector, groups):
    return max(range(len(groups)), key=lambda k: cosine(vector, groups[k]))


def naively_moved(groups, u, beta):
    """One group after another, as the paper writes it."""
    result = groups.clone()
    homes = [nearest(vector, groups) for vector in u]
    for k in set(homes):
        members = [vector for vector, home in zip(u, homes, strict=True) if home == k]
        result[k] = beta * groups[k] + (1 - beta) * sum(members) / len(members)
    return result, set(homes)


def test_groups_move_as_by_a_naive_loop_and_untouched_ones_not_by_a_bit():
    groups, u = vectors(9, 1), vectors(5, 2)
    expected, touched = naively_moved(groups, u, 0.9)
    result = moved(groups, u, 0.9)
    assert torch.allclose(result, expected)
    untouched = [k for k in range(9) if k not in touched]
    assert 0 < len(untouched) < 9
    assert torch.equal(result[untouched], groups[untouched])


def test_one_touched_group_is_beta_g_plus_the_rest_of_the_mean():
    groups = torch.eye(4)
    u = torch.tensor([[0.0, 2.0, 0.1, 0.0], [0.0, 4.0, 0.0, 0.3]])
    result = moved(groups, u, 0.75)
    assert torch.allclose(result[1], torch.tensor([0.0, 0.75 + 0.25 * 3, 0.25 * 0.05, 0.25 * 0.15]))
    assert torch.equal(result[[0, 2, 3]], groups[[0, 2, 3]])


def test_gradient_reaches_the_groups_members_and_by_how_much():
    groups = torch.eye(4)
    u = torch.tensor([[0.0, 2.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0]], requires_grad=True)
    moved(groups, u, 0.75)[1].sum().backward()
    assert torch.allclose(u.grad, torch.full((2, 4), 0.25 / 2))


def test_with_beta_one_groups_are_frozen_and_carry_no_gradient():
    groups, u = vectors(9, 1), vectors(5, 2).requires_grad_()
    result = moved(groups, u, 1.0)
    assert torch.equal(result, groups)
    result.square().sum().backward()
    assert torch.equal(u.grad, torch.zeros(5, 4))


def step(network, a, b, lr=0.0, both=False):
    """One step of training by hand; what the forward pass gave."""
    network.zero_grad()
    pair = network(a, b, a_step(both=both))
    pair.loss.backward()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter -= lr * parameter.grad
    network.after_step(a_step())
    return pair


def test_the_loss_by_a_naive_loop_and_roles_that_take_turns():
    network = objective(beta=0.8, temperature=0.2)
    for turn in range(3):
        a, b = images(2 * turn), images(2 * turn + 1)
        groups = network.groups.vectors.clone()
        pair = step(network, a, b, both=True)  # lr 0: only the groups change
        first, second = (b, a) if turn == 1 else (a, b)
        u = network.projector(network.encoder(first)).detach()
        p = network.predictor(u).detach()
        t = network.projector(network.encoder(second)).detach()  # the target is still a copy
        updated, _ = naively_moved(groups, u, 0.8)
        total = 0.0
        for i in range(7):
            logits = [math.exp(cosine(p[i], group) / 0.2) for group in updated]
            total -= math.log(logits[nearest(t[i], groups)] / sum(logits)) / 7
        assert pair.loss.item() == pytest.approx(total, abs=1e-5)
        assert torch.allclose(network.groups.vectors, updated, atol=1e-6)
        assert torch.allclose(pair.h_b if turn == 1 else pair.h_a, u)


def test_the_loss_changes_when_the_members_move_the_groups():
    """Gradient passes through g' too, not only through p: the head's gradient says so."""
    frozen, moving = objective(beta=1.0), objective(beta=0.5)
    grads = []
    for network in (frozen, moving):
        with torch.no_grad():
            network.predictor[-1].weight.zero_()  # p is constant: no gradient by that way
        network(images(1), images(2), a_step()).loss.backward()
        grads.append(network.encoder[1].weight.grad.abs().sum())
    assert grads[0] < 1e-6 < 1e-4 < grads[1]


def test_where_both_are_used_both_views_pass_the_online_network_in_their_own_place():
    network = objective()
    network.eval()  # batch norm gives an image the same projection in any company
    for _ in range(2):
        a, b = images(1), images(2)
        z_a, z_b = network.encoder(a), network.encoder(b)
        h_a, h_b = network.projector(z_a), network.projector(z_b)
        pair = step(network, a, b, both=True)
        for got, expected in zip(pair[1:5], (z_a, z_b, h_a, h_b), strict=True):
            assert torch.allclose(got, expected)
            assert got.requires_grad


def test_unless_both_are_used_the_one_view_that_is_trained_on_stands_for_both():
    network = objective()
    passes = []
    network.encoder.register_forward_hook(lambda *_: passes.append(1))
    pair = network(images(1), images(2), a_step())
    assert len(passes) == 1
    assert torch.equal(pair.z_a, network.encoder(images(1)))
    assert pair.z_a is pair.z_b
    assert pair.h_a is pair.h_b


@pytest.mark.parametrize("momentum", [0.0, 0.7, 1.0])
def test_the_momentum_network_follows_by_its_formula(momentum):
    network = objective(momentum=momentum)
    leaders = [*network.encoder.parameters(), *network.projector.parameters()]
    followers = list(network.target.parameters())
    assert len(leaders) == len(followers)
    assert not any(parameter.requires_grad for parameter in followers)
    before = [parameter.clone() for parameter in followers]
    step(network, images(1), images(2), lr=0.5)
    for old, leader, follower in zip(before, leaders, followers, strict=True):
        assert torch.allclose(follower, momentum * old + (1 - momentum) * leader)
    assert not torch.equal(before[0], leaders[0])


def test_a_round_begins_with_a_copy_of_the_online_network_and_unit_groups():
    network = objective()
    for _ in range(3):
        step(network, images(1), images(2), lr=0.5)
    direction = nn.functional.normalize(network.groups.vectors, dim=1)
    assert network.steps == 3
    network.begin_round(drawing(images(3)))
    assert network.steps == 0
    assert torch.allclose(network.groups.vectors, direction)
    assert equal(network.target.encoder.state_dict(), network.encoder.state_dict())
    assert equal(network.target.projector.state_dict(), network.projector.state_dict())


def test_groups_start_as_unit_vectors_in_all_directions():
    groups = objective(groups=500).groups.vectors
    assert torch.allclose(groups.norm(dim=1), torch.ones(500))
    assert groups.mean(dim=0).abs().max() < 0.1  # not all in one orthant


def test_groups_are_clustered_anew_when_asked_to():
    network = objective(reset_every=2, groups=3)
    step(network, images(1), images(2), lr=0.5)
    assert not torch.equal(network.target.encoder[1].weight, network.encoder[1].weight)
    old = network.updated
    recent = torch.cat(network.bank)
    second = network(images(3), images(4), a_step())
    recent = nn.functional.normalize(torch.cat([recent, second.h_a.detach()]), dim=1)
    network.after_step(a_step())
    groups = network.groups.vectors
    assert not torch.allclose(groups, old, atol=1e-2)
    assert torch.allclose(groups.norm(dim=1), torch.ones(3))
    # a fixed point of spherical k-means: every group is the direction of its members' mean
    homes = torch.tensor([nearest(vector, groups) for vector in recent])
    for k in range(3):
        mean = recent[homes == k].mean(dim=0)
        assert cosine(mean, groups[k]) == pytest.approx(1, abs=1e-5)
    assert torch.equal(network.target.encoder[1].weight, network.encoder[1].weight)
    assert network.bank == []


def test_fewer_images_than_groups_renew_only_some_groups():
    network = objective(reset_every=1, groups=9)
    step(network, images(1, 3), images(2, 3))
    kept = network.updated
    assert torch.equal(network.groups.vectors[3:], kept[3:])
    assert not torch.allclose(network.groups.vectors[:3], kept[:3], atol=1e-2)


def test_sizes_are_the_papers_at_512_features():
    network = SMoG().build(resnet18(channels=3, width=64, stem="cifar"), 512)
    assert network.projector[0].weight.shape == (2048, 512)
    assert network.projector[3].weight.shape == (128, 2048)
    last = network.projector[4]
    assert isinstance(last, nn.BatchNorm1d)
    assert not last.affine
    layers = [type(layer).__name__ for layer in network.predictor]
    assert layers == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert network.predictor[0].weight.shape == (2048, 128)
    assert network.predictor[3].weight.shape == (128, 2048)
    assert network.groups.vectors.shape == (100, 128)
    assert len(objective(groups=None).groups.vectors) == 30


def test_groups_travel_and_the_momentum_network_does_not(tiny, tmp_path):
    home = host(tiny("method.name=pfl-ssl", HERE), tmp_path)
    state = home.initial_state()
    update = home.update(state, 0)
    names = update.shared["model"]
    assert {n.split(".")[0] for n in names} == {"encoder", "projector", "predictor", "groups"}
    assert names["groups.vectors"].shape == (30, 4)
    assert update.personal is None
    assert not torch.equal(names["groups.vectors"], state.model["groups.vectors"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reset", [0, 2])
def test_the_same_update_twice_whoever_trained_in_between(tiny, tmp_path, method, reset):
    changes = (f"method.name={method}", HERE, f"method.objective.reset_every={reset}")
    home = host(tiny(*changes), tmp_path)
    state = home.initial_state()
    first = home.update(state, 0)
    home.update(state, 1)
    torch.rand(3)
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
    """Two rounds through the server equal an unbroken torch loop over the same batches.

    With momentum 0 and beta 1 nothing but the online network has a memory, and two steps a round
    leave the roles in turn.
    """
    experiment = tiny(
        "method.name=pfl-ssl", HERE, "method.sgd.momentum=0", "training.rounds=2",
        "method.sgd.schedule=constant", "method.sgd.batch=20",
        "method.objective.momentum=0", "method.objective.beta=1",
    )  # fmt: skip
    home = host(experiment, tmp_path)
    start = home.initial_state()
    state = start
    for _ in range(2):
        state = home.load("method").method.aggregate(state, [home.update(state, 0)])

    sgd = experiment.method.sgd
    site = home.site("method", start, 0)
    network = site.network.train()
    network.begin_round(drawing(site.images))
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, sgd.lr, weight_decay=sgd.weight_decay)
    for round_ in range(2):
        at = dataclasses.replace(site, round=round_)
        order = torch.randperm(40, generator=at.generator("batches", 0))
        for batch, rows in enumerate(order.split(20)):
            a, b = at.two_views(rows, at.generator("views", batch))
            optimizer.zero_grad()
            network(a, b, a_step()).loss.backward()
            optimizer.step()
            network.after_step(a_step())
    expected = {name: t for name, t in network.state_dict().items() if name in state.model}
    assert close(state.model, expected)
