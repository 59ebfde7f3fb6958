import pytest
import torch
from torch import nn

from calibre.engine import rounds
from calibre.methods.fedbn import FedBN
from calibre.tensors import put, take
from tests.methods.helpers import equal, host


def norm_names(network):
    """Every state-dict name of a layer that has running statistics."""
    state = network.state_dict()
    layers = [name.removesuffix("running_mean") for name in state if name.endswith("running_mean")]
    return {name for name in state if any(name.startswith(layer) for layer in layers)}


@pytest.mark.parametrize("encoder", ["cnn", "resnet8"])
def test_no_batch_norm_key_travels(tiny, tmp_path, encoder):
    network = (f"network.encoder={encoder}", "network.width=8")
    home = host(tiny("method.name=fedbn", *network), tmp_path)
    state = home.initial_state()
    network = home.load("method").network
    norm = norm_names(network)
    assert len(norm) >= 5 * 4
    update = home.update(state, 0)
    assert set(update.shared) == set(state.groups) == {"model"}
    assert set(update.shared["model"]) == set(state.model) == set(network.state_dict()) - norm
    assert set(update.personal) == norm
    assert update.samples == len(home.federation.client(0).labelled)


def test_training_is_fedavgs_on_top_of_each_clients_own_layers(tiny, tmp_path):
    """Two clients, two rounds: what travels and what stays are together what FedAvg makes of it."""
    bn = host(tiny("method.name=fedbn"), tmp_path / "a")
    avg = host(tiny("method.name=fedavg"), tmp_path / "b")
    state, start = bn.initial_state(), avg.initial_state().model
    own = {0: {}, 1: {}}
    for _ in range(2):
        updates = []
        for client in (0, 1):
            update = bn.update(state, client)
            loaded = type(state)(state.round, {"model": {**start, **state.model, **own[client]}})
            whole = avg.update(loaded, client).shared["model"]
            assert equal({**update.shared["model"], **update.personal}, whole)
            own[client] = update.personal
            updates.append(update)
        state = bn.load("method").method.aggregate(state, updates)
    assert not equal(own[0], own[1])


def test_an_update_is_a_function_of_its_inputs(tiny, tmp_path):
    home = host(tiny("method.name=fedbn"), tmp_path)
    state = home.initial_state()
    first = home.update(state, 0)
    home.update(state, 3)
    again = home.update(state, 0)
    assert equal(first.shared["model"], again.shared["model"])
    assert equal(first.personal, again.personal)


def trained(home):
    state = home.initial_state()
    return home.load("method").method.aggregate(state, [home.update(state, c) for c in (0, 1)])


def test_a_client_that_trained_is_scored_with_its_own_batch_norm(tiny, tmp_path):
    home = host(tiny("method.name=fedbn"), tmp_path)
    state = trained(home)
    kept = home.keep.clients.load(1, state.round)
    (model,) = home.personalize(state, "method", [1])
    assert equal(model.tensors, kept)
    assert equal(take(home.load("method").network), {**state.model, **kept})


def test_a_novel_client_takes_the_statistics_of_its_own_images(tiny, tmp_path):
    home = host(tiny("method.name=fedbn"), tmp_path)
    state = trained(home)
    home.load("method").network.eval()
    models = home.personalize(state, "method", [6, 0, 6])
    novel = models[0].tensors
    assert equal(novel, models[2].tensors)
    network, initial = home.load("method").network, home.load("method").initial
    for name in norm_names(network):
        if name.endswith(("weight", "bias")):
            assert torch.equal(novel[name], initial[name])

    # layer by layer, over all images at once
    site = home.site("method", state, 6)
    assert len(site.images) == 40 > site.labelled
    put(network, {**initial, **state.model})
    x = site.plain(site.images)
    with torch.no_grad():
        for i, layer in enumerate(network.encoder.layers):
            if isinstance(layer, nn.BatchNorm2d):
                mean, var = x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3))
                assert torch.allclose(novel[f"encoder.layers.{i}.running_mean"], mean, atol=1e-5)
                assert torch.allclose(novel[f"encoder.layers.{i}.running_var"], var, rtol=1e-4)
                assert layer.momentum == 0.1  # the layer is as it was
                x = (x - mean[:, None, None]) / (
                    x.var(dim=(0, 2, 3), correction=0)[:, None, None] + layer.eps
                ).sqrt()
            else:
                x = layer(x)


def test_a_network_without_batch_norm_shares_everything():
    network = nn.Sequential()
    network.add_module("encoder", nn.Linear(3, 2))
    network.add_module("head", nn.Linear(2, 2))
    method = FedBN()
    assert equal(method.init(network).model, take(network, ["encoder", "head"]))


def test_ft_tunes_the_head_on_the_clients_own_batch_norm(tiny, tmp_path):
    home = host(tiny("method.name=fedbn-ft"), tmp_path)
    state = trained(home)
    (model,) = home.personalize(state, "method", [1])
    kept = home.keep.clients.load(1, state.round)
    assert set(model.tensors) == {*kept, "head.weight", "head.bias"}
    assert equal({name: model.tensors[name] for name in kept}, kept)
    held = take(home.load("method").network, ["encoder"])
    assert equal({name: held[name] for name in kept}, kept)
    # a novel client's head is tuned on the statistics of its own images
    home.personalize(state, "method", [6])
    held = take(home.load("method").network, ["encoder"])
    method, site = home.load("method").method, home.site("method", state, 6)
    newcomer = method.newcomer(state, site)
    assert equal({name: held[name] for name in newcomer}, newcomer)
    assert not equal(newcomer, {name: home.load("method").initial[name] for name in newcomer})


@pytest.mark.parametrize(("name", "label"), [("fedbn", "FedBN"), ("fedbn-ft", "FedBN-FT")])
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


def test_a_single_image_leaves_the_common_start(tiny, tmp_path):
    home = host(tiny("method.name=fedbn"), tmp_path)
    state = home.initial_state()
    site = home.site("method", state, 6)
    alone = type(site)(**{**vars(site), "images": site.images[:1]})
    start = home.load("method").initial
    kept = home.load("method").method.newcomer(state, alone)
    assert kept
    assert equal(kept, {name: start[name] for name in kept})
