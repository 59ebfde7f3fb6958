import copy

import pytest
import torch

from calibre.engine import rounds
from calibre.local.features import encode
from calibre.local.site import Site
from calibre.methods.local_only import converged, train_to_convergence
from calibre.methods.method import ServerState
from calibre.methods.supervised import train_classifier
from calibre.models.network import Head
from calibre.personal.heads import Samples, train_heads
from calibre.tensors import take
from tests.methods.helpers import close, equal, host, parts

WHOLE = ("encoder", "head")


@pytest.fixture
def convergent(tiny):
    return lambda *changes: tiny("method.name=local-convergent", *changes)


def test_local_is_ten_epochs_of_a_plain_torch_loop(tiny, tmp_path):
    experiment = tiny("method.name=local", "personal.epochs=10")
    home = host(experiment, tmp_path)
    state = home.initial_state()
    found = home.prepared("method", state, 0).kept

    site, sgd = home.site("method", state, 0), experiment.method.sgd
    site.load()
    network = copy.deepcopy(site.network).train()
    optimizer = torch.optim.SGD(
        network.parameters(), sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    step = 0
    for epoch in range(10):
        order = torch.randperm(site.labelled, generator=site.generator("batches", epoch))
        for rows in torch.tensor_split(order, -(-site.labelled // sgd.batch)):
            images = site.weak_view(rows, site.generator("views", step))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(images), site.labels[rows]).backward()
            optimizer.step()
            step += 1
    for name, tensor in network.state_dict().items():
        assert torch.allclose(found[name].double(), tensor.double(), atol=1e-4), name


def test_its_encoder_then_gets_a_head_like_everybodys(tiny, tmp_path):
    """From the network's own head, as any head on a frozen encoder is trained."""
    home = host(tiny("method.name=local"), tmp_path)
    state = home.initial_state()
    (model,) = home.personalize(state, "method", [0])
    site, kept, *_ = home.prepared("method", state, 0)
    assert equal(take(site.network, WHOLE), kept)
    encoder = {name: t for name, t in kept.items() if parts([name]) == {"encoder"}}
    assert equal({n: t for n, t in model.tensors.items() if parts([n]) == {"encoder"}}, encoder)
    features = encode(site.network.encoder, site.images[: site.labelled], site.normalization)
    samples = Samples(features, site.labels[: site.labelled])
    start = Head(kept["head.weight"], kept["head.bias"])
    heads = train_heads([0], [samples], [start], site.personal, site.seed)
    assert torch.equal(model.tensors["head.weight"], heads.weight[0])
    assert torch.equal(model.tensors["head.bias"], heads.bias[0])


def test_no_server_state_is_read_and_no_other_client_matters(tiny, tmp_path):
    home = host(tiny("method.name=local", "personal.epochs=1"), tmp_path)
    alone = home.prepared("method", home.initial_state(), 6).kept
    (score,) = home.personalize(home.initial_state(), "method", [6])
    *_, among = home.personalize(ServerState(0, {}), "method", [0, 3, 6])
    assert equal(home.prepared("method", ServerState(0, {}), 6).kept, alone)
    assert close(score.tensors, among.tensors)  # heads of a group are one product
    assert score.accuracy == among.accuracy


def test_convergence_is_one_percent_of_the_five_epoch_mean_in_ten_epochs():
    settled = [1.0] * 15
    assert converged(settled)
    assert not converged(settled[:14])  # ten epochs ago there was no mean of five yet
    assert not converged([1.0] * 5 + [0.5] * 5 + [0.989] * 5)
    assert converged([1.0] * 5 + [0.5] * 5 + [0.991] * 5)
    assert converged([9.0] * 7 + [1.0] * 5 + [0.5] * 5 + [0.991] * 5)  # only the last 15 count
    assert converged([2.0, 0.5, 1.0, 0.0, 1.5] + [7.0] * 5 + [1.0] * 5)  # means, not single epochs
    assert converged([0.0] * 15)
    halving = [0.5**epoch for epoch in range(100)]
    assert not any(converged(halving[:end]) for end in range(100))


def test_it_stops_between_two_epochs_of_the_very_training_of_local(
    convergent, tmp_path, monkeypatch
):
    """Nearly no step, no augmentation, one batch: the loss is flat, 15 epochs are enough."""
    monkeypatch.setattr(Site, "weak_view", lambda site, rows, _: site.plain(site.images[rows]))
    experiment = convergent("method.sgd.lr=1e-7", "method.sgd.batch=64")
    home = host(experiment, tmp_path)
    site = home.site("method", home.initial_state(), 0)
    assert site.labelled <= 64
    site.load()
    losses = train_to_convergence(site, experiment.method.sgd, cap=200)
    assert len(losses) == 15
    stopped = take(site.network, WHOLE)
    site.load()
    assert len(train_to_convergence(site, experiment.method.sgd, cap=15)) == 15
    assert equal(stopped, take(site.network, WHOLE))


@pytest.mark.parametrize("cap", [0, 4, 17])
def test_the_cap_ends_what_does_not_settle_with_the_bits_of_local(tiny, convergent, tmp_path, cap):
    fair = host(tiny("method.name=local", f"personal.epochs={cap}"), tmp_path / "a")
    home = host(convergent(f"method.cap={cap}"), tmp_path / "b")
    one = fair.prepared("method", fair.initial_state(), 0).kept
    other = home.prepared("method", home.initial_state(), 0).kept
    assert equal(one, other)
    assert equal(one, home.load("method").initial) == (cap == 0)


def test_the_reported_losses_are_those_of_the_training_loop(convergent, tmp_path):
    experiment = convergent()
    home = host(experiment, tmp_path)
    site = home.site("method", home.initial_state(), 0)
    site.load()
    losses = train_to_convergence(site, experiment.method.sgd, cap=3)
    site.load()
    report = train_classifier(site, experiment.method.sgd, 3)
    assert losses[-1] == pytest.approx(report["loss"])
    assert losses[0] > losses[-1]


def test_whole_runs(tiny, convergent, tmp_path):
    for experiment in (tiny("method.name=local"), convergent("method.cap=3")):
        folder = tmp_path / experiment.method.name
        metrics = rounds.run(experiment, folder)
        assert metrics.rounds == 0
        assert metrics.method == experiment.method.label
        assert {file.name for file in folder.glob("clients/*/*")} == {"personal.safetensors"}
    assert experiment.method.label == "local only, to convergence"


@pytest.mark.parametrize("name", ["local", "local-convergent"])
def test_a_linear_classifier_is_one_on_the_pixels(tiny, tmp_path, name):
    """As it is after its epochs: by torch's own optimizer on flat pixels."""
    chosen = (f"method.name={name}", "method.model=linear", "method.cap=4", "personal.epochs=3")
    experiment = tiny(*chosen)
    assert experiment.method.label.startswith("local only, linear")
    home = host(experiment, tmp_path)
    state = home.initial_state()
    (model,) = home.personalize(state, "method", [0])
    site, sgd = home.site("method", state, 0), experiment.method.sgd
    site.load()
    head = copy.deepcopy(site.network.head)
    optimizer = torch.optim.SGD(head.parameters(), sgd.lr, weight_decay=sgd.weight_decay)
    step = 0
    for epoch in range(3 if name == "local" else 4):
        order = torch.randperm(site.labelled, generator=site.generator("batches", epoch))
        for rows in torch.tensor_split(order, -(-site.labelled // sgd.batch)):
            pixels = site.weak_view(rows, site.generator("views", step)).flatten(1)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(head(pixels), site.labels[rows]).backward()
            optimizer.step()
            step += 1
    assert set(model.tensors) == {"head.weight", "head.bias"}
    torch.testing.assert_close(model.tensors["head.weight"], head.weight.data, atol=1e-5, rtol=1e-4)
