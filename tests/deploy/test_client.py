"""Every deployed site ends with a bundle of its own: usable there, without the coordinator."""

import csv

import numpy as np
import pytest

import calibre
from calibre.data import federation as federations
from calibre.data.sources import load as load_pool
from calibre.deploy import client as site_side
from calibre.deploy.coordinator import coordinate
from calibre.engine import rounds
from calibre.finished.run import FinishedRun
from calibre.personal.bundle import load
from tests.deploy.folders import write_folders
from tests.deploy.local_grid import LocalGrid
from tests.deploy.test_bits import shares
from tests.deploy.test_coordinator import OWNERS, experiment, nodes


@pytest.fixture
def place(tmp_path):
    write_folders(tmp_path, OWNERS)
    return tmp_path


def run_on(grid, asked, place, emit=lambda event: None):
    return coordinate(grid, asked, place / "run", emit, patience=5)


def scores(folder):
    with open(folder / "clients.csv", newline="") as file:
        return {row["name"]: float(row["accuracy"]) for row in csv.DictReader(file)}


def bundle_of(place, owner):
    (folder,) = (place / owner / "state").glob("*/bundle")
    return load(folder)


SMALL_HEADS = {
    "calibre": ["method.objective.hidden=8", "method.objective.projection=4"],
    "fedrep": [],
    "ditto": [],
}


@pytest.mark.parametrize("method", SMALL_HEADS)
def test_each_sites_bundle_is_the_one_that_an_embedded_run_would_make(place, method):
    """A head on a common encoder, a head kept by the site, a whole network of its own."""
    asked = experiment(place, f"method.name={method}", *SMALL_HEADS[method], "engine.sites=4")
    rounds.run(asked, place / "embedded")
    delivery = FinishedRun(place / "embedded")
    pool = load_pool(asked.data)
    names = federations.load(place / "embedded").names
    run_on(LocalGrid(nodes(place, novel=names[3:])), asked, place)
    for client, name in enumerate(names):
        here, there = bundle_of(place, name), delivery.bundle(client)
        for mine, theirs in zip(here.answers(pool.images), there.answers(pool.images), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)
        assert (here.card.client, here.card.novel) == (name, name in names[3:])
        assert here.card.accuracy == there.card.accuracy
        assert here.card.calibration.fitted == there.card.calibration.fitted
        assert here.card.classes == there.card.classes
    assert not list((place / "run").rglob("bundle*"))


def test_a_late_site_has_one_too_and_it_knows_only_what_the_site_knows(place):
    grid = LocalGrid(nodes(place, OWNERS[:3]))
    late = LocalGrid(nodes(place, OWNERS[3:])).contexts[100]

    def join(event):
        if event.event == "round":
            grid.contexts[999] = late

    asked = experiment(place, "method.name=fedavg-ft", "engine.sites=3")
    run_on(grid, asked, place, join)
    dora = bundle_of(place, "dora")
    files = sorted((place / "dora/images/test").glob("*/*.png"))
    card = dora.card
    assert card.accuracy.value == pytest.approx(scores(place / "run")["dora"])
    assert card.novel
    assert card.run == {"experiment": asked.hash(), "seed": 0, "rounds": 2}
    assert (card.fairness, card.floors) == ({}, {})  # the coordinator's to know
    assert not {"data", "federation"} & card.settings.keys()
    assert card.outside.foreign_images == 0  # all classes that there are images of are its own
    (text,) = (place / "dora/state").glob("*/bundle/card.md")
    assert "known to its coordinator alone" in text.read_text()
    assert "for none were at hand" in text.read_text()
    assert calibre.load(text.parent).predict(files[0])[0].error is None


def test_a_bundle_that_cannot_be_made_costs_no_score(place, monkeypatch, caplog):
    real = site_side.assemble

    def fails(making):
        if making.client == "bert":
            raise OSError("no space left")
        return real(making)

    monkeypatch.setattr(site_side, "assemble", fails)
    heard = []
    asked = experiment(place, "method.name=fedavg", "engine.sites=4")
    metrics = run_on(LocalGrid(nodes(place)), asked, place, heard.append)
    assert (metrics.failures, metrics.train.clients) == (0, 4)
    assert {"anna", "carl", "dora"} == {p.parents[2].name for p in place.glob("*/state/*/bundle")}
    said = [event.text for event in heard if event.event == "warning"]
    assert said == ["client 1 has no bundle at its site: OSError: no space left"]
    assert "no space left" in caplog.text


def test_nodes_that_share_out_an_experiments_clients_make_none(place):
    asked = experiment(place, "method.name=fedavg", "engine.sites=2")
    run_on(LocalGrid(shares(place / "nodes", 2)), asked, place)
    assert list((place / "nodes").glob("*/*/clients/*/personal.safetensors"))
    assert not list((place / "nodes").rglob("bundle"))
