"""The round loop: select, train, aggregate, commit; then a personal model for every client."""

import dataclasses
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch

from calibre import __version__
from calibre.data import federation as federations
from calibre.data.federation import Federation
from calibre.data.sources import load
from calibre.engine import events
from calibre.engine.devices import Machine, main_device, plan
from calibre.engine.events import Emit
from calibre.engine.host import Host, method_of
from calibre.engine.jobs import METHOD, Job, Outcome
from calibre.engine.privacy import Mechanism, check, spent
from calibre.engine.process import Worker
from calibre.engine.selection import personal_group, select
from calibre.engine.store import RunFolder
from calibre.engine.workers import InProcess, Processes, Workers, one_thread
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.methods.method import Method, Update
from calibre.personal.card import Preprocessing
from calibre.report import collapse
from calibre.report.metrics import ClientResult
from calibre.report.results import write_results
from calibre.tensors import EmptyMeanError, check_like, grouped


def run(
    experiment: Experiment,
    folder: Path,
    emit: Emit = lambda event: None,
    prepared: Iterable[Worker] = (),
) -> dict[str, Any]:
    """Carry out an experiment, or what is left of it, in a run folder; return its metrics.

    ``prepared`` are worker processes that were started early, while this one was still loading.
    """
    started = time.monotonic()
    devices = plan(experiment.engine, machine := Machine.here(), experiment.training.amp)
    pool = load(experiment.data, progress=_loading(emit))
    federation = federations.build(pool, experiment.federation, experiment.seed)
    device = torch.device(main_device(experiment.engine, machine))
    host = Host(experiment, pool, federation, folder, device)
    host.load(METHOD)
    check(experiment)
    store = RunFolder(folder)
    store.open(experiment)  # only now: what a user may have got wrong leaves no folder behind
    try:
        keep(federation, experiment, folder)
        workers: Workers = Processes(folder, devices, prepared) if devices else InProcess(host)
        try:
            return Run(experiment, store, federation, host, workers, emit, started).finish()
        finally:
            workers.close()
    finally:
        store.close()


