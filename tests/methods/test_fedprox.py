import pytest
import torch

from calibre.engine import rounds
from calibre.experiment import read
from calibre.methods.fedprox import FedProx
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


class Remark(FedProx):
    """A user's own method: FedProx with one field more, and nothing restated."""

    remark: str = ""


OWN_NAME = "tests.methods.test_fedprox:Remark"
GIVEN = {
    "by its name": lambda fields: {"name": OWN_NAME, **fields},
    "as settings": lambda fields: Remark(**fields),
}


@pytest.mark.parametrize("finetune", [False, True])
@pytest.mark.parametrize("given", GIVEN)
def test_a_subclass_by_a_name_of_its_own_keeps_every_behaviour(tiny, tmp_path, given, finetune):
    fields = {"mu": 0.7, "finetune": finetune, "sgd": {"batch": 4}}
    named = "fedprox-ft" if finetune else "fedprox"
    original = tiny(f"method.name={named}", "method.mu=0.7", "method.sgd.batch=4")
    own = read(original, method=GIVEN[given]({**fields, "remark": "mine"}))
    assert (own.method.name, own.method.remark) == (OWN_NAME, "mine")
    assert own.method.label == original.method.label == ("FedProx-FT" if finetune else "FedProx")
    assert own.method.way == original.method.way == ("head" if finetune else "received")
    (tmp_path / "own.toml").write_text(own.to_toml())
    assert read(tmp_path / "own.toml") == own

    plain = host(tiny("method.name=fedavg", "method.sgd.batch=4"), tmp_path / "c")
    one, other = host(own, tmp_path / "a"), host(original, tmp_path / "b")
    state = one.initial_state()
    updates = [[home.update(state, client) for client in (0, 2)] for home in (one, other)]
    for mine, expected in zip(*updates, strict=True):
        assert equal(mine.shared["model"], expected.shared["model"])
        free = plain.update(state, mine.client).shared["model"]
        assert not close(mine.shared["model"], free)  # the pull is there
    after = [
        h.load("method").method.aggregate(state, u)
        for h, u in zip((one, other), updates, strict=True)
    ]
    assert equal(after[0].model, after[1].model)
    models = [home.personalize(after[0], "method", [0, 6]) for home in (one, other)]
    for mine, expected in zip(*models, strict=True):
        assert mine.tensors.keys() == ({"head.weight", "head.bias"} if finetune else set())
        assert equal(mine.tensors, expected.tensors)
        assert mine.correct == expected.correct


@pytest.mark.parametrize(("name", "label"), [("fedprox", "FedProx"), ("fedprox-ft", "FedProx-FT")])
def test_whole_runs(tiny, tmp_path, name, label):
    metrics = rounds.run(tiny(f"method.name={name}"), tmp_path)
    assert metrics.method == label
    assert metrics.failures == 0
