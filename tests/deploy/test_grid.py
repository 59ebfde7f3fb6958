"""Nodes that misbehave: named, left out, counted; what they kept in vain does not count."""

import json
import re
from typing import ClassVar

import pytest
import safetensors.torch as st
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from calibre.deploy.client import app
from calibre.deploy.coordinator import coordinate
from calibre.deploy.records import block_of, envelope, text_of
from calibre.engine import rounds
from calibre.engine.messages import Failed, Updated, pack, read, unpack
from calibre.errors import UserError
from calibre.experiment import read as read_experiment
from calibre.methods.fedrep import FedRep
from calibre.report import events
from tests.conftest import TINY
from tests.deploy.local_grid import LocalGrid
from tests.deploy.test_bits import gathered, on_grid, shares
from tests.methods.helpers import results

CHANGES = ("method.name=fedrep", "training.rounds=3", "training.clients_per_round=5")


def clients_of(message):
    return json.loads(text_of(message.content))["job"]["clients"]


def faulty(folder, answer, at_round, client=4):
    """A grid whose ``client`` answers wrongly in one round; with two nodes it is alone there."""

    def fail(node, message):
        if message.metadata.message_type != "train" or clients_of(message) != [client]:
            return None
        if message.metadata.group_id != str(at_round):
            return None
        return answer(message, lambda: app(message, grid.contexts[node]))

    grid = LocalGrid(shares(folder / "nodes"), fail=fail)
    return grid


def changed(change):
    """The true answer with its tensors changed."""

    def answer(message, truth):
        reply = truth()
        tensors = unpack(block_of(reply.content))
        change(tensors)
        told = read(text_of(reply.content), Updated)
        return Message(envelope(told, pack(tensors)), reply_to=message)

    return answer


def told(**fields):
    """The true answer with other words."""

    def answer(message, truth):
        reply = truth()
        words = json.loads(text_of(reply.content)) | fields
        reply.content["text"] = ConfigRecord({"json": json.dumps(words)})
        return reply

    return answer


def texted(text):
    """The true answer with another text altogether."""

    def answer(message, truth):
        reply = truth()
        reply.content["text"] = ConfigRecord({"json": text})
        return reply

    return answer


def pickled(message, truth):
    """Tensors written as a pickle: nobody opens it."""
    reply = truth()
    array = Array("uint8", (5,), "pickle", b"\x80\x04K\x01.")
    reply.content["tensors"] = ArrayRecord({"block": array})
    return reply


def first(tensors):
    return next(name for name in tensors if tensors[name].is_floating_point())


def grow(tensors):
    tensors[first(tensors)] = torch.zeros(3, 3, 3)


FAULTS = {
    "raises": (lambda message, truth: RuntimeError("disk full"), "disk full"),
    "silent": (lambda message, truth: "silence", "no answer within 0.7 s"),
    "nan": (changed(lambda t: t[first(t)].fill_(float("nan"))), "holds NaN or infinity"),
    "shape": (changed(grow), r"is torch.float32 \[3, 3, 3\], expected"),
    "missing": (changed(lambda t: t.pop(first(t))), "is missing"),
    "extra": (changed(lambda t: t.update({"model/head.weight": torch.zeros(2)})), "not asked for"),
    "group": (changed(lambda t: t.update({"spy/x": torch.zeros(2)})), "'x' was not asked for"),
    "dtype": (changed(lambda t: t.update({first(t): t[first(t)].double()})), "torch.float64"),
    "large": (changed(lambda t: t.update({"model/y": torch.zeros(10**6)})), "bytes, at most"),
    "pickle": (pickled, "written as 'pickle', not as 'safetensors'"),
    "block": (lambda m, t: Message(envelope(read(text_of(t().content), Updated)), reply_to=m),
              "it has no tensors"),
    "samples": (told(samples=10**6), "it trained on 1000000 images, but holds"),
    "negative": (told(samples=-1), "refused: samples"),
    "infinite": (told(seconds=float("inf")), "refused: seconds"),
    "numbers": (told(numbers={"weight": 9.0}), "the number 'weight' was not asked for"),
    "words": (told(surprise=1), "refused: surprise"),
    "kind": (told(**{"is": "Personalised"}), "is no Updated or Failed"),
    "deep": (texted("[" * 10**5), "nested too deeply"),
    "long": (texted('"' + "x" * 2**20 + '"'), "too long"),
    "says so": (lambda m, t: Message(envelope(Failed(error="no power")), reply_to=m), "^no power$"),
    "nothing": (lambda m, truth: Message(RecordDict(), reply_to=m), "it has no text"),
}  # fmt: skip


class Clock:
    """Time that passes only while the coordinator sleeps: work takes none."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Absent(FedRep):
    """FedRep whose client 4 is not there in the second round."""

    title: ClassVar[str] = "Absent"
    name: str = "tests.deploy.test_grid:Absent"

    def local_update(self, server, personal, site):
        if (site.client, server.round) == (4, 1):
            raise RuntimeError("not there")
        return super().local_update(server, personal, site)


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """The embedded engine's results when client 4 misses round 2."""
    folder = tmp_path_factory.mktemp("embedded")
    absent = f"method.name={Absent.__module__}:Absent"
    rounds.run(read_experiment(None, [absent, *TINY, *CHANGES[1:]]), folder)
    return results(folder)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_violating_client_is_dropped_and_named(tiny, tmp_path, fault, without, monkeypatch):
    """The result is that of a round without it; what it kept of that round does not count."""
    monkeypatch.setattr("calibre.deploy.grid.time", Clock())
    answer, cause = FAULTS[fault]
    experiment = tiny(*CHANGES, "engine.sites=3", "engine.deadline=0.7")
    metrics = on_grid(experiment, tmp_path, faulty(tmp_path, answer, at_round=2))
    log = events.read(tmp_path / "run" / "events.jsonl")
    failures = [event for event in log if event.event == "failure"]
    assert [(f.client, f.round) for f in failures] == [(4, 2)]
    assert re.search(cause, failures[0].cause)
    assert metrics.failures == 1
    assert gathered(tmp_path) == without


