import copy

import torch

from calibre.tensors import take
from tests.methods.helpers import close, equal, host, parts, stopped_and_whole

FEDBABU = "method.name=calibre.methods.fedbabu:FedBABU"


def test_only_the_encoder_travels_and_nothing_is_kept(tiny, tmp_path):
    home = host(tiny(FEDBABU), tmp_path)
    state = home.initial_state()
    update = home.update(state, 0)
    assert update.shared.keys() == {"model"}
    assert update.shared["model"].keys() == state.model.keys()
    assert parts(update.shared["model"]) == {"encoder"}
    assert update.personal is None


def test_the_head_keeps_its_common_start_in_every_round(tiny, tmp_path):
    """Neither momentum nor weight decay moves it, while every tensor of the encoder moves."""
    home = host(tiny(FEDBABU, "method.sgd.weight_decay=0.1", "personal.epochs=0"), tmp_path)
    method, state = home.load("method").method, home.initial_state()
    initial = home.load("method").initial
    head = {name: t for name, t in initial.items() if parts([name]) == {"head"}}
    for _ in range(2):
        updates = []
        for client in (0, 1):
            updates.append(home.update(state, client))
            assert equal(take(home.load("method").network, ["head"]), head)
        state = method.aggregate(state, updates)
    for name, tensor in state.model.items():
        assert not torch.equal(tensor, initial[name]), name
    for model in home.personalize(state, "method", [0, 1, 6]):
        assert equal(model.tensors, head)


def test_it_differs_from_fedavg_only_by_the_frozen_head(tiny, tmp_path):
    """FedAvg's own steps by hand, with the head left out of the optimizer."""
    experiment = tiny(FEDBABU, "training.epochs=2")
    home = host(experiment, tmp_path / "a")
    state = home.initial_state()
    update = home.update(state, 0)

    fedavg = host(tiny("method.name=fedavg"), tmp_path / "b")
    site, sgd = fedavg.site("method", fedavg.initial_state(), 0), experiment.method.sgd
    site.load()
    network = copy.deepcopy(site.network).train()
    optimizer = torch.optim.SGD(
        network.encoder.parameters(), sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    step = 0
    for epoch in range(2):
        order = torch.randperm(site.labelled, generator=site.generator("batches", epoch))
        for rows in torch.tensor_split(order, -(-site.labelled // sgd.batch)):
            images = site.weak_view(rows, site.generator("views", step))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(images), site.labels[rows]).backward()
            optimizer.step()
            step += 1
    assert close(update.shared["model"], take(network, ["encoder"]))


def test_heads_are_tuned_in_the_end(tiny, tmp_path):
    home = host(tiny(FEDBABU), tmp_path)
    initial = home.load("method").initial
    for model in home.personalize(home.initial_state(), "method", [0, 6]):
        assert model.tensors.keys() == {"head.weight", "head.bias"}
        assert not torch.equal(model.tensors["head.weight"], initial["head.weight"])


def test_an_update_is_a_function_of_its_inputs(tiny, tmp_path):
    home = host(tiny(FEDBABU), tmp_path)
    state = home.initial_state()
    first = home.update(state, 0)
    home.update(state, 3)
    assert equal(first.shared["model"], home.update(state, 0).shared["model"])


def test_a_stopped_run_goes_on_with_the_same_bits(tiny, tmp_path):
    stopped, whole = stopped_and_whole(tiny(FEDBABU), tmp_path)
    assert stopped == whole
