import pytest
import torch

from calibre.engine import rounds
from calibre.tensors import take
from tests.methods.helpers import close, equal, host


def test_without_mu_it_is_fedavg_bit_for_bit(tiny, tmp_path):
    fedprox = host(tiny("method.name=fedprox", "method.mu=0", "method.sgd.batch=4"), tmp_path / "a")
    fedavg = host(tiny("method.name=fedavg", "method.sgd.batch=4"), tmp_path / "b")
    one, other = fedprox.initial_state(), fedavg.initial_state()
    for clients in ([0, 1], [1, 4]):
        one, other = (
            home.load("method").method.aggregate(s, [home.update(s, c) for c in clients])
            for home, s in ((fedprox, one), (fedavg, other))
        )
        assert equal(one.model, other.model)


def test_an_update_minimises_the_proximal_objective(tiny, tmp_path):
    """CE + mu/2 ||w - w^t||^2 written as a loss, through autograd and torch.optim.SGD."""
    experiment = tiny(
        "method.name=fedprox", "method.mu=0.7", "training.epochs=2", "method.sgd.batch=8"
    )
    home = host(experiment, tmp_path)
    state = home.initial_state()
    update = home.update(state, 2)

    site = home.site("method", state, 2)
    network, sgd = site.network.train(), experiment.method.sgd
    optimizer = torch.optim.SGD(
        network.parameters(), sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    step = 0
    for epoch in range(2):
        order = torch.randperm(site.labelled, generator=site.generator("batches", epoch))
        for rows in torch.tensor_split(order, -(-site.labelled // sgd.batch)):
            logits = network(site.weak_view(rows, site.generator("views", step)))
            loss = torch.nn.functional.cross_entropy(logits, site.labels[rows])
            for name, w in network.named_parameters():
                loss = loss + 0.7 / 2 * (w - state.model[name]).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    assert step > 3
    assert close(update.shared["model"], take(network, ["encoder", "head"]))


def test_mu_keeps_clients_near_what_they_received(tiny, tmp_path):
    moved = []
    for mu in (0, 1, 10):
        changes = ("method.name=fedprox", f"method.mu={mu}", "method.sgd.batch=4")
        home = host(tiny(*changes), tmp_path / str(mu))
        state = home.initial_state()
        shared = home.update(state, 0).shared["model"]
        names = [name for name, _ in home.load("method").network.named_parameters()]
        moved.append(sum((shared[n] - state.model[n]).square().sum().item() for n in names))
    assert moved[0] > moved[1] > moved[2] > 0


def test_what_travels_and_how_clients_weigh(tiny, tmp_path):
    home = host(tiny("method.name=fedprox"), tmp_path)
    state = home.initial_state()
    update = home.update(state, 2)
    assert set(update.shared) == {"model"}
    assert set(update.shared["model"]) == set(home.load("method").network.state_dict())
    assert update.personal is None
    assert update.samples == len(home.federation.client(2).labelled)
    assert home.load("method").method.weight(update) == update.samples
    home.update(state, 3)
    assert equal(home.update(state, 2).shared["model"], update.shared["model"])


def test_ft_tunes_the_head(tiny, tmp_path):
    as_is = host(tiny("method.name=fedprox"), tmp_path / "a")
    tuned = host(tiny("method.name=fedprox-ft"), tmp_path / "b")
    state = as_is.initial_state()
    assert all(model.tensors == {} for model in as_is.personalize(state, "method", [0, 6]))
    for model in tuned.personalize(state, "method", [0, 6]):
        assert set(model.tensors) == {"head.weight", "head.bias"}


@pytest.mark.parametrize(("name", "label"), [("fedprox", "FedProx"), ("fedprox-ft", "FedProx-FT")])
def test_whole_runs(tiny, tmp_path, name, label):
    metrics = rounds.run(tiny(f"method.name={name}"), tmp_path)
    assert metrics["method"] == label
    assert metrics["failures"] == 0
