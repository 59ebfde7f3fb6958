import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibre.methods.supervised import train_classifier
from calibre.tensors import take
from tests.methods.helpers import close, equal, host, parts, stopped_and_whole

APFL = "method.name=calibre.methods.apfl:APFL"
WHOLE = ("encoder", "head")


class Pixels(nn.Module):
    """No parameters: the whole network is then one linear layer."""

    features = 64

    def forward(self, x):
        return F.adaptive_avg_pool2d(x, 8)[:, 0].flatten(1)


def pixels(channels, width, stem):
    return Pixels()


LINEAR = "network.encoder=tests.methods.test_apfl:pixels"


def after_a_round(home, clients=(0, 1)):
    state = home.initial_state()
    updates = [home.update(state, client) for client in clients]
    return home.load("method").method.aggregate(state, updates), updates


def own(tensors):
    """v, by the names that w has."""
    return {n.removeprefix("own."): t for n, t in tensors.items() if parts([n]) == {"own"}}


def test_the_global_model_is_fedavgs_and_the_rest_stays(tiny, tmp_path):
    fedavg = host(tiny("method.name=fedavg"), tmp_path / "a")
    apfl = host(tiny(APFL), tmp_path / "b")
    one, other = fedavg.initial_state(), apfl.initial_state()
    for _ in range(2):
        expected = [fedavg.update(one, client) for client in (0, 1)]
        updates = [apfl.update(other, client) for client in (0, 1)]
        for update, plain in zip(updates, expected, strict=True):
            assert update.shared.keys() == {"model"}
            assert equal(update.shared["model"], plain.shared["model"])
            assert own(update.personal).keys() == plain.shared["model"].keys()
            assert parts(update.personal) == {"own", "alpha"}
        one = fedavg.load("method").method.aggregate(one, expected)
        other = apfl.load("method").method.aggregate(other, updates)
    assert updates[0].personal["alpha"] != 0.75
    assert updates[0].report["alpha"] == updates[0].personal["alpha"].item()


def test_at_alpha_0_the_mixture_is_the_global_model_and_v_rests(tiny, tmp_path):
    fixed = ("method.alpha=0", "method.adaptive=false", "method.sgd.weight_decay=0")
    home = host(tiny(APFL, *fixed, "personal.epochs=1"), tmp_path)
    state, (update, _) = after_a_round(home)
    v = own(update.personal)
    network = home.load("method").network
    for name, _ in network.own.named_parameters():
        assert torch.equal(v[name], home.load("method").initial[name]), name
    home.personalize(state, "method", [0])
    images = torch.randn(4, 1, 8, 8)
    network.eval()
    assert torch.equal(network(images), network.head(network.encoder(images)))


def test_at_alpha_1_v_is_trained_alone_whatever_w_is(tiny, tmp_path):
    experiment = tiny(APFL, "method.alpha=1", "method.adaptive=false")
    home = host(experiment, tmp_path / "a")
    state, _ = after_a_round(home, clients=(1, 2))
    update = home.update(state, 0)
    fedavg = host(tiny("method.name=fedavg"), tmp_path / "b")
    site = fedavg.site("method", state, 0)
    site.load()
    train_classifier(site, experiment.method.sgd, experiment.training.epochs)
    assert equal(own(update.personal), take(site.network, WHOLE))


