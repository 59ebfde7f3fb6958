"""Where the label term is the whole loss: in the last rounds, and in a second network."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from calibre.engine.plausible import check_update
from calibre.errors import UserError
from calibre.methods.method import ServerState, Update
from calibre.methods.supervised import SUPERVISED_SGD
from tests.methods.helpers import equal, host, stopped_and_whole

LABELS = ("method.labels.weight=1", "method.labels.batch=8", "training.rounds=3")
LAST = (*LABELS, "method.labels.last_rounds=1")


def after(round_, home):
    return dataclasses.replace(home.initial_state(), round=round_)


@pytest.mark.parametrize("name", ["calibre", "pfl-ssl"])
def test_the_last_rounds_train_encoder_and_head_on_labels_and_nothing_else(tiny, tmp_path, name):
    home = host(tiny(f"method.name={name}", *LAST), tmp_path)
    state = after(2, home)
    update = home.update(state, 0)
    assert update.report.keys() - {"divergence", "images"} == {"loss", "l_c"}
    moved = {n for n, t in update.shared["model"].items() if not torch.equal(t, state.model[n])}
    assert moved
    assert all(n.startswith(("encoder.", "head.")) for n in moved)


def test_they_are_plain_sgd_on_the_classes_that_the_client_holds(tiny, tmp_path):
    """By hand: cross-entropy over the held classes, momentum and weight decay as torch has them."""
    home = host(tiny("method.name=pfl-ssl", *LAST, "training.epochs=2"), tmp_path)
    state = after(2, home)
    site = home.site("method", state, 0)
    held = sorted(set(site.labels[: site.labelled].tolist()))
    expected = by_hand(site, "encoder", "head", held, epochs=2)
    check_close(home.update(state, 0).shared["model"], expected)


def by_hand(site, encoder_name, head_name, classes, epochs):
    """The tensors of an encoder and its head after epochs of one step on all labels each."""
    encoder = copy.deepcopy(site.network.get_submodule(encoder_name)).train()
    head = copy.deepcopy(site.network.get_submodule(head_name))
    parameters = [*encoder.parameters(), *head.parameters()]
    sgd = torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=1e-4)
    assert site.labelled <= SUPERVISED_SGD.batch  # then an epoch is one step on all labels
    for epoch in range(epochs):
        order = torch.randperm(site.labelled, generator=site.generator("batches", epoch))
        views = site.weak_view(order, site.generator("views", epoch))
        logits = head(encoder(views))[:, classes]
        targets = torch.tensor([classes.index(int(label)) for label in site.labels[order]])
        sgd.zero_grad()
        F.cross_entropy(logits, targets).backward()
        sgd.step()
    parts = {encoder_name: encoder, head_name: head}
    return {f"{part}.{n}": t for part, m in parts.items() for n, t in m.state_dict().items()}


def check_close(found, expected):
    for name, tensor in expected.items():
        assert torch.allclose(found[name].double(), tensor.double(), atol=1e-5), name


def test_the_rounds_before_are_those_of_a_shorter_run_bit_for_bit(tiny, tmp_path):
    """Schedules of self-supervision end where the last rounds begin."""
    with_last = host(tiny("method.name=calibre", *LAST), tmp_path / "last")
    shorter = host(tiny("method.name=calibre", *LABELS, "training.rounds=2"), tmp_path / "shorter")
    for round_ in (0, 1):
        one, other = (home.update(after(round_, home), 0) for home in (with_last, shorter))
        assert equal(one.shared["model"], other.shared["model"])


def test_a_client_without_labels_goes_on_with_self_supervision(tiny, tmp_path):
    home = host(tiny("method.name=calibre", *LAST), tmp_path)
    state = after(2, home)
    site = dataclasses.replace(home.site("method", state, 0), labelled=0)
    site.labels[:] = -1
    update = home.load("method").method.local_update(state, None, site)
    assert "l_s" in update.report


def test_without_the_label_term_there_are_no_such_rounds(tiny, tmp_path):
    settings = ("method.name=calibre", "method.labels.weight=0", "training.rounds=3")
    plain = host(tiny(*settings), tmp_path / "plain")
    asked = host(tiny(*settings, "method.labels.last_rounds=2"), tmp_path / "asked")
    one, other = (home.update(after(2, home), 0) for home in (plain, asked))
    assert equal(one.shared["model"], other.shared["model"])


def test_a_stopped_run_goes_on_through_its_last_rounds(tiny, tmp_path):
    settings = ("method.name=calibre", *LABELS, "method.labels.last_rounds=2")
    stopped, whole = stopped_and_whole(tiny(*settings, "training.rounds=4"), tmp_path)
    assert stopped == whole


SECOND = (*LABELS, "method.labels.second=2")


@pytest.mark.parametrize("name", ["calibre", "pfl-ssl"])
def test_a_second_network_leaves_the_first_as_it_is_bit_for_bit(tiny, tmp_path, name):
    alone = host(tiny(f"method.name={name}", *LABELS), tmp_path / "alone")
    beside = host(tiny(f"method.name={name}", *SECOND), tmp_path / "beside")
    models = []
    for home in (alone, beside):
        state = home.initial_state()
        updates = [home.update(state, client) for client in (0, 1)]
        models.append(home.load("method").method.aggregate(state, updates).model)
    first = {n: t for n, t in models[1].items() if not n.startswith("second.")}
    assert len(first) < len(models[1])
    assert equal(first, models[0])


def test_the_second_network_is_trained_on_labels_as_often_as_is_asked_for(tiny, tmp_path):
    home = host(tiny("method.name=pfl-ssl", *SECOND, "training.epochs=2"), tmp_path)
    state = home.initial_state()
    site = home.site("method", state, 0)
    expected = by_hand(site, "second.encoder", "second.head", [*range(10)], epochs=4)
    update = home.update(state, 0)
    check_close(update.shared["model"], expected)
    assert update.report["l_second"] > 0


def test_the_second_network_is_the_mean_over_those_who_have_labels(tiny):
    """By hand; of the first network everybody counts."""
    method = tiny("method.name=pfl-ssl", *SECOND).method

    def model(value):
        parts = {"encoder.w": (2,), "second.encoder.w": (2,), "second.head.bias": (3,)}
        return {name: torch.full(shape, float(value)) for name, shape in parts.items()}

    def update(client, value, classes):
        held = {"classes": torch.tensor(classes)}
        return Update(client, samples=10, shared={"model": model(value), "held": held})

    start = ServerState(0, {"model": model(9)})
    sent = [update(0, 1, [1, 1, 0]), update(1, 3, [1, 0, 0]), update(2, 8, [0, 0, 0])]
    found = method.aggregate(start, sent).model
    assert found["encoder.w"].tolist() == [4, 4]
    assert found["second.encoder.w"].tolist() == [2, 2]
    assert found["second.head.bias"].tolist() == [2, 2, 2]
    nobody = method.aggregate(start, sent[2:]).model
    assert nobody["encoder.w"].tolist() == [8, 8]
    assert nobody["second.encoder.w"].tolist() == [9, 9]  # who has no labels has no say


def test_rows_of_the_head_stay_where_nobody_has_labels(tiny):
    method = tiny("method.name=calibre", *LABELS).method
    start = ServerState(0, {"model": {"head.bias": torch.tensor([1.0, 2.0])}})
    held = {"classes": torch.tensor([0, 0])}
    sent = Update(0, 10, {"model": {"head.bias": torch.tensor([5.0, 6.0])}, "held": held},
                  numbers={"divergence": 0.1})  # fmt: skip
    assert method.aggregate(start, [sent]).model["head.bias"].tolist() == [1, 2]
    noised = dataclasses.replace(sent, shared={"model": sent.shared["model"]})  # tells no classes
    assert method.aggregate(start, [noised]).model["head.bias"].tolist() == [5, 6]


@pytest.mark.parametrize(
    ("classes", "labels", "said"),
    [
        ([1] * 10, 0, "labels of 10 classes trained, but has 0 labels"),
        ([1] + [0] * 9, 1, "labels of 1 classes trained, but has 1 labels"),
        ([1] * 10, 6, "labels of 10 classes trained, but has 6 labels"),
        ([-7] + [0] * 9, 60, "not 0 or 1"),
    ],
)
def test_a_client_cannot_say_that_it_holds_more_than_it_has(tiny, tmp_path, classes, labels, said):
    home = host(tiny("method.name=pfl-ssl", *SECOND), tmp_path)
    method, state = home.load("method").method, home.initial_state()
    update = home.update(state, 0)
    client = home.federation.client(0)
    images = np.concatenate([client.labelled, client.unlabelled])
    known = dataclasses.replace(client, labelled=images[:labels], unlabelled=images[labels:])
    assert check_update(update, method, client, method.expected_update(state)) is None
    lie = {**update.shared, "held": {"classes": torch.tensor(classes)}}
    with pytest.raises(ValueError, match=said):
        check_update(
            dataclasses.replace(update, shared=lie), method, known, method.expected_update(state)
        )


def test_a_client_without_labels_sends_the_second_network_back_unchanged(tiny, tmp_path):
    home = host(tiny("method.name=calibre", *SECOND), tmp_path)
    state = home.initial_state()
    site = dataclasses.replace(home.site("method", state, 0), labelled=0)
    site.labels[:] = -1
    update = home.load("method").method.local_update(state, None, site)
    assert not update.shared["held"]["classes"].any()
    second = {n: t for n, t in state.model.items() if n.startswith("second.")}
    assert equal({n: update.shared["model"][n] for n in second}, second)


def test_a_second_network_needs_labels_and_a_way_to_the_server(tiny, tmp_path):
    without = tiny("method.name=calibre", *SECOND, "method.labels.weight=0").method
    assert without.label == "Calibre (SimCLR)"
    home = host(tiny("method.name=calibre", *SECOND, "method.labels.weight=0"), tmp_path)
    assert not [name for name in home.initial_state().model if name.startswith("second")]
    assert tiny("method.name=calibre", *SECOND).method.label.endswith("with labels, two networks")
    with pytest.raises(UserError, match=r"method\.labels\.second"):
        tiny("method.name=calibre", *SECOND, "method.exchange=encoder")
    apart = ("method.exchange=encoder", "method.labels.weight=0")
    assert tiny("method.name=calibre", *SECOND, *apart).method.label == "Calibre (SimCLR)"


def test_a_stopped_run_goes_on_with_both_networks(tiny, tmp_path):
    settings = ("method.name=calibre", *SECOND, "method.labels.last_rounds=2")
    stopped, whole = stopped_and_whole(tiny(*settings, "training.rounds=4"), tmp_path)
    assert stopped == whole


def test_a_client_with_one_label_has_trained_nothing_and_says_so(tiny, tmp_path):
    home = host(tiny("method.name=calibre", *SECOND), tmp_path)
    state = home.initial_state()
    site = dataclasses.replace(home.site("method", state, 0), labelled=1)
    site.labels[1:] = -1
    update = home.load("method").method.local_update(state, None, site)
    assert not update.shared["held"]["classes"].any()


class Headed(torch.nn.Module):
    """An encoder of somebody's own, which calls its last layer a head."""

    features = 24

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(64, 24)

    def forward(self, x):
        return self.head(x.flatten(1))


def headed(channels, width, stem):
    return Headed()


def test_an_encoder_may_have_a_head_of_its_own(tiny, tmp_path):
    here = "network.encoder=tests.methods.test_pfl_ssl:headed"
    for second in (0, 2):
        settings = ("method.name=calibre", *LABELS, f"method.labels.second={second}", here)
        home = host(tiny(*settings), tmp_path / str(second))
        method, state = home.load("method").method, home.initial_state()
        expected = method.expected_update(state)
        check_update(home.update(state, 0), method, home.federation.client(0), expected)
        assert len(expected["held"]["classes"]) == 10


def test_clusters_by_labels_need_no_second_network(tiny, tmp_path):
    asked = ("method.labels.weight=0", "method.prototypes.kmeans=labels", "method.labels.second=2")
    home = host(tiny("method.name=calibre", *asked), tmp_path)
    assert "l_second" not in home.update(home.initial_state(), 0).report
