"""Momentum copies by themselves, then at work in a federation of a handful of digits."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from calibre import rng
from calibre.ssl.momentum import Target, cosine_momentum
from calibre.tensors import take
from tests.methods.helpers import close, equal, host
from tests.ssl.helpers import a_step

BYOL = "method.objective.name=calibre.ssl.byol:BYOL"
SIMSIAM = "method.objective.name=calibre.ssl.simsiam:SimSiam"
MOCO = "method.objective.name=calibre.ssl.moco:MoCo"


def networks(seed=0):
    with rng.isolated(seed, "test"):
        encoder = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
        return encoder, nn.Linear(4, 3)


def state(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def draw(*shape):
    return torch.randn(*shape, generator=rng.stream(0, "test"))


def test_momentum_rises_from_m0_to_one():
    assert cosine_momentum(0.9, 0.0) == pytest.approx(0.9)
    assert cosine_momentum(0.9, 0.5) == pytest.approx(0.95)
    assert cosine_momentum(0.9, 1.0) == 1.0
    third = 1 - 0.1 * (math.cos(math.pi / 3) + 1) / 2
    assert cosine_momentum(0.9, 1 / 3) == pytest.approx(third)


def test_one_step_is_the_formula():
    online = networks(1)
    target = Target(*networks(2), "reset")
    before = state(target)
    target.follow(*online, 0.75)
    names = {name for name, _ in target.named_parameters()}
    assert names == {
        "encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias",
        "projector.weight", "projector.bias",
    }  # fmt: skip
    theta = {f"encoder.{name}": p for name, p in online[0].named_parameters()}
    theta |= {f"projector.{name}": p for name, p in online[1].named_parameters()}
    for name, xi in target.named_parameters():
        torch.testing.assert_close(xi.data, 0.75 * before[name] + 0.25 * theta[name].data)


def test_momentum_zero_copies_and_one_freezes_bit_for_bit():
    online = networks(1)
    target = Target(*networks(2), "reset")
    before = state(target)
    target.follow(*online, 1.0)
    assert equal(state(target), before)
    target.follow(*online, 0.0)
    for own, of in ((target.encoder, online[0]), (target.projector, online[1])):
        for xi, theta in zip(own.parameters(), of.parameters(), strict=True):
            assert torch.equal(xi, theta)


def test_buffers_come_from_the_copys_own_passes():
    online = networks()
    target = Target(*online, "reset").train()
    online[0](draw(6, 5))  # only the online statistics move
    target.follow(*online, 0.0)
    assert torch.equal(target.encoder[1].running_mean, torch.zeros(4))
    assert target.encoder[1].num_batches_tracked == 0
    x = 2 * draw(6, 5)
    seen = target.encoder[0](x).mean(dim=0)
    online_mean = online[0][1].running_mean.clone()
    target(x)
    torch.testing.assert_close(target.encoder[1].running_mean, 0.1 * seen)
    assert torch.equal(online[0][1].running_mean, online_mean)


def test_no_gradient_reaches_the_copy():
    online = networks()
    target = Target(*online, "reset")
    assert not any(parameter.requires_grad for parameter in target.parameters())
    assert all(parameter.requires_grad for module in online for parameter in module.parameters())
    assert not target(draw(6, 5).requires_grad_()).requires_grad


def test_reset_starts_from_the_received_network_every_time():
    received = networks(1)
    received[0](draw(6, 5))  # buffers count, too
    target = Target(*networks(2), "reset")
    for _ in range(2):
        target.begin_round(*received)
        assert equal(state(target.encoder), state(received[0]))
        assert equal(state(target.projector), state(received[1]))
        target.follow(*networks(3), 0.5)
        assert not equal(state(target.projector), state(received[1]))


def test_average_starts_from_what_came_with_the_network():
    target = Target(*networks(2), "average")
    before = state(target)
    target.begin_round(*networks(1))
    assert equal(state(target), before)
    assert (target.shared, target.kept) == (("target",), ())


def test_local_starts_from_the_received_network_only_the_first_time():
    target = Target(*networks(2), "local")
    received = networks(1)
    target.begin_round(*received)
    assert equal(state(target.encoder), state(received[0]))
    target.follow(*networks(3), 0.5)
    kept = state(target)
    target.begin_round(*networks(4))
    assert equal(state(target.encoder), {n[8:]: kept[n] for n in kept if n.startswith("encoder.")})
    assert target.participations == 2
    assert (target.shared, target.kept) == ((), ("target",))


def test_the_copy_is_deep():
    online = networks()
    target = Target(*online, "reset")
    before = state(target)
    with torch.no_grad():
        for parameter in (*online[0].parameters(), *online[1].parameters()):
            parameter.add_(1)
    assert equal(state(target), before)


# In a federation


@pytest.mark.parametrize("method", ["pfl-ssl", "calibre"])
@pytest.mark.parametrize("objective", [BYOL, SIMSIAM, MOCO])
def test_an_update_is_a_function_of_its_inputs(tiny, tmp_path, method, objective):
    home = host(tiny(f"method.name={method}", objective), tmp_path)
    state = home.initial_state()
    first = home.update(state, 0)
    home.update(state, 3)  # another client uses the same network in between
    torch.rand(10)
    again = home.update(state, 0)
    assert equal(first.shared["model"], again.shared["model"])
    assert (first.samples, first.numbers) == (again.samples, again.numbers)
    assert first.report == again.report
    assert not equal(first.shared["model"], state.model)
    assert all(math.isfinite(value) for value in first.report.values())
    online = (
        {"encoder", "projector"} if objective == MOCO else {"encoder", "projector", "predictor"}
    )
    assert {name.split(".")[0] for name in first.shared["model"]} == online
    assert first.personal is None


def rounds(home, count):
    """A federation of one client: client 0."""
    state = home.initial_state()
    for _ in range(count):
        state = home.load("method").method.aggregate(state, [home.update(state, 0)])
    return state.model


def centralised(home, rounds):
    """The same steps without a federation: plain SGD by hand on a network that never leaves."""
    method, training = home.experiment.method, home.experiment.training
    state = home.initial_state()
    start = home.site("method", state, 0)
    network = start.network.train()
    network.begin_round(None)  # once; neither BYOL nor a lasting queue asks for images
    trained = [p for name, p in network.named_parameters() if not name.startswith("target.")]
    for round_ in range(rounds):
        site = dataclasses.replace(start, round=round_)
        count = 0
        for epoch in range(training.epochs):
            order = torch.randperm(len(site.images), generator=site.generator("batches", epoch))
            for rows in torch.tensor_split(order, -(-len(order) // method.sgd.batch)):
                done = round_ * training.epochs + epoch
                step = a_step(progress=done / (training.rounds * training.epochs))
                step = step._replace(rows=rows)
                views = site.two_views(rows, site.generator("views", count))
                gradients = torch.autograd.grad(network(*views, step).loss, trained)
                with torch.no_grad():
                    for parameter, gradient in zip(trained, gradients, strict=True):
                        parameter.add_(gradient, alpha=-method.sgd.lr)
                network.after_step(step)
                count += 1
    return take(network, network.shared)


STATELESS = (
    "method.name=pfl-ssl", "method.sgd.lr=0.01", "method.sgd.momentum=0",
    "method.sgd.weight_decay=0", "method.sgd.schedule=constant", "training.epochs=2",
)  # fmt: skip
LOCAL = ("method.objective.momentum=0.5", "method.objective.target_init=local")


@pytest.mark.parametrize(
    "objective",
    [(BYOL, *LOCAL), (MOCO, *LOCAL, "method.objective.persist=true"), (SIMSIAM,)],
    ids=["byol", "moco", "simsiam"],
)
def test_one_client_and_its_own_memory_is_centralised_training(tiny, tmp_path, objective):
    experiment = tiny(*STATELESS, *objective)
    federated = rounds(host(experiment, tmp_path / "a"), 2)
    central = host(experiment, tmp_path / "b")
    assert not close(federated, central.initial_state().model)
    assert close(federated, centralised(central, 2))


@pytest.mark.parametrize("forgotten", ["target_init=reset", "target_init=average"])
def test_a_copy_that_is_reset_is_not_centralised_but_an_averaged_one_of_one_client_is(
    tiny, tmp_path, forgotten
):
    remembering = host(tiny(*STATELESS, BYOL, *LOCAL), tmp_path / "a")
    other = host(tiny(*STATELESS, BYOL, *LOCAL, f"method.objective.{forgotten}"), tmp_path / "b")
    expected = centralised(remembering, 2)
    result = {name: t for name, t in rounds(other, 2).items() if name in expected}
    assert close(result, expected) == (forgotten == "target_init=average")


@pytest.mark.parametrize("objective", [BYOL, MOCO])
def test_an_averaged_copy_travels_and_a_local_one_stays(tiny, tmp_path, objective):
    averaged = host(
        tiny("method.name=pfl-ssl", objective, "method.objective.target_init=average"),
        tmp_path / "a",
    )
    update = averaged.update(averaged.initial_state(), 0)
    assert update.personal is None
    copied = {name for name in update.shared["model"] if name.startswith("target.")}
    online = {f"target.{n}" for n in update.shared["model"] if n[:7] in ("encoder", "project")}
    assert copied == online

    local = host(
        tiny("method.name=pfl-ssl", objective, "method.objective.target_init=local"),
        tmp_path / "b",
    )
    state = local.initial_state()
    update = local.update(state, 0)
    assert not any(name.startswith("target.") for name in update.shared["model"])
    assert set(update.personal) == online | {"target.participations"}
    assert update.personal["target.participations"] == 1
    later = dataclasses.replace(state, round=1)
    assert local.update(later, 0).personal["target.participations"] == 2
    assert local.update(later, 1).personal["target.participations"] == 1


def test_a_newcomers_copy_starts_from_what_it_receives_not_from_the_common_start(tiny, tmp_path):
    """With momentum 1 the copy stays where the round put it."""
    frozen = ("method.objective.target_init=local", "method.objective.momentum=1")
    home = host(tiny("method.name=pfl-ssl", BYOL, *frozen), tmp_path)
    state = home.initial_state()
    trained = home.load("method").method.aggregate(state, [home.update(state, 0)])
    newcomer = home.update(trained, 1).personal
    assert torch.equal(newcomer["target.projector.0.weight"], trained.model["projector.0.weight"])
    veteran = home.update(trained, 0).personal
    assert torch.equal(veteran["target.projector.0.weight"], state.model["projector.0.weight"])