def test_v_by_a_plain_torch_loop(tiny, tmp_path):
    """Two networks, two optimizers, each with a loss of its own; both step from the same point."""
    fixed = ("method.alpha=0.6", "method.adaptive=false", "training.epochs=2")
    experiment = tiny(APFL, *fixed)
    home = host(experiment, tmp_path)
    state, _ = after_a_round(home)
    update = home.update(state, 0)

    site, sgd = home.site("method", state, 0), experiment.method.sgd
    mixture = copy.deepcopy(site.network)
    w, v = nn.Sequential(mixture.encoder, mixture.head).train(), mixture.own.train()
    optimizers = [
        torch.optim.SGD(m.parameters(), sgd.lr, sgd.momentum, weight_decay=sgd.weight_decay)
        for m in (w, v)
    ]
    step = 0
    for epoch in range(2):
        order = torch.randperm(site.labelled, generator=site.generator("batches", epoch))
        for rows in torch.tensor_split(order, -(-site.labelled // sgd.batch)):
            images = site.weak_view(rows, site.generator("views", step))
            logits = w(images)
            mixed = 0.6 * v(images) + 0.4 * logits.data
            for optimizer, output in zip(optimizers, (logits, mixed), strict=True):
                optimizer.zero_grad()
                F.cross_entropy(output, site.labels[rows]).backward()
            for optimizer in optimizers:
                optimizer.step()
            step += 1
    assert close(own(update.personal), dict(v.state_dict()))


def test_alpha_takes_one_step_per_round_along_its_gradient(tiny, tmp_path):
    """For linear models dL/dalpha is <v - w, grad f(mixture)>; here at the first batch."""
    experiment = tiny(APFL, LINEAR, "training.epochs=2")
    home = host(experiment, tmp_path)
    state, (first, _) = after_a_round(home)
    update = home.update(state, 0)

    site = home.site("method", state, 0)
    before = first.personal["alpha"].item()
    order = torch.randperm(site.labelled, generator=site.generator("batches", 0))
    rows = torch.tensor_split(order, -(-site.labelled // experiment.method.sgd.batch))[0]
    x = Pixels()(site.weak_view(rows, site.generator("views", 0)))
    v, w = own(first.personal), state.model
    mixed = {n: (before * v[n] + (1 - before) * w[n]).requires_grad_() for n in w}
    loss = F.cross_entropy(F.linear(x, mixed["head.weight"], mixed["head.bias"]), site.labels[rows])
    slopes = torch.autograd.grad(loss, list(mixed.values()))
    slope = sum(((v[n] - w[n]) * g).sum().item() for n, g in zip(mixed, slopes, strict=True))
    assert abs(slope) > 1e-4
    expected = before - experiment.method.sgd.lr * slope
    assert update.personal["alpha"].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("start", "good", "end"), [(0.01, "w", 0.0), (0.99, "v", 1.0)])
def test_alpha_stays_a_share(tiny, tmp_path, start, good, end):
    """A step far beyond 0 or 1: one model knows the labels, the other is sure of nonsense."""
    home = host(tiny(APFL, LINEAR), tmp_path)
    state, _ = after_a_round(home)
    nonsense = {name: 100 * torch.ones_like(t) for name, t in state.model.items()}
    nonsense["head.bias"] = torch.linspace(-500, 500, 10)
    v, w = (nonsense, state.model) if good == "w" else (state.model, nonsense)
    personal = {f"own.{name}": t for name, t in v.items()} | {"alpha": torch.tensor(start)}
    server = type(state)(state.round, {"model": w})
    site = home.site("method", server, 0)
    site.load(w, personal)
    result = home.load("method").method.local_update(server, personal, site)
    assert result.personal["alpha"].item() == end


def test_an_alpha_that_is_not_adaptive_stays(tiny, tmp_path):
    home = host(tiny(APFL, "method.adaptive=false", "method.alpha=0.3"), tmp_path)
    state, _ = after_a_round(home)
    assert home.update(state, 0).personal["alpha"] == torch.tensor(0.3)


def test_who_trained_goes_on_with_v_and_alpha_and_a_new_client_starts_from_the_global_model(
    tiny, tmp_path
):
    home = host(tiny(APFL, "personal.epochs=0"), tmp_path)
    state, _ = after_a_round(home)
    update = home.update(state, 0)
    state = home.load("method").method.aggregate(state, [update])
    trained, idle, novel = home.personalize(state, "method", [0, 3, 6])
    assert equal(trained.tensors, {**state.model, **update.personal})
    for model in (idle, novel):
        assert equal(own(model.tensors), state.model)
        assert model.tensors["alpha"] == 0.75


def test_the_last_epochs_train_v_and_leave_every_bit_of_w_and_alpha(tiny, tmp_path):
    changes = ("personal.epochs=2", "method.sgd.schedule=cosine", "training.rounds=1")
    home = host(tiny(APFL, *changes), tmp_path)
    state, (update, _) = after_a_round(home)
    for model, start in zip(
        home.personalize(state, "method", [0, 6]), (own(update.personal), state.model), strict=True
    ):
        w = {n: t for n, t in model.tensors.items() if parts([n]) <= {"encoder", "head"}}
        assert equal(w, state.model)
        assert model.tensors["alpha"] == 0.75
        for name, tensor in own(model.tensors).items():
            assert not torch.equal(tensor, start[name]), name


def test_the_mixture_is_what_is_scored(tiny, tmp_path):
    home = host(tiny(APFL, "personal.epochs=1"), tmp_path)
    state, _ = after_a_round(home)
    (model,) = home.personalize(state, "method", [0])
    network, test = home.load("method").network.eval(), home._test(0)
    images = home.site("method", state, 0).plain(test.images)
    with torch.no_grad():
        global_logits = network.head(network.encoder(images))
        mixed = 0.75 * network.own(images) + 0.25 * global_logits
    right = (mixed.argmax(1) == test.labels).double().mean().item()
    assert model.accuracy == right
    assert torch.allclose(network(images), mixed, atol=1e-6)


def test_an_update_is_a_function_of_its_inputs(tiny, tmp_path):
    home = host(tiny(APFL), tmp_path)
    state, _ = after_a_round(home, clients=(0,))
    first = home.update(state, 3)  # v is not w here: alpha moves
    assert first.personal["alpha"] != 0.75
    home.update(state, 0)
    again = home.update(state, 3)
    assert equal(first.shared["model"], again.shared["model"])
    assert equal(first.personal, again.personal)


def test_a_stopped_run_goes_on_with_the_same_bits(tiny, tmp_path):
    stopped, whole = stopped_and_whole(tiny(APFL, "personal.epochs=1"), tmp_path)
    assert stopped == whole
