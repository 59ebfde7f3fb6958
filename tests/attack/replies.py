"""Replies and hellos that no honest node sends, seeded, on a grid without processes.

    python -m tests.attack replies [--seed 0] [--count 3000]

Each is one node's failure, named, or does no harm: the coordinator never falls over a reply, and
the state after the round is one that a next round can start from.
"""

import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from calibre import __version__
from calibre.deploy import roster as rosters
from calibre.deploy.client import app
from calibre.deploy.grid import GridCrew
from calibre.deploy.nodes import Nodes
from calibre.deploy.records import Hello, SiteReport, block_of, envelope, text_of
from calibre.engine.gathering import Gathering
from calibre.engine.messages import METHOD, Assessed, Failed, Job, Outcome, Personalised
from calibre.engine.plausible import check_state
from calibre.engine.rounds import OngoingRun, keep
from calibre.errors import UserError
from calibre.experiment import read
from calibre.personal.pooling import pooled
from calibre.run_folder import RunFolder
from calibre.tensors import EmptyMeanError
from tests.attack.odd import altered, check_words, damaged
from tests.conftest import TINY
from tests.deploy.local_grid import LocalGrid
from tests.methods.helpers import host

KINDS = ("update", "assess", "personalize")
SMALL = (
    "method.name=calibre", *TINY, "method.objective.hidden=8", "method.objective.projection=4",
    "training.clients_per_round=2", "personal.head=solved",
)  # fmt: skip


@dataclass
class Stage:
    """A coordinator before its first round, and what its only node truly answers."""

    run: OngoingRun
    crew: GridCrew
    grid: LocalGrid
    truth: dict[str, RecordDict]


def attack(seed: int, count: int) -> Counter[str]:
    ended: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place, _stage(Path(place)) as stage:
        for number in range(count):
            try:
                rng = random.Random(f"replies {seed} {number}")
                ended[(_hello if number % 3 == 0 else _reply)(rng, stage)] += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}, case {number}: {error!r}") from error
    return ended


@contextmanager
def _stage(place: Path) -> Iterator[Stage]:
    experiment = read(None, SMALL)
    config = {"partition-id": 0, "num-partitions": 1, "state": str(place / "node")}
    grid = LocalGrid([config])
    store = RunFolder(place / "run")
    home = host(experiment, place / "run")
    store.open(experiment)
    keep(home.federation, experiment, store)
    nodes = Nodes(grid, lambda text: None)
    crew = GridCrew(nodes, lambda client: 100, experiment, experiment.method, place / "run", None)
    run = OngoingRun(
        experiment, store, home.federation, home, crew, lambda event: None, time.monotonic()
    )
    truth: dict[str, RecordDict] = {}

    def listen(node: int, message: Message) -> Message:
        reply = app(message, grid.contexts[node])
        truth[_kind(message)] = reply.content
        return reply

    grid.fail = listen
    for kind in KINDS:
        list(crew.run(run.state, [_job(kind)]))
    try:
        yield Stage(run, crew, grid, truth)
    finally:
        store.close()


def _kind(message: Message) -> str:
    if message.metadata.message_type == "query":
        return "hello"
    return str(json.loads(str(text_of(message.content)))["job"]["kind"])


def _job(kind: str) -> Job:
    return Job(kind=kind, clients=(0,), role=METHOD, kept=(0,))


def _content(rng: random.Random, true: RecordDict) -> RecordDict:
    """What a node answers: the truth, spoilt."""
    text = str(text_of(true))
    if rng.random() < 0.8:
        said = json.dumps(altered(rng, json.loads(text), rng.choice((1, 1, 2, 5))))
    else:
        said = damaged(rng, text.encode()).decode(errors="replace")
    if rng.random() < 0.03:
        said = rng.choice(("[" * 10**5, '{"a":' * 10**4, '"' + "x" * 2**20 + '"', "1" * 10**5, ""))
    content = RecordDict({"text": ConfigRecord({"json": said})})
    if "tensors" in true.array_records:
        block = block_of(true)
        if rng.random() < 0.7:
            block, said = damaged(rng, block), text  # the tensors alone
            content["text"] = ConfigRecord({"json": said})
        kind = rng.choice(("safetensors",) * 20 + ("numpy.ndarray", "pickle", ""))
        content["tensors"] = ArrayRecord({"block": Array("uint8", (len(block),), kind, block)})
    if rng.random() < 0.03:
        content = rng.choice(
            (RecordDict(), RecordDict({"text": ConfigRecord({"json": 3})}),
             RecordDict({"tensors": ArrayRecord({})}), RecordDict({"text": ConfigRecord({})}))
        )  # fmt: skip
    return content


def _reply(rng: random.Random, stage: Stage) -> str:
    kind = rng.choice(KINDS)
    content = _content(rng, stage.truth[kind])
    stage.grid.fail = lambda node, message: Message(content, reply_to=message)
    (outcome,) = stage.crew.run(stage.run.state, [_job(kind)])
    return f"{kind}: {_used(outcome, stage.run)}"


def _used(outcome: Outcome, run: OngoingRun) -> str:
    """As the round loop does: check, take the mean, choose."""
    reply = outcome.reply
    if isinstance(reply, Assessed):
        assert set(reply.curves) <= {0}
        pooled([reply.curves[client] for client in sorted(reply.curves)])
        return "used" if reply.curves else "refused"
    if isinstance(reply, Personalised):
        assert set(reply.scores) | set(reply.missing) == {0}
        assert all(0 <= score.accuracy <= 1 for score in reply.scores.values())
        return "used" if reply.scores else "refused"
    failures = run.failures
    try:
        gathering = Gathering(run.experiment, run.federation, run.state, run._failed, run.emit)
        state = gathering.aggregate(iter([outcome]))
    except EmptyMeanError:
        assert run.failures == failures + 1, "left out, and not named"
        assert isinstance(reply, Failed) or ": its update" in run.last_failure
        return "refused"
    check_state(state, run.state)
    return "used"


REPORT = SiteReport(
    name="anna", novel=False, shape=(8, 8, 1), classes=("a", "b"), labelled=(5, 6), test=(2, 2),
    unlabelled=0, total=(1e4,), squares=(1e6,), values=704,
)  # fmt: skip


def _hello(rng: random.Random, stage: Stage) -> str:
    true = envelope(Hello(version=__version__, site=REPORT))
    contents = {100 + i: _content(rng, true) for i in range(2)}
    contents[102] = true
    grid = LocalGrid([{}] * 3, fail=lambda node, message: Message(contents[node], reply_to=message))
    said: list[str] = []
    nodes = Nodes(grid, said.append)
    nodes.look()
    assert 102 in nodes.told or any(h.site.name == "anna" for h in nodes.told.values() if h.site)
    assert all("\x1b" not in name and "\x00" not in name for name in nodes.sites())
    here = [report for _, report in nodes.sites().values()]
    try:
        roster = rosters.begin(here, stage.run.experiment)
        rosters.federation_of(roster)
        rosters.empty_pool(roster.facts)
    except UserError as refused:
        check_words(refused)
        return "hello: no roster"
    return f"hello: {len(here)} of 3"
