"""Sites with folders of their own images: nobody else sees them, and nothing else changes."""

import json
import shutil

import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file

from calibre.data import federation as federations
from calibre.data.sources import load
from calibre.deploy.coordinator import coordinate, main
from calibre.deploy.records import text_of
from calibre.deploy.site_data import leaves, own_data, read_site, report
from calibre.engine import rounds
from calibre.errors import UserError
from calibre.experiment import read
from calibre.report import events
from calibre.report.events import Warned
from tests.deploy.folders import write_folders, write_site
from tests.deploy.local_grid import LocalGrid

OWNERS = ("anna", "bert", "carl", "dora")
SMALL = (
    "federation.scheme=natural", "federation.novel=1", "network.width=2", "method.sgd.batch=16",
    "training.rounds=2", "training.clients_per_round=2", "training.epochs=1", "personal.epochs=2",
    "personal.floors=[]", "engine.workers=0",
)  # fmt: skip


def experiment(place, *changes):
    return read(None, [f"data.source={place / 'all'}", *SMALL, *changes])


@pytest.fixture
def place(tmp_path):
    write_folders(tmp_path, OWNERS)
    return tmp_path


def nodes(place, names=OWNERS, novel=()):
    return [{"site": str(write_site(place, name, novel=name in novel))} for name in names]


def accuracies(folder):
    return (folder / "clients.csv").read_text()


@pytest.mark.parametrize("method", ["calibre", "scaffold", "fedrep"])
def test_sites_give_the_bits_of_an_embedded_run_on_all_their_images(place, method):
    changes = [f"method.name={method}"]
    changes += ["method.objective.hidden=8", "method.objective.projection=4"] * (
        method == "calibre"
    )
    asked = experiment(place, *changes, "engine.sites=4")
    rounds.run(asked, place / "embedded")
    federation = federations.build(load(asked.data), asked.federation, asked.seed)
    novel = federation.names[federation.training :]
    shutil.move(place / "all", place / "away")  # the coordinator never reads an image
    grid = LocalGrid(nodes(place, novel=novel))
    metrics = coordinate(grid, asked, place / "run", lambda event: None, patience=5)
    assert metrics.failures == 0
    one, other = ((place / run / "model.safetensors").read_bytes() for run in ("embedded", "run"))
    assert one == other
    assert accuracies(place / "embedded") == accuracies(place / "run")
    # each keeps its own model on its own disk, with the encoder; the coordinator has none of them
    for client, name in enumerate(federation.names):
        (kept,) = (place / name / "state").glob(f"*/clients/{client:06d}/personal.safetensors")
        assert (kept.parents[2] / "model.safetensors").read_bytes() == one
    assert not list((place / "run").glob("clients/*/*"))


def test_a_site_that_comes_late_gets_a_personal_model_and_never_trains(place):
    grid = LocalGrid(nodes(place, OWNERS[:3]))
    late = nodes(place, OWNERS[3:])

    def join(event):
        if event.event == "round" and event.round == 1 and late:
            more = LocalGrid(late)
            grid.contexts[999] = more.contexts[100]
            late.clear()

    asked = experiment(place, "method.name=fedavg", "engine.sites=3")
    metrics = coordinate(grid, asked, place / "run", join, patience=5)
    assert (metrics.train.clients, metrics.novel.clients) == (3, 1)
    assert accuracies(place / "run").splitlines()[-1].startswith('3,"dora",1,24,0,12,')
    assert json.loads((place / "run/federation.json").read_text())["sites"] == list(OWNERS)
    trained = [
        client
        for event in events.read(place / "run" / "events.jsonl") if event.event == "round"
        for client in event.clients
    ]  # fmt: skip
    assert "3" not in trained
    # and it goes on from there: a finished run is only personalised again
    again = coordinate(LocalGrid(nodes(place)), asked, place / "run", join, patience=5)
    assert again.novel == metrics.novel


def test_a_site_that_has_gone_is_left_out_and_counted(place):
    grid = LocalGrid(nodes(place))

    def leave(event):
        if event.event == "round" and event.round == 2:
            grid.contexts.pop(101)

    asked = experiment(place, "method.name=fedavg", "engine.sites=4")
    metrics = coordinate(grid, asked, place / "run", leave, patience=5)
    assert metrics.train.clients == 3
    failures = [e for e in events.read(place / "run/events.jsonl") if e.event == "failure"]
    assert [f.client for f in failures] == [1]
    assert "its site is not there" in failures[0].cause
    asked = experiment(place, "method.name=fedavg", "engine.sites=3", "engine.quorum=1.0")
    with pytest.raises(UserError, match="only 3 of 4 clients have a personal model"):
        coordinate(grid, asked, place / "run", leave, patience=5)


def test_nothing_but_the_shared_tensors_and_counts_leaves_a_site(place):
    """Every reply of every kind, taken apart."""
    replies = []

    class Listening(LocalGrid):
        def _answer(self, message):
            reply = super()._answer(message)
            replies.append((message.metadata.message_type, reply))
            return reply

    asked = experiment(place, "method.name=fedrep", "engine.sites=4")
    coordinate(Listening(nodes(place)), asked, place / "run", lambda event: None, patience=5)
    words = {kind: set() for kind in ("query", "train", "evaluate")}
    for kind, reply in replies:
        words[kind] |= set(json.loads(text_of(reply.content)))
        sent = [name for record in reply.content.array_records.values() for name in record]
        assert sent == (["block"] if kind == "train" else [])
        if kind == "train":
            data = reply.content["tensors"]["block"].data
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            assert {name.split(".")[0] for name in header} == {"model/encoder"}
    assert words == {
        "query": {"is", "version", "site", "share"},
        "train": {"is", "samples", "numbers", "keeps", "report", "began", "seconds"},
        "evaluate": {"is", "scores", "missing", "problem", "curves"},
    }


