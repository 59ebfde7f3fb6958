import copy

import pytest
import torch
from torch import nn

from calibre.errors import UserError
from calibre.methods.supervised import pull, train_classifier
from calibre.tensors import take
from tests.methods.helpers import close, equal, host, stopped_and_whole

DITTO = "method.name=calibre.methods.ditto:Ditto"
WHOLE = ("encoder", "head")


def after_a_round(home, clients=(0, 1)):
    state = home.initial_state()
    updates = [home.update(state, client) for client in clients]
    return home.load("method").method.aggregate(state, updates), updates


def test_the_global_model_is_fedavgs_and_the_personal_one_stays(tiny, tmp_path):
    fedavg = host(tiny("method.name=fedavg"), tmp_path / "a")
    ditto = host(tiny(DITTO), tmp_path / "b")
    one, other = fedavg.initial_state(), ditto.initial_state()
    for _ in range(2):
        expected = [fedavg.update(one, client) for client in (0, 1)]
        updates = [ditto.update(other, client) for client in (0, 1)]
        for update, plain in zip(updates, expected, strict=True):
            assert update.shared.keys() == {"model"}
            assert equal(update.shared["model"], plain.shared["model"])
            assert update.personal.keys() == plain.shared["model"].keys()
            assert update.samples == plain.samples
        one = fedavg.load("method").method.aggregate(one, expected)
        other = ditto.load("method").method.aggregate(other, updates)
    assert not close(updates[0].shared["model"], updates[0].personal)


def test_without_pull_the_personal_model_is_trained_alone(tiny, tmp_path):
    experiment = tiny(DITTO, "method.lam=0")
    home = host(experiment, tmp_path)
    state, (first, _) = after_a_round(home)
    for client, kept in ((0, first.personal), (3, None)):  # who comes later starts as all did
        site = home.site("method", state, client)
        site.load(kept)
        train_classifier(site, experiment.method.sgd, experiment.training.epochs)
        alone = take(site.network, WHOLE)
        assert equal(home.update(state, client).personal, alone)


def test_the_personal_model_by_a_plain_torch_loop(tiny, tmp_path):
    """The proximal term as a loss, lambda/2 |v - w|^2, instead of a change of gradients."""
    experiment = tiny(DITTO, "method.lam=3", "training.epochs=2")
    home = host(experiment, tmp_path)
    state, (first, _) = after_a_round(home)
    update = home.update(state, 0)

    site, sgd = home.site("method", state, 0), experiment.method.sgd
    site.load(first.personal)
    v = copy.deepcopy(site.network).train()
    optimizer = torch.optim.SGD(
        v.parameters(), sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    step = 0
    for epoch in range(2):
        order = torch.randperm(site.labelled, generator=site.generator("batches", epoch))
        for rows in torch.tensor_split(order, -(-site.labelled // sgd.batch)):
            images = site.weak_view(rows, site.generator("views", step))
            loss = torch.nn.functional.cross_entropy(v(images), site.labels[rows])
            for name, parameter in v.named_parameters():
                loss = loss + 3 / 2 * (parameter - state.model[name]).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    assert close(update.personal, dict(v.state_dict()))


def test_on_a_quadratic_the_pull_finds_the_known_balance():
    """f(v) = a/2 (v - t)^2 and the pull to w rest at (a t + lambda w) / (a + lambda)."""
    a, t, w, lam = 2.0, 5.0, -1.0, 3.0
    model = nn.Module()
    model.v = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    add = pull(model, {"v": torch.tensor([w], dtype=torch.float64)}, lam)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(200):
        optimizer.zero_grad()
        (a / 2 * (model.v - t).square().sum()).backward()
        add(None)
        optimizer.step()
    assert model.v.item() == pytest.approx((a * t + lam * w) / (a + lam), abs=1e-12)


def test_who_trained_goes_on_with_its_own_model_and_a_new_client_with_the_global_one(
    tiny, tmp_path
):
    untouched = host(tiny(DITTO, "personal.epochs=0"), tmp_path)
    state, (update, _) = after_a_round(untouched)
    trained, idle, novel = untouched.personalize(state, "method", [0, 3, 6])
    assert equal(trained.tensors, update.personal)
    assert equal(idle.tensors, state.model)
    assert equal(novel.tensors, state.model)


def test_the_last_epochs_are_the_same_solver_with_the_final_global_model(tiny, tmp_path):
    """As many epochs as a round has, at the same state: the personal model of that round."""
    home = host(tiny(DITTO, "personal.epochs=1"), tmp_path / "a")
    state, _ = after_a_round(home)
    (model,) = home.personalize(state, "method", [0])
    assert equal(model.tensors, home.update(state, 0).personal)

    cosine = ("method.sgd.schedule=cosine", "personal.epochs=1", "training.rounds=1")
    later = host(tiny(DITTO, *cosine), tmp_path / "b")  # a schedule that ended must not stop it
    (model,) = later.personalize(state, "method", [6])
    assert not close(model.tensors, state.model)


def test_a_pull_that_overshoots_is_refused(tiny):
    with pytest.raises(UserError, match=r"method\.lam = 50 .*below 1"):
        tiny(DITTO, "method.lam=50")


def test_an_update_is_a_function_of_its_inputs(tiny, tmp_path):
    home = host(tiny(DITTO), tmp_path)
    state = home.initial_state()
    first = home.update(state, 0)
    home.update(state, 3)
    again = home.update(state, 0)
    assert equal(first.shared["model"], again.shared["model"])
    assert equal(first.personal, again.personal)


def test_a_stopped_run_goes_on_with_the_same_bits(tiny, tmp_path):
    stopped, whole = stopped_and_whole(tiny(DITTO, "personal.epochs=1"), tmp_path)
    assert stopped == whole
