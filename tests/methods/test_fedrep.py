import copy

import pytest
import torch

from calibre.methods.fedrep import train_part
from calibre.tensors import take
from tests.methods.helpers import close, equal, host, parts, stopped_and_whole

FEDREP = "method.name=calibre.methods.fedrep:FedRep"


def test_the_encoder_travels_and_the_head_stays(tiny, tmp_path):
    home = host(tiny(FEDREP), tmp_path)
    state = home.initial_state()
    update = home.update(state, 0)
    assert update.shared.keys() == {"model"}
    assert update.shared["model"].keys() == state.model.keys()
    assert parts(update.shared["model"]) == {"encoder"}
    assert update.personal.keys() == {"head.weight", "head.bias"}


@pytest.mark.parametrize(("trained", "frozen"), [("head", "encoder"), ("encoder", "head")])
def test_a_phase_trains_one_part_and_leaves_every_bit_of_the_other(tiny, tmp_path, trained, frozen):
    experiment = tiny(FEDREP, "method.sgd.weight_decay=0.1")
    home = host(experiment, tmp_path)
    site = home.site("method", home.initial_state(), 0)
    site.load()
    assert site.network.training
    train_part(trained, site, experiment.method.sgd, 2)
    before = {name: t for name, t in site.initial.items() if parts([name]) == {frozen}}
    assert equal(take(site.network, [frozen]), before)  # buffers of batch norm among them
    for name, tensor in take(site.network, [trained]).items():
        assert not torch.equal(tensor, site.initial[name]), name
    assert all(parameter.requires_grad for parameter in site.network.parameters())


def test_an_update_is_two_plain_torch_loops(tiny, tmp_path):
    changes = ("method.head_epochs=2", "method.encoder_epochs=1", "training.epochs=5")
    experiment = tiny(FEDREP, *changes)
    home = host(experiment, tmp_path)
    state = home.initial_state()
    update = home.update(state, 0)

    site, sgd = home.site("method", state, 0), experiment.method.sgd
    network = copy.deepcopy(site.network)
    for part, epochs in ((network.head, 2), (network.encoder, 1)):
        network.eval()
        part.train()
        optimizer = torch.optim.SGD(
            part.parameters(), sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay
        )
        step = 0
        for epoch in range(epochs):
            order = torch.randperm(site.labelled, generator=site.generator("batches", epoch))
            for rows in torch.tensor_split(order, -(-site.labelled // sgd.batch)):
                images = site.weak_view(rows, site.generator("views", step))
                network.zero_grad()
                torch.nn.functional.cross_entropy(network(images), site.labels[rows]).backward()
                optimizer.step()
                step += 1
    assert close({**update.shared["model"], **update.personal}, dict(network.state_dict()))


def test_without_encoder_epochs_the_encoder_never_changes(tiny, tmp_path):
    home = host(tiny(FEDREP, "method.encoder_epochs=0"), tmp_path)
    method, start = home.load("method").method, home.initial_state()
    state = start
    for _ in range(2):
        state = method.aggregate(state, [home.update(state, client) for client in (0, 1)])
    assert equal(state.model, start.model)
    initial = home.load("method").initial
    for name, tensor in home.update(state, 0).personal.items():
        assert not torch.equal(tensor, initial[name])


def test_the_head_has_the_epochs_that_the_encoder_leaves(tiny, tmp_path):
    default = host(tiny(FEDREP, "training.epochs=3"), tmp_path / "a")
    explicit = host(tiny(FEDREP, "training.epochs=3", "method.head_epochs=2"), tmp_path / "b")
    one = default.update(default.initial_state(), 0)
    other = explicit.update(explicit.initial_state(), 0)
    assert equal(one.personal, other.personal)
    assert equal(one.shared["model"], other.shared["model"])


def test_a_client_goes_on_with_the_head_it_kept(tiny, tmp_path):
    """No head epochs: the second round must return the kept head, not the common one."""
    home = host(tiny(FEDREP), tmp_path)
    method, state = home.load("method").method, home.initial_state()
    first = home.update(state, 0)
    state = method.aggregate(state, [first])
    frozen = host(tiny(FEDREP, "method.head_epochs=0"), home.keep)
    assert equal(frozen.update(state, 0).personal, first.personal)
    personal = host(tiny(FEDREP, "personal.epochs=0"), home.keep)
    trained, novel = personal.personalize(state, "method", [0, 6])
    assert equal(trained.tensors, first.personal)
    assert torch.equal(novel.tensors["head.weight"], home.load("method").initial["head.weight"])


def test_an_update_is_a_function_of_its_inputs(tiny, tmp_path):
    home = host(tiny(FEDREP), tmp_path)
    state = home.initial_state()
    first = home.update(state, 0)
    home.update(state, 3)
    again = home.update(state, 0)
    assert equal(first.shared["model"], again.shared["model"])
    assert equal(first.personal, again.personal)


def test_a_stopped_run_goes_on_with_the_same_bits(tiny, tmp_path):
    stopped, whole = stopped_and_whole(tiny(FEDREP), tmp_path)
    assert stopped == whole
