from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from calibre import rng
from calibre.engine import rounds
from calibre.errors import UserError
from calibre.local.sgd import SGD
from calibre.methods.fedavg import FedAvg
from calibre.methods.method import ServerState, Update
from calibre.methods.scaffold import Scaffold, with_control
from calibre.models.network import Classifier
from calibre.sections import TrainingSettings
from calibre.tensors import put, take
from tests.methods.helpers import close, equal, host

PLAIN = ("method.sgd.momentum=0", "method.sgd.weight_decay=0", "method.sgd.lr=0.1")


def one_round(home, state, clients):
    """The next state and the updates, read as a stream."""
    updates = []

    def stream():
        for client in clients:
            updates.append(home.update(state, client))
            yield updates[-1]

    return home.load("method").method.aggregate(state, stream()), updates


def parameters(network):
    return {n: p for n, p in network.named_parameters() if not n.startswith("control.")}


def test_one_client_is_sgd(tiny, tmp_path):
    alone = ("federation.clients=1", "training.clients_per_round=1")
    scaffold = host(tiny("method.name=scaffold", *alone), tmp_path / "a")
    fedavg = host(tiny("method.name=fedavg", *PLAIN, *alone), tmp_path / "b")
    one, other = scaffold.initial_state(), fedavg.initial_state()
    for _ in range(3):
        one, _ = one_round(scaffold, one, [0])
        other, _ = one_round(fedavg, other, [0])
        assert close(one.model, other.model)
    assert any(c.abs().max() > 1e-3 for c in one.groups["control"].values())


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_round_by_hand(tiny, tmp_path, schedule):
    """Corrected steps with raw gradients written out; c_i+ is the mean of those gradients."""
    experiment = tiny(
        "method.name=scaffold", f"method.sgd.schedule={schedule}", "training.epochs=2",
        "training.rounds=4", "method.sgd.batch=8",
    )  # fmt: skip
    home = host(experiment, tmp_path)
    start = home.initial_state()
    draw = torch.Generator().manual_seed(1)
    c, c_i = (
        {n: 0.1 * torch.randn(t.shape, generator=draw) for n, t in start.groups["control"].items()}
        for _ in range(2)
    )
    state = ServerState(1, {"model": start.model, "control": c})
    kept = {f"control.{name}": tensor for name, tensor in c_i.items()}
    home.keep.clients.save(2, 1, kept, 0)
    update = home.update(state, 2)

    site = home.site("method", state, 2)
    network, batch = site.network.train(), experiment.method.sgd.batch
    y = parameters(network)
    total, length, step = {name: torch.zeros_like(p) for name, p in y.items()}, 0.0, 0
    for epoch in range(2):
        eta = experiment.method.sgd.rate(2 + epoch, 8)
        order = torch.randperm(site.labelled, generator=site.generator("batches", epoch))
        for rows in torch.tensor_split(order, -(-site.labelled // batch)):
            logits = network(site.weak_view(rows, site.generator("views", step)))
            loss = torch.nn.functional.cross_entropy(logits, site.labels[rows])
            gradients = torch.autograd.grad(loss, list(y.values()))
            with torch.no_grad():
                for (name, p), g in zip(y.items(), gradients, strict=True):
                    p -= eta * (g - c_i[name] + c[name])
                    total[name] += eta * g
            length += eta
            step += 1
    assert step > 3
    assert close(update.shared["model"], take(network, ["encoder", "head"]))
    for name, tensor in total.items():
        mean = tensor / length
        assert torch.allclose(update.personal[f"control.{name}"], mean, atol=2e-6)
        assert torch.allclose(update.shared["control"][name], mean - c_i[name], atol=2e-6)


@pytest.mark.parametrize("chosen", [[(0, 1, 2, 3, 4)] * 3, [(0, 2), (2, 3), (0, 4)]])
def test_c_is_the_mean_of_all_c_i(tiny, tmp_path, chosen):
    """Also when only some take part: c_i of the others stays as it was, at first 0."""
    home = host(tiny("method.name=scaffold"), tmp_path)
    state = home.initial_state()
    kept = {}
    for clients in chosen:
        state, updates = one_round(home, state, clients)
        kept.update({update.client: update.personal for update in updates})
    for name, c in state.groups["control"].items():
        total = sum(personal[f"control.{name}"].double() for personal in kept.values())
        assert torch.allclose(c.double(), total / 5, atol=1e-6)
        assert c.abs().max() > 0


class Convex:
    """Two clients of opposite data, full batches, weight decay: a strongly convex problem."""

    def __init__(self, sgd, epochs):
        self.training = TrainingSettings(rounds=60, clients_per_round=2, epochs=epochs)
        self.sgd = sgd
        with rng.isolated(0, "test"):
            self.data = [
                (torch.randn(20, 3).double() + shift, (torch.rand(20) < share).long())
                for shift, share in [(2.0, 0.9), (-1.0, 0.6)]
            ]
            self.classifier = Classifier(nn.Identity(), nn.Linear(3, 2)).double()

    def site(self, client, round_, network):
        images, labels = self.data[client]
        return SimpleNamespace(
            client=client, round=round_, training=self.training, network=network, images=images,
            labels=labels, labelled=20, weak_view=lambda rows, generator: images[rows],
            device=torch.device("cpu"), amp=False,
            generator=lambda purpose, *keys: rng.stream(0, purpose, round_, client, *keys),
        )  # fmt: skip

    def solve(self, method, network):
        initial = take(network)
        state, kept = replace(method.init(network), clients=2), [None, None]
        for round_ in range(self.training.rounds):
            updates = []
            for i in range(2):
                put(network, {**initial, **state.model, **(kept[i] or {})})
                updates.append(method.local_update(state, kept[i], self.site(i, round_, network)))
            kept = [update.personal for update in updates]
            state = method.aggregate(state, updates)
        return state.model["head.weight"]

    def optimum(self):
        weight, bias = torch.zeros(2, 3).double(), torch.zeros(2).double()
        lbfgs = torch.optim.LBFGS(
            [weight.requires_grad_(), bias.requires_grad_()], max_iter=500, tolerance_grad=1e-12,
            tolerance_change=1e-14, line_search_fn="strong_wolfe",
        )  # fmt: skip

        def objective():
            lbfgs.zero_grad()
            risks = [
                torch.nn.functional.cross_entropy(x @ weight.T + bias, y) for x, y in self.data
            ]
            norm = weight.square().sum() + bias.square().sum()
            loss = sum(risks) / 2 + self.sgd.weight_decay / 2 * norm
            loss.backward()
            return loss

        lbfgs.step(objective)
        return weight.detach()


def test_unlike_clients_reach_the_optimum_where_fedavg_stalls():
    sgd = SGD(lr=0.3, momentum=0, weight_decay=0.3, batch=32, schedule="constant")
    problem = Convex(sgd, epochs=5)
    best = problem.optimum()
    fedavg = problem.solve(FedAvg(sgd=sgd), problem.classifier)
    problem = Convex(sgd, epochs=5)
    scaffold = problem.solve(Scaffold(sgd=sgd), with_control(problem.classifier))
    assert (fedavg - best).norm() > 1e-2
    assert (scaffold - best).norm() < 1e-5


def fake(client, samples, w, buffer, change):
    model = {"w": torch.tensor([w]), "var": torch.tensor([buffer]), "n": torch.tensor(client)}
    shared = {"model": model, "control": {"w": torch.tensor([change])}}
    return Update(client, samples, shared)


def test_the_server_step_is_of_parameters_and_does_not_weigh_samples():
    model = {"w": torch.tensor([1.0]), "var": torch.tensor([1.0]), "n": torch.tensor(0)}
    groups = {"model": model, "control": {"w": torch.tensor([10.0])}}
    server = ServerState(2, groups, clients=8)
    updates = [fake(3, 10, 2.0, 0.25, 4.0), fake(5, 90, 6.0, 0.75, 0.0)]
    after = Scaffold(eta_g=3).aggregate(server, iter(updates))
    assert after.round == 3
    assert after.model["w"].item() == pytest.approx(1 + 3 * (4 - 1))
    assert after.model["var"].item() == 0.5  # a mean of values: eta_g would make it negative
    assert after.model["n"].item() == 5
    assert after.model["n"].dtype == torch.int64
    assert after.groups["control"]["w"].item() == pytest.approx(10 + 2 / 8 * 2)


def test_what_travels_and_what_stays(tiny, tmp_path):
    home = host(tiny("method.name=scaffold"), tmp_path)
    state = home.initial_state()
    network = home.load("method").network
    trainable = set(parameters(network))
    everything = {name for name in network.state_dict() if not name.startswith("control.")}
    assert trainable < everything
    update = home.update(state, 0)
    assert set(state.groups) == set(update.shared) == {"model", "control"}
    assert set(update.shared["model"]) == set(state.model) == everything
    assert set(update.shared["control"]) == set(state.groups["control"]) == trainable
    assert set(update.personal) == {f"control.{name}" for name in trainable}
    assert all(not p.any() for p in state.groups["control"].values())
    assert home.load("method").method.weight(update) == 1
    assert update.samples == len(home.federation.client(0).labelled)
    assert state.clients == 5


def test_an_update_is_a_function_of_its_inputs(tiny, tmp_path):
    home = host(tiny("method.name=scaffold"), tmp_path)
    state, _ = one_round(home, home.initial_state(), [0, 1])
    first = home.update(state, 0)
    home.update(state, 3)  # another client uses the same network in between
    again = home.update(state, 0)
    for group in ("model", "control"):
        assert equal(first.shared[group], again.shared[group])
    assert equal(first.personal, again.personal)


def test_momentum_is_refused_with_the_reason(tiny):
    with pytest.raises(UserError, match=r"method.sgd.momentum = 0.9.*10 times.*set it to 0"):
        tiny("method.name=scaffold", "method.sgd.momentum=0.9")


def test_the_personal_model_is_the_global_one_whatever_c_i_is(tiny, tmp_path):
    home = host(tiny("method.name=scaffold"), tmp_path)
    state, _ = one_round(home, home.initial_state(), [0, 1])
    models = home.personalize(state, "method", [0, 6])
    assert all(model.tensors == {} for model in models)
    home.personalize(state, "method", [0])
    assert equal(take(home.load("method").network, ["encoder", "head"]), state.model)


@pytest.mark.parametrize(
    ("name", "label"), [("scaffold", "SCAFFOLD"), ("scaffold-ft", "SCAFFOLD-FT")]
)
def test_whole_runs_stopped_or_not(tiny, tmp_path, name, label):
    experiment = tiny(f"method.name={name}")

    def stop(event):
        if event.event == "round" and event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rounds.run(experiment, tmp_path / "stopped", stop)
    rounds.run(experiment, tmp_path / "stopped")
    metrics = rounds.run(experiment, tmp_path / "whole")
    assert metrics.method == label
    assert metrics.failures == 0
    for file in ("model.safetensors", "clients.csv"):
        one, other = (tmp_path / run / file for run in ("stopped", "whole"))
        assert one.read_bytes() == other.read_bytes()
