"""Which labels a personal model may use; and that training without labels sees none."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibre.calibration.typical import prepared
from calibre.data import federation as federations
from calibre.data.sources import load
from calibre.engine import rounds
from calibre.engine.host import Host
from calibre.engine.messages import METHOD
from calibre.errors import UserError
from calibre.experiment import read
from calibre.local.features import encode
from calibre.report import runs


def host_of(experiment, place, relabelled=False):
    """With ``relabelled``, every image has another label, once it is settled who holds it."""
    pool = load(experiment.data)
    federation = federations.build(pool, experiment.federation, experiment.seed)
    if relabelled:
        pool = replace(pool, labels=(pool.labels + 3) % 10)
    return Host(experiment, pool, federation, place, torch.device("cpu"))


@pytest.fixture
def with_all_labels(tiny):
    """Every image of a client has a label."""
    return lambda *changes: read(tiny(), changes, federation={"labels": None})


@pytest.mark.parametrize(
    "changes",
    [
        ("method.name=calibre",),
        ("method.name=calibre", "method.objective=smog"),
        ("method.name=pfl-ssl",),
        ("method.name=fedema",),
        ("method.name=fedu",),
    ],
)
def test_labels_are_hidden_from_training_that_does_not_use_them(tmp_path, tiny, changes):
    experiment = tiny(*changes)
    trained = []
    for relabelled in (False, True):
        host = host_of(experiment, tmp_path / str(relabelled), relabelled)
        state = host.initial_state()
        updates = [host.update(state, client) for client in range(3)]
        trained.append(host.experiment.method.aggregate(state, updates).model)
    assert trained[0].keys() == trained[1].keys()
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


@pytest.mark.parametrize("changes", [("method.labels.weight=1",), ("method.name=fedavg",)])
def test_labels_make_a_difference_where_they_are_used(tmp_path, tiny, changes):
    experiment = tiny(*changes)
    models = []
    for relabelled in (False, True):
        host = host_of(experiment, tmp_path / str(relabelled), relabelled)
        models.append(host.update(host.initial_state(), 0).shared["model"])
    assert any(not torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_random_labels_are_those_that_a_federation_of_few_labels_keeps(with_all_labels, tmp_path):
    few = host_of(with_all_labels("federation.label_count=7"), tmp_path / "few")
    some = host_of(with_all_labels("personal.labels=7"), tmp_path / "some")
    state = some.initial_state()
    for client in range(7):
        held = few.federation.client(client).labelled
        site = some.prepared(METHOD, state, client).site
        assert site.labelled == len(held) == 7
        assert torch.equal(site.images[:7], torch.from_numpy(few.pool.images[held]))
        assert site.labels[:7].tolist() == few.pool.labels[held].tolist()
        assert (site.labels[7:] == -1).all()
        assert len(site.images) == len(some.federation.client(client).labelled)


def test_labels_by_class_are_even(with_all_labels, tmp_path):
    host = host_of(
        with_all_labels("personal.labels=6", "personal.label_choice=class"), tmp_path / "run"
    )
    state = host.initial_state()
    for client in range(7):
        labels = host.pool.labels[host.federation.client(client).labelled]
        site = host.prepared(METHOD, state, client).site
        chosen = np.bincount(site.labels[:6].numpy(), minlength=10)
        had = np.bincount(labels, minlength=10)
        left = chosen[(had > chosen)]  # of a class with images left, as many as of any other
        assert len(left) == 0 or left.min() >= chosen.max() - 1
        assert site.labels_by_class


def test_typical_labels_stand_for_as_many_clusters_and_are_not_looked_at(with_all_labels, tmp_path):
    experiment = with_all_labels("personal.labels=5", "personal.label_choice=typical")
    hosts = [host_of(experiment, tmp_path / str(b), b) for b in (False, True)]
    for client in range(7):
        sites = [host.prepared(METHOD, host.initial_state(), client).site for host in hosts]
        assert torch.equal(sites[0].images, sites[1].images)  # other labels, the same choice
        assert sites[0].labels[:5].tolist() != sites[1].labels[:5].tolist()
        site = sites[0]
        assert (site.labelled, int((site.labels >= 0).sum())) == (5, 5)
        encoder = site.network.get_submodule("encoder")
        x = prepared(encode(encoder, site.images, site.normalization))
        near = torch.cdist(x, x[:5]).min(1).values.mean()
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        drawn = [torch.cdist(x, x[rows]).min(1).values.mean() for rows in order.split(5)[:8]]
        assert near < torch.stack(drawn).mean()  # they are nearer to all images than drawn ones


def test_a_run_tells_of_the_labels_that_it_used(with_all_labels, tmp_path):
    experiment = with_all_labels(
        "personal.labels=9", "personal.label_choice=typical", "personal.head=solved",
        'personal.floors=["majority", "pixels", "untrained", "local"]', "training.rounds=1",
    )  # fmt: skip
    rounds.run(experiment, tmp_path)
    for row in runs.read(tmp_path).clients:
        assert row.samples == 9
        assert row.unlabelled == 31


def test_more_labels_than_there_are_is_all(tiny, tmp_path):
    plain, ample = (host_of(tiny(*c), tmp_path / str(c)) for c in ((), ("personal.labels=999",)))
    sites = [h.prepared(METHOD, h.initial_state(), 1).site for h in (plain, ample)]
    assert torch.equal(sites[0].labels, sites[1].labels)


def test_a_choice_needs_a_number(tiny):
    with pytest.raises(UserError, match=r"say how many with personal\.labels"):
        tiny("personal.label_choice=typical")


def test_settings_that_are_not_used_do_not_make_it_another_experiment(tiny):
    assert tiny().hash() == tiny("personal.label_choice=random").hash()
    assert tiny().hash() != tiny("personal.labels=3").hash()
    hashes = {tiny("personal.labels=3", f"personal.label_choice={c}").hash()
              for c in ("random", "class", "typical")}  # fmt: skip
    assert len(hashes) == 3