def test_a_coordinator_that_stops_goes_on_with_what_its_nodes_keep(tiny, tmp_path):
    """Also when nodes have already written of the round that is made again."""
    experiment = tiny(*CHANGES, "engine.sites=3", "engine.runtime=flower")
    grid = LocalGrid(shares(tmp_path / "nodes"))

    def stop(event):
        if event.event == "round" and event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coordinate(grid, experiment, tmp_path / "run", stop, patience=5)
    assert list((tmp_path / "nodes").glob("node-*/*/clients/*/0002.safetensors"))
    on_grid(experiment, tmp_path, LocalGrid(shares(tmp_path / "nodes")))
    rounds.run(experiment, tmp_path / "embedded")
    assert gathered(tmp_path) == results(tmp_path / "embedded")


@pytest.mark.parametrize("loss", ["missing", "damaged"])
def test_a_node_that_lost_what_a_client_kept_says_so_and_does_not_begin_anew(tiny, tmp_path, loss):
    experiment = tiny(*CHANGES, "engine.sites=3")

    def lose(event):
        if event.event == "round" and event.round == 2:
            (file,) = (tmp_path / "nodes").glob("node-*/*/clients/000004/0002.safetensors")
            file.unlink() if loss == "missing" else file.write_bytes(file.read_bytes()[:-1])

    grid = LocalGrid(shares(tmp_path / "nodes"))
    metrics = coordinate(grid, experiment, tmp_path / "run", lose, patience=5)
    log = events.read(tmp_path / "run" / "events.jsonl")
    failures = [event for event in log if event.event == "failure"]
    # neither its third round nor the models of its group are made from another start
    assert [(f.client, f.round) for f in failures] == [(4, 3), (4, 4), (5, 4), (6, 4)]
    assert all(f"what client 4 kept after round 2 is {loss}" in f.cause for f in failures)
    assert metrics.train.clients == 4


def test_below_the_quorum_the_run_stops_and_says_so(tiny, tmp_path):
    grid = LocalGrid(shares(tmp_path / "nodes"))
    grid.fail = lambda node, message: (
        RuntimeError("away") if message.metadata.message_type == "train" else None
    )
    with pytest.raises(UserError, match="round 1 stopped: 0 clients succeeded"):
        on_grid(tiny(*CHANGES, "engine.sites=3"), tmp_path, grid)


def test_without_enough_nodes_it_ends_with_a_message(tiny, tmp_path):
    experiment = tiny("engine.sites=4")
    with pytest.raises(UserError, match=r"3 of 4 sites \(engine.sites\) had joined after 0.1 s"):
        coordinate(LocalGrid(shares(tmp_path)), experiment, tmp_path / "run", print, patience=0.1)


def test_nodes_of_another_version_are_refused(tiny, tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr("calibre.deploy.client.__version__", "9.9")
    with pytest.raises(UserError, match="0 of 3 sites"):
        coordinate(
            LocalGrid(shares(tmp_path)), tiny("engine.sites=3"), tmp_path / "run",
            lambda event: warnings.append(event.text), patience=0.1,
        )  # fmt: skip
    assert "it runs calibre 9.9" in " ".join(warnings)


def test_on_the_wire_there_is_little_but_the_tensors(tiny, tmp_path):
    """Within 2 % of the tensors' own size for every client and round, both ways."""
    changes = ("method.name=fedavg", "network.encoder=resnet8", "network.width=32")
    experiment = tiny(*changes, "training.rounds=1", "training.clients_per_round=2")
    grid = LocalGrid(shares(tmp_path / "nodes", count=2))
    on_grid(experiment, tmp_path, grid)
    model = st.load_file(tmp_path / "run" / "model.safetensors")
    own = sum(tensor.numel() * tensor.element_size() for tensor in model.values())
    assert own > 10**6
    sizes = [both for kind, *both in grid.bytes if kind == "train"]
    assert len(sizes) == 2
    for there, back in sizes:
        assert own < there < 1.02 * own
        assert own < back < 1.02 * own


def test_half_precision_takes_half_the_bytes_and_gives_nearly_the_same(tiny, tmp_path):
    changes = ("method.name=fedavg", "network.width=16", "training.rounds=1")
    exact, half = LocalGrid(shares(tmp_path / "1")), LocalGrid(shares(tmp_path / "2"))
    on_grid(tiny(*changes, "engine.sites=3"), tmp_path / "exact", exact)
    on_grid(tiny(*changes, "engine.sites=3", "engine.transfer=half"), tmp_path / "half", half)
    sums = [sum(back for kind, _, back in g.bytes if kind == "train") for g in (exact, half)]
    assert 0.45 < sums[1] / sums[0] < 0.55
    models = [st.load_file(tmp_path / f / "run/model.safetensors") for f in ("exact", "half")]
    for name, tensor in models[0].items():
        assert models[1][name].dtype == tensor.dtype
        assert torch.allclose(models[1][name].double(), tensor.double(), rtol=5e-3, atol=5e-3)
    assert any(not torch.equal(models[0][name], models[1][name]) for name in models[0])