def test_a_site_says_what_would_leave_it(place):
    settings = read_site(write_site(place, "anna"))
    told = report(settings, own_data(settings))
    files = {part: list((place / "anna/images" / part).glob("*/*")) for part in ("train", "test")}
    assert [sum(told.labelled), sum(told.test)] == [len(files["train"]), len(files["test"])]
    for name, count in zip(told.classes, told.labelled, strict=True):
        assert count == len([f for f in files["train"] if f.parent.name == name])
    rows = leaves(experiment(place, "method.name=fedrep"), told)
    assert [row["part"] for row in rows] == ["model: encoder"]
    assert rows[0]["bytes"] > rows[0]["numbers"] * 4 - 100


def test_further_images_are_used_without_their_labels(place):
    file = write_site(place, "anna")
    file.write_text('unlabelled = "../bert/images"\n' + file.read_text())
    settings = read_site(file)
    told = report(settings, own_data(settings))
    assert told.unlabelled == 36
    assert sum(told.labelled) == 24


BAD = {
    "unknown": ('name = "a"\nport = 3\n[data]\nsource = "images"', "unknown key 'port'"),
    "nameless": ('[data]\nsource = "images"', "name: field required"),
    "no data": ('name = "a"', "data: field required"),
    "gone": ('name = "a"\n[data]\nsource = "nowhere"', "there is no such folder or file"),
    "no toml": ("name = ", "is not a TOML file"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_in_a_sites_file_is_told_in_words(place, case):
    text, message = BAD[case]
    file = place / "anna" / "site.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        own_data(read_site(file))


def test_a_late_site_that_does_not_fit_is_named_and_left_out(place):
    shutil.move(place / "bert/images/train/1", place / "bert/images/train/one")
    grid = LocalGrid(nodes(place, OWNERS[:1]))
    late = LocalGrid(nodes(place, OWNERS[1:2])).contexts[100]
    heard = []

    def join(event):
        heard.append(getattr(event, "text", ""))
        grid.contexts[999] = late

    asked = experiment(place, "method.name=fedavg", "engine.sites=1")
    metrics = coordinate(grid, asked, place / "run", join, patience=5)
    assert (metrics.train.clients, metrics.novel.clients) == (1, 0)
    assert "'bert' has a class 'one' that the federation does not know" in " ".join(heard)


def test_at_the_start_sites_must_agree_on_the_shape_of_an_image(place):
    file = write_site(place, "bert")
    file.write_text(file.read_text() + "size = 12\n")
    grid = LocalGrid([*nodes(place, OWNERS[:1]), {"site": str(file)}])
    asked = experiment(place, "method.name=fedavg")
    with pytest.raises(UserError, match=r"'bert' has images of \[12, 12, 1\], the others of \[8,"):
        coordinate(grid, asked, place / "run", lambda event: None, patience=5)
    assert not (place / "run").exists()


def test_who_is_waited_for_is_written_where_the_run_is_followed(place):
    file = place / "experiment.toml"
    file.write_text(experiment(place, "method.name=fedavg", "engine.sites=2").to_toml())
    (place / "run").mkdir()
    asked = {"experiment": str(file), "out": str(place / "run"), "patience": 0.0}
    context = Context(1, 1, {}, RecordDict(), asked)
    with pytest.raises(UserError, match="1 of 2 sites"):
        main(LocalGrid(nodes(place, OWNERS[:1])), context)
    (warning,) = events.read(place / "run" / "events.jsonl")
    assert warning == Warned(text="1 of 2 sites are here; waiting")
    assert "1 of 2 sites" in json.loads((place / "run" / "flower.json").read_text())["message"]


def test_a_function_of_the_sites_own_may_read_its_images(place):
    file = place / "anna" / "site.toml"
    file.write_text('name = "a"\n[data]\nsource = "our_images:read"\n')
    assert read_site(file).data.source == "our_images:read"


def test_after_changes_at_a_site_a_new_run_starts_with_the_old_ones_encoder(place):
    """What `calibre-fl update` tells to do with a run of sites."""
    asked = experiment(place, "method.name=fedrep", "engine.sites=4")
    coordinate(LocalGrid(nodes(place)), asked, place / "run", lambda event: None, patience=5)
    trained = place / "run" / "model.safetensors"
    image = next((place / "anna").rglob("*.png"))
    image.unlink()
    weights = f"network.weights={trained}"
    again = experiment(place, "method.name=fedrep", "engine.sites=4", weights, "training.rounds=0")
    metrics = coordinate(
        LocalGrid(nodes(place)), again, place / "next", lambda event: None, patience=5
    )
    assert metrics.failures == 0
    assert metrics.train.clients == 4
    first, then = (load_file(place / run / "model.safetensors") for run in ("run", "next"))
    encoder = [name for name in first if name.startswith("encoder.")]
    assert encoder
    assert all(torch.equal(first[name], then[name]) for name in encoder)


@pytest.mark.parametrize("name", ["", "a\\u001b[2J", "a\\nb", "x" * 201])
def test_a_site_is_not_called_what_others_cannot_print(tmp_path, name):
    file = tmp_path / "site.toml"
    file.write_text(f'name = "{name}"\n[data]\nsource = "digits"\n')
    with pytest.raises(UserError, match="name = "):
        read_site(file)
