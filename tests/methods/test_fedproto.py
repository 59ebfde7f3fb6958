import copy
import dataclasses

import torch
import torch.nn.functional as F

from calibre.methods.method import ServerState, Update
from calibre.methods.supervised import train_classifier
from calibre.tensors import check_like, take
from tests.methods.helpers import close, equal, host, stopped_and_whole

FEDPROTO = "method.name=calibre.methods.fedproto:FedProto"
WHOLE = ("encoder", "head")


def after_a_round(home, clients=(0, 1)):
    state = home.initial_state()
    updates = [home.update(state, client) for client in clients]
    return home.load("method").method.aggregate(state, updates), updates


def test_only_prototypes_travel(tiny, tmp_path):
    home = host(tiny(FEDPROTO), tmp_path)
    state = home.initial_state()
    assert state.groups.keys() == {"prototypes"}
    update = home.update(state, 0)
    assert update.shared.keys() == {"prototypes"}
    assert update.shared["prototypes"].keys() == {"mean", "count"}
    assert update.shared["prototypes"]["mean"].shape == (
        10,
        home.load("method").network.encoder.features,
    )
    check_like(update.shared["prototypes"], state.groups["prototypes"])
    assert update.personal.keys() == home.load("method").initial.keys()


def test_a_prototype_is_the_mean_feature_of_its_class(tiny, tmp_path):
    home = host(tiny(FEDPROTO), tmp_path)
    state = home.initial_state()
    update = home.update(state, 0)
    sent = update.shared["prototypes"]
    site = home.site("method", state, 0)
    site.load(update.personal)
    site.network.eval()
    for j in range(10):
        mine = [i for i in range(site.labelled) if site.labels[i] == j]
        assert sent["count"][j] == len(mine)
        expected = torch.zeros(sent["mean"].shape[1])
        with torch.no_grad():
            for i in mine:
                expected += site.network.encoder(site.plain(site.images[i : i + 1]))[0] / len(mine)
        assert torch.allclose(sent["mean"][j], expected, atol=1e-5)
    assert 0 < (sent["count"] == 0).sum() < 10  # this client does hold some classes, and not all


def proto(client, mean, count):
    tensors = {"mean": torch.tensor(mean), "count": torch.tensor(count)}
    return Update(client, sum(count), {"prototypes": tensors})


def test_the_server_averages_each_class_by_its_counts(tiny):
    """Class 0 is held by both, 1 by the second, 2 by nobody now, 3 by nobody ever."""
    method = tiny(FEDPROTO).method
    old = proto(0, [[9.0, 9], [9, 9], [7, 5], [0, 0]], [1, 1, 4, 0]).shared
    updates = [
        proto(0, [[1.0, 2], [0, 0], [0, 0], [0, 0]], [3, 0, 0, 0]),
        proto(1, [[5.0, 6], [4, 8], [0, 0], [0, 0]], [1, 2, 0, 0]),
    ]
    state = method.aggregate(ServerState(4, old), iter(updates))
    assert state.round == 5
    new = state.groups["prototypes"]
    assert new["mean"].tolist() == [[2.0, 3.0], [4.0, 8.0], [7.0, 5.0], [0.0, 0.0]]
    assert new["count"].tolist() == [4, 2, 4, 0]
    assert old["prototypes"]["count"].tolist() == [1, 1, 4, 0]  # the old state is a value


def test_no_class_counts_for_more_images_than_its_client_has_nor_for_less_than_none(tiny):
    """The counts come from clients: a wrong one must neither rule a class nor stop the server."""
    method = tiny(FEDPROTO).method
    old = ServerState(0, proto(0, [[0.0], [9.0]], [0, 1]).shared)
    honest = proto(0, [[1.0], [0.0]], [6, 0])
    boasting = dataclasses.replace(proto(1, [[5.0], [7.0]], [2**60, -3]), samples=2)
    new = method.aggregate(old, iter([honest, boasting])).groups["prototypes"]
    assert new["mean"].tolist() == [[(6 * 1 + 2 * 5) / 8], [9.0]]
    assert new["count"].tolist() == [8, 1]


def test_without_prototypes_or_pull_a_client_trains_alone(tiny, tmp_path):
    experiment = tiny(FEDPROTO, "method.lam=0")
    home = host(experiment, tmp_path / "a")
    state, (first, _) = after_a_round(home)
    second = home.update(state, 0)
    for start, round_, expected in ((None, home.initial_state(), first), (first, state, second)):
        site = home.site("method", round_, 0)
        site.load(start and start.personal)
        train_classifier(site, experiment.method.sgd, experiment.training.epochs)
        assert equal(expected.personal, take(site.network, WHOLE))
    pulled = host(tiny(FEDPROTO), tmp_path / "b")
    assert equal(pulled.update(pulled.initial_state(), 0).personal, first.personal)
    assert not close(pulled.update(state, 0).personal, second.personal)


def test_the_loss_by_a_plain_torch_loop(tiny, tmp_path):
    experiment = tiny(FEDPROTO, "method.lam=2.5", "training.epochs=2")
    home = host(experiment, tmp_path)
    state, _ = after_a_round(home, clients=(1,))
    update = home.update(state, 0)

    held = state.groups["prototypes"]
    site, sgd = home.site("method", state, 0), experiment.method.sgd
    mine = {int(label) for label in site.labels[: site.labelled]}
    assert {bool(held["count"][j]) for j in mine} == {
        True,
        False,
    }  # the other client has some of them
    site.load()
    network = copy.deepcopy(site.network).train()
    optimizer = torch.optim.SGD(
        network.parameters(), sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    step = 0
    for epoch in range(2):
        order = torch.randperm(site.labelled, generator=site.generator("batches", epoch))
        for rows in torch.tensor_split(order, -(-site.labelled // sgd.batch)):
            z = network.encoder(site.weak_view(rows, site.generator("views", step)))
            loss = F.cross_entropy(network.head(z), site.labels[rows])
            for feature, label in zip(z, site.labels[rows], strict=True):
                if held["count"][label] > 0:
                    gap = feature - held["mean"][label]
                    loss = loss + 2.5 * gap.square().sum() / z.numel()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    assert close(update.personal, dict(network.state_dict()))


def test_who_trained_keeps_its_model_and_a_new_client_trains_one_by_the_same_loss(tiny, tmp_path):
    home = host(tiny(FEDPROTO, "personal.epochs=1"), tmp_path / "a")
    state, (update, _) = after_a_round(home)
    trained, novel = home.personalize(state, "method", [0, 6])
    assert equal(trained.tensors, update.personal)
    # as many epochs as a round has, at the same state: what a first round would give it
    assert equal(novel.tensors, home.update(state, 6).personal)

    cosine = ("method.sgd.schedule=cosine", "personal.epochs=1", "training.rounds=1")
    later = host(tiny(FEDPROTO, *cosine), tmp_path / "b")  # a schedule that ended must not stop it
    (model,) = later.personalize(state, "method", [6])
    assert not close(model.tensors, later.load("method").initial)


def test_an_update_is_a_function_of_its_inputs(tiny, tmp_path):
    home = host(tiny(FEDPROTO), tmp_path)
    state = home.initial_state()
    first = home.update(state, 0)
    home.update(state, 3)
    again = home.update(state, 0)
    assert equal(first.shared["prototypes"], again.shared["prototypes"])
    assert equal(first.personal, again.personal)


def test_a_stopped_run_goes_on_with_the_same_bits(tiny, tmp_path):
    stopped, whole = stopped_and_whole(tiny(FEDPROTO, "personal.epochs=1"), tmp_path)
    assert stopped == whole
