import dataclasses

import torch

from calibre.methods.method import Update
from tests.methods.helpers import close, equal, host


def test_one_client_is_local_sgd(tiny, tmp_path):
    home = host(tiny("method.name=fedavg"), tmp_path)
    method, state = home.load("method").method, home.initial_state()
    update = home.update(state, 0)
    assert equal(method.aggregate(state, [update]).model, update.shared["model"])


def test_identical_clients_average_to_any_of_them(tiny, tmp_path):
    home = host(tiny("method.name=fedavg"), tmp_path)
    method, state = home.load("method").method, home.initial_state()
    update = home.update(state, 1)
    mean = method.aggregate(
        state, [update, dataclasses.replace(update, samples=3 * update.samples)]
    )
    assert equal(mean.model, update.shared["model"])


def test_clients_weigh_by_their_labelled_samples(tiny, tmp_path):
    home = host(tiny("method.name=fedavg"), tmp_path)
    state = home.initial_state()
    update = home.update(state, 2)
    assert update.samples == len(home.federation.client(2).labelled)
    ones = {name: torch.full_like(t, 1) for name, t in state.model.items()}
    zeros = {name: torch.zeros_like(t) for name, t in state.model.items()}
    mean = home.load("method").method.aggregate(
        state, [Update(0, 1, {"model": zeros}), Update(1, 3, {"model": ones})]
    )
    for tensor in mean.model.values():
        if tensor.is_floating_point():
            assert torch.all(tensor == 0.75)
        else:
            assert tensor.dtype == torch.int64
            assert torch.all(tensor == 1)
    assert mean.round == 1


def test_an_update_equals_a_plain_torch_loop(tiny, tmp_path):
    """The same batches through nn.Module, F.cross_entropy and torch.optim.SGD by hand."""
    experiment = tiny("method.name=fedavg", "training.epochs=2")
    home = host(experiment, tmp_path)
    state = home.initial_state()
    update = home.update(state, 0)

    site = home.site("method", state, 0)
    network, sgd = site.network.train(), experiment.method.sgd
    optimizer = torch.optim.SGD(
        network.parameters(), sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    step = 0
    for epoch in range(2):
        order = torch.randperm(site.labelled, generator=site.generator("batches", epoch))
        count = -(-site.labelled // sgd.batch)
        for rows in torch.tensor_split(order, count):
            images = site.weak_view(rows, site.generator("views", step))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(images), site.labels[rows]).backward()
            optimizer.step()
            step += 1
    assert close(update.shared["model"], dict(network.state_dict()))


def test_fedavg_is_scored_as_it_is_and_ft_tunes_only_the_head(tiny, tmp_path):
    home = host(tiny("method.name=fedavg"), tmp_path / "a")
    state = home.initial_state()
    as_is = home.personalize(state, "method", [0, 6])
    assert all(model.tensors == {} for model in as_is)
    tuned_home = host(tiny("method.name=fedavg-ft"), tmp_path / "b")
    tuned = tuned_home.personalize(state, "method", [0, 6])
    assert all(set(model.tensors) == {"head.weight", "head.bias"} for model in tuned)
    untuned_home = host(tiny("method.name=fedavg-ft", "personal.epochs=0"), tmp_path / "c")
    untuned = untuned_home.personalize(state, "method", [0, 6])
    assert [m.accuracy for m in untuned] == [m.accuracy for m in as_is]
    assert torch.equal(untuned[0].tensors["head.weight"], state.model["head.weight"])


def test_labels_that_were_taken_away_cannot_be_read(tiny, tmp_path):
    home = host(tiny("method.name=fedavg"), tmp_path)
    site = home.site("method", home.initial_state(), 0)
    assert (site.labels[: site.labelled] >= 0).all()
    assert (site.labels[site.labelled :] == -1).all()
    assert len(site.labels) > site.labelled
