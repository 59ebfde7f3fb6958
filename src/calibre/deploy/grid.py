"""Workers that are nodes of a Flower grid: a job becomes a message, its reply an outcome.

Nodes are known by what they say of themselves, not by Flower's numbers: these may change when a
node starts anew. Everything that comes back is checked here before anybody uses it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Array, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from calibre import __version__
from calibre.deploy import messages
from calibre.deploy.codec import pack, restored, room_for, unpack
from calibre.deploy.messages import Facts, Hello, Personalized, Request, Share, SiteReport, Updated
from calibre.engine.jobs import Job, Outcome
from calibre.engine.store import RunFolder
from calibre.experiment import Experiment
from calibre.methods.method import Method, ServerState
from calibre.tensors import Tensors, prefixed

HELLO_SECONDS = 600.0  # for a node to say who it is: a busy one takes minutes to start Python
GRACE_SECONDS = 5  # that Flower keeps a message longer than we wait: the deadline is ours to tell
REFUSED_SECONDS = 60.0  # before a node that was refused is asked again
POLL = (0.02, 0.5)  # seconds between looks for replies: the shortest, and the longest
Warn = Callable[[str], None]


@dataclass
class Nodes:
    """Who is there: nodes by what they told."""

    grid: Grid
    warn: Warn
    told: dict[int, Hello] = field(default_factory=dict)  # node id -> its hello
    asked: dict[str, tuple[int, float]] = field(default_factory=dict)  # message -> node, when
    refused: dict[int, float] = field(default_factory=dict)  # node id -> when

    def look(self) -> None:
        """Forget nodes that have gone, ask new ones who they are, and hear who has answered."""
        now, present = time.monotonic(), set(self.grid.get_node_ids())
        self.told = {node: hello for node, hello in self.told.items() if node in present}
        self.asked = {
            id_: (node, at)
            for id_, (node, at) in self.asked.items()
            if node in present and now - at < HELLO_SECONDS
        }
        lately = {node for node, at in self.refused.items() if now - at < REFUSED_SECONDS}
        new = present - self.told.keys() - lately - {node for node, _ in self.asked.values()}
        for node in sorted(new):
            hello = Message(RecordDict(), node, MessageType.QUERY, ttl=HELLO_SECONDS)
            for id_ in self.grid.push_messages([hello]):
                self.asked[id_] = node, now
        while self.asked and (replies := list(self.grid.pull_messages(list(self.asked)))):
            for reply in replies:
                node, _ = self.asked.pop(reply.metadata.reply_to_message_id)
                try:
                    self._accept(node, messages.read(Hello, fields_of(reply)))
                except ValueError as problem:
                    self.refused[node] = now
                    self.warn(f"a node was refused: {problem}")

    def hear(self, seconds: float) -> None:
        """Look until all that are there have said who they are, or for some seconds."""
        end = time.monotonic() + seconds
        self.look()
        while self.asked and time.monotonic() < end:
            time.sleep(POLL[1])
            self.look()

    def _accept(self, node: int, hello: Hello) -> None:
        if hello.version != __version__:
            raise ValueError(f"it runs calibre {hello.version}, the coordinator {__version__}")
        if hello.site is None and hello.share is None:
            raise ValueError("it is neither a site nor a share of the experiment")
        for other in self.told.values():
            if hello.site and other.site and hello.site.name == other.site.name:
                raise ValueError(f"there is a site called '{hello.site.name}' already")
            if hello.share and hello.share == other.share:
                raise ValueError(f"share {hello.share[0]} of {hello.share[1]} is there already")
        self.told[node] = hello

    def sites(self) -> dict[str, tuple[int, SiteReport]]:
        return {h.site.name: (node, h.site) for node, h in self.told.items() if h.site}

    def shares(self) -> dict[Share, int]:
        return {h.share: node for node, h in self.told.items() if h.share}


@dataclass(frozen=True)
class Part:
    """The part of a job that one node does."""

    index: int  # of the job
    clients: tuple[int, ...]
    node: int | None  # None: nobody there holds these clients


class GridWorkers:
    """Sends jobs to the nodes that hold their clients; outcomes come in the order of the jobs."""

    def __init__(
        self,
        nodes: Nodes,
        holder: Callable[[int], int | None],  # client -> the node that holds it
        experiment: Experiment,
        method: Method,
        folder: Path,
        facts: Facts | None,
    ) -> None:
        self.nodes = nodes
        self.holder = holder
        self.experiment = experiment
        self.text = experiment.to_toml()
        self.method = method
        self.folder = RunFolder(folder)
        self.facts = facts
        self.half = experiment.engine.transfer == "half"

    def run(self, state: ServerState, jobs: Sequence[Job]) -> Iterator[Outcome]:
        self.nodes.look()
        block = pack(prefixed(state.groups), self.half)
        expected = prefixed(self.method.expected_update(state))
        parts = [part for index, job in enumerate(jobs) for part in self._parts(index, job)]
        by_job: dict[int, list[Part]] = {}
        for part in parts:
            by_job.setdefault(part.index, []).append(part)
        ahead = 2 * max(1, len(self.nodes.told))  # jobs, so that few replies wait for earlier ones
        current = [0]
        replies = self._replies(
            parts,
            lambda part: self._message(state, block, jobs, part),
            lambda part: part.index < current[0] + ahead,
        )
        arrived: dict[Part, Message | str] = {}
        for index, job in enumerate(jobs):
            current[0] = index
            while any(part not in arrived for part in by_job[index]):
                part, reply = next(replies)
                arrived[part] = reply
            answers = {part: arrived.pop(part) for part in by_job[index]}
            if job.kind == "update":
                yield self._update(job, next(iter(answers.values())), expected)
            else:
                yield self._personal(job, answers)

    def close(self) -> None:
        pass

    def _parts(self, index: int, job: Job) -> list[Part]:
        """A group of clients that several nodes hold is shared out among these."""
        nodes = {client: self.holder(client) for client in job.clients}
        together: dict[int | None, list[int]] = {}
        for client, node in nodes.items():
            together.setdefault(node, []).append(client)
        return [Part(index, tuple(clients), node) for node, clients in together.items()]

    def _message(
        self, state: ServerState, block: Array, jobs: Sequence[Job], part: Part
    ) -> Message:
        job = jobs[part.index]
        kept = dict(zip(job.clients, job.kept, strict=True))
        request = Request(
            kind=job.kind,
            round=state.round,
            role=job.role,
            clients=part.clients,
            kept=tuple(kept[client] for client in part.clients),
            oldest=self.folder.oldest_round(),
            experiment=self.text,
            facts=self.facts,
            half=self.half,
        )
        kind = MessageType.TRAIN if job.kind == "update" else MessageType.EVALUATE
        assert part.node is not None
        deadline = self.experiment.engine.deadline
        return Message(
            messages.write(request, block), part.node, kind, group_id=str(state.round + 1),
            ttl=None if deadline is None else deadline + GRACE_SECONDS,
        )  # fmt: skip

    def _replies(
        self,
        parts: Sequence[Part],
        message: Callable[[Part], Message],
        may_go: Callable[[Part], bool],
    ) -> Iterator[tuple[Part, Message | str]]:
        """Every part with its reply, or with the reason why there is none, as they come."""
        deadline = self.experiment.engine.deadline
        queue = list(reversed(parts))
        waiting: dict[str, tuple[Part, float]] = {}  # message id -> part, time of sending
        pause = POLL[0]
        while queue or waiting:
            while queue and may_go(queue[-1]):
                part = queue.pop()
                if part.node is None:
                    yield part, "its site is not there"
                    continue
                sent = list(self.nodes.grid.push_messages([message(part)]))
                if not sent or not sent[0]:
                    yield part, "its site could not be reached"
                    continue
                waiting[sent[0]] = part, time.monotonic()
            replies = list(self.nodes.grid.pull_messages(list(waiting))) if waiting else []
            pause = POLL[0] if replies else min(2 * pause, POLL[1])
            for reply in replies:
                if answered := waiting.pop(reply.metadata.reply_to_message_id, None):
                    yield answered[0], reply
            for id_, (part, sent_at) in list(waiting.items()):
                if deadline is not None and time.monotonic() - sent_at > deadline:
                    del waiting[id_]
                    yield part, f"no answer within {deadline:g} s (engine.deadline)"
            if waiting and not replies:
                time.sleep(pause)

    def _update(self, job: Job, reply: Message | str, expected: Tensors) -> Outcome:
        try:
            told = _read(Updated, reply)
            assert isinstance(reply, Message)
            tensors = unpack(messages.tensors_of(reply.content), room_for(expected))
            return Outcome(job, told.model_dump(), restored(tensors, expected))
        except _SiteError as error:
            return Outcome(job, error=str(error))
        except ValueError as problem:
            return Outcome(job, error=f"its reply was refused: {problem}")

    def _personal(self, job: Job, answers: dict[Part, Message | str]) -> Outcome:
        """Who has a personal model, and who has none and why; a group need not be complete."""
        accuracy: dict[str, float] = {}
        missing: dict[str, str] = {}
        for part, reply in answers.items():
            asked = [str(client) for client in part.clients]
            try:
                told = _read(Personalized, reply)
                if sorted(told.accuracy) != sorted(asked):
                    raise ValueError("it answers for other clients than it was asked for")
                accuracy |= told.accuracy
                if told.problem:
                    self.nodes.warn(f"client {asked[0]} has no bundle at its site: {told.problem}")
            except ValueError as problem:
                missing |= dict.fromkeys(asked, str(problem))
        return Outcome(job, {"accuracy": accuracy, "missing": missing})


class _SiteError(ValueError):
    """The site says itself what went wrong."""


def _read(kind: type[Any], reply: Message | str) -> Any:
    if isinstance(reply, str):
        raise _SiteError(reply)
    return messages.read(kind, fields_of(reply))


def fields_of(reply: Message) -> dict[str, Any]:
    """The fields of a reply; ValueError where it tells of a failure instead."""
    if reply.has_error():
        raise _SiteError(f"Flower reports: {reply.error.reason or reply.error.code}"[:2000])
    fields = messages.text_of(reply.content)
    if "error" in fields:
        raise _SiteError(messages.read(messages.Failed, fields).error)
    return fields
