"""The last rounds of pFL-SSL and Calibre, in which the label term is the whole loss."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

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
    encoder = copy.deepcopy(site.network.get_submodule("encoder")).train()
    head = copy.deepcopy(site.network.get_submodule("head"))
    held = sorted(set(site.labels[: site.labelled].tolist()))
    parameters = [*encoder.parameters(), *head.parameters()]
    sgd = torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=1e-4)
    assert site.labelled <= SUPERVISED_SGD.batch  # then an epoch is one step on all labels
    for epoch in range(2):
        order = torch.randperm(site.labelled, generator=site.generator("batches", epoch))
        views = site.weak_view(order, site.generator("views", epoch))
        logits = head(encoder(views))[:, held]
        targets = torch.tensor([held.index(int(label)) for label in site.labels[order]])
        sgd.zero_grad()
        F.cross_entropy(logits, targets).backward()
        sgd.step()
    found = home.update(state, 0).shared["model"]
    for name, tensor in head.state_dict().items():
        assert torch.allclose(found[f"head.{name}"], tensor, atol=1e-6)
    for name, tensor in encoder.state_dict().items():
        assert torch.allclose(found[f"encoder.{name}"].double(), tensor.double(), atol=1e-5)


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
