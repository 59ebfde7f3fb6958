"""Workers that are nodes of a Flower grid: a job becomes a message, its reply an outcome.

Everything that comes back is checked here before anybody uses it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Message, MessageType

from calibre.deploy.nodes import POLL, Nodes
from calibre.deploy.records import (
    FederationFacts,
    JobRequest,
    SiteError,
    block_of,
    envelope,
    record_of,
)
from calibre.engine.checkpoints import Checkpoints
from calibre.engine.messages import (
    Assessed,
    Failed,
    Job,
    Outcome,
    Personalised,
    Score,
    Updated,
    pack,
    restored,
    room_for,
    unpack,
)
from calibre.experiment import Experiment
from calibre.methods.method import Method, ServerState
from calibre.personal.pooling import Curve, Features
from calibre.run_folder import RunFolder
from calibre.tensors import Tensors, prefixed

GRACE_SECONDS = 5  # that Flower keeps a message longer than we wait: the deadline is ours to tell


@dataclass(frozen=True)
class JobPart:
    """The part of a job that one node does."""

    index: int  # of the job
    clients: tuple[int, ...]
    node: int | None  # None: nobody there holds these clients


class GridCrew:
    """Sends jobs to the nodes that hold their clients; outcomes come in the order of the jobs."""

    def __init__(
        self,
        nodes: Nodes,
        holder: Callable[[int], int | None],  # client -> the node that holds it
        experiment: Experiment,
        method: Method,
        folder: Path,
        facts: FederationFacts | None,
    ) -> None:
        self.nodes = nodes
        self.holder = holder
        self.experiment = experiment
        self.text = experiment.to_toml()
        self.method = method
        self.checkpoints = Checkpoints(RunFolder(folder).checkpoints)
        self.facts = facts
        self.half = experiment.engine.transfer == "half"

    def run(self, state: ServerState, jobs: Sequence[Job]) -> Iterator[Outcome]:
        self.nodes.look()
        block = pack(prefixed(state.groups), self.half)
        trains = any(job.kind == "update" for job in jobs)  # else the state may be a floor's
        expected = prefixed(self.method.expected_update(state)) if trains else {}
        parts = [part for index, job in enumerate(jobs) for part in self._parts(index, job)]
        by_job: dict[int, list[JobPart]] = {}
        for part in parts:
            by_job.setdefault(part.index, []).append(part)
        ahead = 2 * max(1, len(self.nodes.told))  # jobs, so that few replies wait for earlier ones
        current = [0]
        replies = self._replies(
            parts,
            lambda part: self._message(state, block, jobs, part),
            lambda part: part.index < current[0] + ahead,
        )
        arrived: dict[JobPart, Message | str] = {}
        for index, job in enumerate(jobs):
            current[0] = index
            while any(part not in arrived for part in by_job[index]):
                part, reply = next(replies)
                arrived[part] = reply
            answers = {part: arrived.pop(part) for part in by_job[index]}
            if job.kind == "update":
                yield self._update(job, next(iter(answers.values())), expected)
            elif job.kind == "assess":
                yield self._assessed(job, answers)
            else:
                yield self._personal(job, answers)

    def close(self) -> None:
        pass

    def _parts(self, index: int, job: Job) -> list[JobPart]:
        """A group of clients that several nodes hold is shared out among these."""
        nodes = {client: self.holder(client) for client in job.clients}
        together: dict[int | None, list[int]] = {}
        for client, node in nodes.items():
            together.setdefault(node, []).append(client)
        return [JobPart(index, tuple(clients), node) for node, clients in together.items()]

    def _message(
        self, state: ServerState, block: bytes, jobs: Sequence[Job], part: JobPart
    ) -> Message:
        job = jobs[part.index]
        kept = dict(zip(job.clients, job.kept, strict=True))
        own = {
            "clients": part.clients,
            "kept": tuple(kept[client] for client in part.clients),
            "curves": {c: curves for c, curves in job.curves.items() if c in part.clients},
        }
        request = JobRequest(
            job=job.model_copy(update=own),
            round=state.round,
            training=state.clients,
            oldest=self.checkpoints.oldest_round(),
            experiment=self.text,
            facts=self.facts,
            half=self.half,
        )
        kind = MessageType.TRAIN if job.kind == "update" else MessageType.EVALUATE
        assert part.node is not None
        deadline = self.experiment.engine.deadline
        return Message(
            envelope(request, block), part.node, kind, group_id=str(state.round + 1),
            ttl=None if deadline is None else deadline + GRACE_SECONDS,
        )  # fmt: skip

    def _replies(
        self,
        parts: Sequence[JobPart],
        message: Callable[[JobPart], Message],
        may_go: Callable[[JobPart], bool],
    ) -> Iterator[tuple[JobPart, Message | str]]:
        """Every part with its reply, or with the reason why there is none, as they come."""
        deadline = self.experiment.engine.deadline
        queue = list(reversed(parts))
        waiting: dict[str, tuple[JobPart, float]] = {}  # message id -> part, time of sending
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
            told = record_of(reply, Updated)
            assert isinstance(reply, Message)
            tensors = unpack(block_of(reply.content), room_for(expected))
            return Outcome(job, told, restored(tensors, expected))
        except SiteError as error:
            return Outcome(job, Failed(error=str(error)))
        except ValueError as problem:
            return Outcome(job, Failed(error=f"its reply was refused: {problem}"))

    def _assessed(self, job: Job, answers: dict[JobPart, Message | str]) -> Outcome:
        """What those tell who answer; the others have no say."""
        curves: dict[int, dict[Features, Curve]] = {}
        missing: dict[int, str] = {}
        for part, reply in answers.items():
            try:
                told = record_of(reply, Assessed)
                if not told.curves.keys() <= set(part.clients):
                    raise ValueError("it answers for other clients than it was asked for")
                curves |= told.curves
            except ValueError as problem:
                missing |= dict.fromkeys(part.clients, str(problem))
        return Outcome(job, Assessed(curves=curves, missing=missing))

    def _personal(self, job: Job, answers: dict[JobPart, Message | str]) -> Outcome:
        """Who has a personal model, and who has none and why; a group need not be complete."""
        scores: dict[int, Score] = {}
        missing: dict[int, str] = {}
        for part, reply in answers.items():
            try:
                told = record_of(reply, Personalised)
                if sorted(told.scores) != sorted(part.clients):
                    raise ValueError("it answers for other clients than it was asked for")
                scores |= told.scores
                if told.problem:
                    self.nodes.warn(
                        f"client {part.clients[0]} has no bundle at its site: {told.problem}"
                    )
            except ValueError as problem:
                missing |= dict.fromkeys(part.clients, str(problem))
        return Outcome(job, Personalised(scores=scores, missing=missing))