class Run:
    """A run in its folder: how far it got, and who does its work."""

    def __init__(
        self,
        experiment: Experiment,
        store: RunFolder,
        federation: Federation,
        host: Host,
        workers: Workers,
        emit: Emit,
        started: float,
        latest: Callable[[Federation], Federation] = lambda federation: federation,
    ) -> None:
        """``latest`` adds clients that came while others trained: they only personalise."""
        self.experiment = experiment
        self.method = cast(Method, experiment.method)
        self.store = store
        self.federation = federation
        self.host = host
        self.workers = workers
        self.started = started
        self.latest = latest
        self.failures = 0
        self.last_failure = "none"
        self.accepted: dict[int, int] = {}  # client -> the round of its last accepted update
        self.state = host.initial_state()
        held = store.load_checkpoint(lambda text: emit({"event": "warning", "text": text}))
        if held is not None:
            self.state, record = held
            self.failures = record["failures"]
            self.accepted = {int(c): round_ for c, round_ in record.get("accepted", {}).items()}
        self.emit = events.to_all(events.to_file(store.events, self.state.round), emit)

    def finish(self) -> dict[str, Any]:
        rounds = self.experiment.training.rounds if self.method.federated else 0
        check(self.experiment)
        clients = len(self.federation.train_ids)
        private = self.experiment.privacy.clip is not None
        promise = {"privacy": spent(self.experiment, clients)} if private else {}
        self.emit(
            {
                "event": "start",
                "version": __version__,
                "versions": {"python": platform.python_version(), "torch": str(torch.__version__)},
                "experiment": self.experiment.hash(),
                "federation": self.federation.hash,
                "method": self.method.label,
                "rounds": rounds,
                "done": self.state.round,
                "clients": clients,
                "novel": len(self.federation.novel_ids),
                "views": dataclasses.asdict(self.host.views),
                "preprocessing": Preprocessing.of(
                    self.host.pool.shape, self.host.normalization
                ).model_dump(),
                **promise,
                "seconds_to_start": time.monotonic() - self.started,
            }
        )
        while self.state.round < rounds:
            self.round()
        began = time.monotonic()
        self.federation = self.latest(self.federation)
        scores = {role: self._personalize(role) for role in (METHOD, *self._floors())}
        scored = sorted(set.intersection(*(set(by_client) for by_client in scores.values())))
        counts = self.federation.counts()
        past = events.read(self.store.events)
        training = sum(event["seconds"] for event in past if event["event"] == "round")
        metrics = write_results(
            self.experiment,
            self.method,
            self.state,
            self.store.path,
            self.federation.hash,
            [self._result(client, int((counts[client] > 0).sum()), scores) for client in scored],
            self.failures,
            collapse.warnings(past),
            seconds=training + time.monotonic() - began,  # of all attempts, after resumes too
            promise=promise,
        )
        self.emit({"event": "end", **metrics})
        return metrics

    def round(self) -> None:
        began = time.monotonic()
        rounds = self.experiment.training.rounds
        per_round = self.experiment.training.clients_per_round
        count = min(per_round, len(self.federation.train_ids))
        chosen = select(
            self.experiment.seed, self.state.round, len(self.federation.train_ids), count
        )
        reports: dict[int, dict[str, float]] = {}
        jobs = [self._job("update", [client]) for client in chosen]
        updates = self._checked(self.workers.run(self.state, jobs), reports)
        private = Mechanism(self.experiment.privacy) if self.experiment.privacy.clip else None
        needed = math.ceil(self.experiment.engine.quorum * count)
        try:
            with one_thread():  # the thread count decides how sums are rounded
                if private is not None:
                    updates = iter([private.mean(self.state, updates)])
                state = self.method.aggregate(self.state, updates)
        except EmptyMeanError:
            raise self._below_quorum(0, needed) from None
        if len(reports) < max(needed, 1):
            raise self._below_quorum(len(reports), needed)
        self.state = state
        self.accepted.update(dict.fromkeys(reports, state.round))
        # the event first: a kill in between repeats the round and drops what was written of it
        self.emit(
            {
                "event": "round",
                "round": state.round,
                "clients": {str(client): report for client, report in reports.items()},
                **({"privacy": private.report()} if private else {}),
                "seconds": time.monotonic() - began,
            }
        )
        if state.round % self.experiment.engine.checkpoint_every == 0 or state.round == rounds:
            record = {"failures": self.failures, "accepted": self.accepted}
            self.store.save_checkpoint(state, record, self.experiment.engine.keep)

    def _job(
        self, kind: Literal["update", "personalize"], clients: Sequence[int], role: str = METHOD
    ) -> Job:
        kept = tuple(self.accepted.get(client, 0) for client in clients)
        return Job(kind, tuple(clients), role, kept)

    def _checked(
        self, outcomes: Iterator[Outcome], reports: dict[int, dict[str, float]]
    ) -> Iterator[Update]:
        """The good updates of a round, one at a time; the others are named and left out."""
        expected = self.method.expected_update(self.state)
        for outcome in outcomes:
            client = outcome.job.clients[0]
            error = outcome.error
            shared = grouped(outcome.tensors)
            if error is None:
                try:
                    for group in sorted(expected.keys() | shared.keys()):
                        check_like(shared.get(group, {}), expected.get(group, {}))
                except ValueError as problem:
                    error = f"its update was refused: {problem}"
            if error is not None:
                self._failed(client, error, outcome.detail)
                continue
            report = outcome.report
            times = {key: report[key] for key in ("began", "seconds")}
            reports[client] = {**report["report"], **times}
            self.emit({"event": "progress", "stage": "train"})
            yield Update(
                client, report["samples"], report["weight"], shared, None, report["report"]
            )

    def _failed(self, client: int, cause: str, detail: str) -> None:
        self.failures += 1
        self.last_failure = f"client {client}: {cause}"
        self.store.clients.discard(client, self.state.round + 1)
        self.emit(
            {
                "event": "failure",
                "round": self.state.round + 1,
                "client": client,
                "cause": cause,
                "detail": detail,
            }
        )
        self.emit({"event": "progress", "stage": "train"})

    def _below_quorum(self, survivors: int, needed: int) -> UserError:
        return UserError(
            f"round {self.state.round + 1} stopped: {survivors} clients succeeded, engine.quorum "
            f"asks for {max(needed, 1)}; the last to fail was {self.last_failure} (all of them: "
            f"'failure' in {self.store.events}); put right what failed, then continue with  "
            f"calibre-fl resume {self.store.path}"
        )

    def _floors(self) -> list[str]:
        return [name for name in self.experiment.personal.floors if name != self.method.name]

    def _personalize(self, role: str) -> dict[int, float]:
        """The accuracy of every client's personal model."""
        state = self.state if role == METHOD else self.host.initial_state(role)
        method = method_of(self.experiment, role)
        ids = range(len(self.federation))
        whole = method.personalization() == "native" or self.experiment.personal.finetune_encoder
        size = personal_group(len(ids), whole)
        groups = [ids[i : i + size] for i in range(0, len(ids), size)]
        jobs = [self._job("personalize", group, role) for group in groups]
        label = method.label
        scores: dict[int, float] = {}
        for outcome in self.workers.run(state, jobs):
            if outcome.error is not None:
                raise UserError(
                    f"making personal models ({label}) failed for clients "
                    f"{outcome.job.clients[0]} to {outcome.job.clients[-1]}: {outcome.error}\n"
                    f"training is kept: continue with  calibre-fl resume {self.store.path}"
                )
            for client, cause in outcome.report.get("missing", {}).items():
                self._failed(int(client), f"making its personal model ({label}): {cause}", "")
            scores.update({int(c): score for c, score in outcome.report["accuracy"].items()})
            self.emit({"event": "progress", "stage": label, "done": len(scores), "of": len(ids)})
        if len(scores) < max(1, math.ceil(self.experiment.engine.quorum * len(ids))):
            raise UserError(
                f"only {len(scores)} of {len(ids)} clients have a personal model ({label}), "
                f"engine.quorum asks for more (see 'failure' in {self.store.events}); training is "
                f"kept: continue with  calibre-fl resume {self.store.path}"
            )
        return scores

    def _result(
        self, client: int, classes: int, scores: dict[str, dict[int, float]]
    ) -> ClientResult:
        held = self.federation.client(client)
        return ClientResult(
            id=client,
            name=held.name,
            novel=held.novel,
            samples=len(held.labelled),
            unlabelled=len(held.unlabelled),
            test_samples=len(held.test),
            classes=classes,
            accuracy=scores[METHOD][client],
            floors={
                name: by_client[client] for name, by_client in scores.items() if name != METHOD
            },
        )


def keep(federation: Federation, experiment: Experiment, folder: Path) -> None:
    """Save the federation with the run; a folder that holds another one is refused."""
    if not (folder / "federation.json").exists():
        federation.save(folder)
    elif federations.load(folder).hash != federation.hash:
        raise UserError(
            f"{folder} holds a run on other data: the images of '{experiment.data.source}' "
            "have changed since; give this run a folder of its own with --out"
        )


def _loading(emit: Emit) -> Callable[[int, int], None]:
    def progress(done: int, of: int) -> None:
        emit({"event": "progress", "stage": "reading images", "done": done, "of": of})

    return progress
