"""The round loop: select, train, aggregate, commit; then a personal model for every client."""

import dataclasses
import json
import math
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from calibre import __version__
from calibre.data.datasheet import dealt_anew
from calibre.data.federation import Federation, SharedImages
from calibre.data.sources import load
from calibre.engine.beginning import keep, note_purposes, opened, shared_in
from calibre.engine.checkpoints import Checkpoint, Checkpoints
from calibre.engine.child import Worker
from calibre.engine.client_store import ClientStore
from calibre.engine.crew import Crew, InProcess, Processes
from calibre.engine.devices import Machine, main_device, plan
from calibre.engine.gathering import Gathering
from calibre.engine.host import Host
from calibre.engine.ledger import Ledger
from calibre.engine.messages import METHOD
from calibre.engine.personal_stage import PersonalStage, job
from calibre.engine.plausible import check_state
from calibre.engine.privacy import spent
from calibre.engine.selection import select
from calibre.errors import UserError
from calibre.experiment import RESULTS, Experiment
from calibre.files import sealed, write_atomic
from calibre.freed import trim
from calibre.personal.card import Preprocessing
from calibre.report import collapse, events
from calibre.report.events import (
    ClientFailed,
    Emit,
    Ended,
    Progressed,
    RoundDone,
    Started,
    Warned,
    silent,
)
from calibre.report.metrics import Metrics, Promise
from calibre.report.results import write_results
from calibre.run_folder import RunFolder
from calibre.tensors import EmptyMeanError
from calibre.wording import quoted


def run(
    experiment: Experiment,
    folder: Path,
    emit: Emit = silent,
    prepared: Iterable[Worker] = (),
    shared: SharedImages | None = None,
) -> Metrics:
    """Carry out an experiment, or what is left of it, in a run folder; return its metrics.

    ``prepared`` are worker processes that were started early, while this one was still loading;
    ``shared`` are the experiment's images and who holds them, where they are known already.
    """
    started = time.monotonic()
    devices = plan(experiment.engine, machine := Machine.here(), experiment.training.amp)
    if shared is None:
        pool = load(experiment.data, progress=_loading(emit))
        shared = shared_in(folder, experiment, pool)
    pool, federation = shared
    for note in dealt_anew(pool, experiment.federation):
        emit(Warned(text=note))
    device = torch.device(main_device(experiment.engine, machine))
    host = Host(experiment, pool, federation, folder, device)
    host.load(METHOD)
    with opened(experiment, folder) as store:
        host.federation = federation = keep(federation, experiment, store)
        note_purposes(pool, federation, experiment, store)
        place = pool.place
        del shared, pool  # of many clients large, and no longer needed
        trim()
        crew: Crew = (
            Processes(folder, devices, prepared, experiment.engine.deadline, place)
            if devices
            else InProcess(host)
        )
        try:
            return OngoingRun(experiment, store, federation, host, crew, emit, started).finish()
        finally:
            crew.close()


class OngoingRun:
    """A run in its folder: how far it got, and who does its work."""

    def __init__(
        self,
        experiment: Experiment,
        store: RunFolder,
        federation: Federation,
        host: Host,
        crew: Crew,
        emit: Emit,
        started: float,
        latest: Callable[[Federation], Federation] = lambda federation: federation,
    ) -> None:
        """``latest`` adds clients that came while others trained: they only personalise."""
        self.experiment = experiment
        self.method = experiment.method
        self.store = store
        self.federation = federation
        self.host = host
        self.crew = crew
        self.started = started
        self.latest = latest
        self.failures = 0
        self.last_failure = "none"
        self.kept: dict[int, int] = {}  # client -> the round after which it last kept something
        self.state = host.initial_state()
        self.checkpoints = Checkpoints(store.checkpoints, experiment.training_hash())
        self.clients = ClientStore(store.clients, experiment.training_hash())
        self._go_on(emit)
        parent = experiment.parent
        if parent is not None and self.state.round < parent.round:
            raise UserError(
                f"this experiment goes on from round {parent.round} of the run "
                f"{parent.folder or parent.experiment}, whose state is not in {store.path}: make "
                "it with  calibre-fl update RUN, or leave [parent] out to train from the start"
            )
        private = experiment.privacy.clip is not None
        self.ledger = Ledger(store.sent, self.state.round) if private else None
        self.emit = events.to_all(events.to_file(store.events, self.state.round), emit)

    def _go_on(self, emit: Emit) -> None:
        """From the newest checkpoint that is whole, with all that its clients kept."""
        problems: list[str] = []
        for held in self.checkpoints.whole(problems.append):
            at_sites = self.experiment.engine.runtime == "flower"  # each looks after its own
            if not at_sites and (problem := self.clients.problem(held.kept, self._name)):
                problems.append(problem)
                continue
            self.state, self.failures, self.kept = held.state, held.failures, dict(held.kept)
            for problem in problems:
                text = f"{problem}; going on after round {self.state.round}"
                emit(Warned(text=text))
            return
        if problems:
            raise UserError(
                f"the run in {self.store.path} cannot go on: {'; '.join(problems)}. Restore these "
                "files from a copy, or begin anew in another folder with --out"
            )

    def finish(self) -> Metrics:
        rounds = self.experiment.training.rounds if self.method.federated else 0
        clients = len(self.federation.train_ids)
        self._begin(rounds, clients)
        while self.state.round < rounds:
            self.round()
        return self._personalise(clients)

    def _begin(self, rounds: int, clients: int) -> None:
        """Note what prepares an image, and tell what is about to be run."""
        preprocessing = Preprocessing.of(self.host.pool.shape, self.host.normalization)
        noted = sealed(preprocessing.model_dump(mode="json"))
        write_atomic(self.store.preprocessing, json.dumps(noted, indent=2) + "\n")
        self.emit(
            Started(
                version=__version__,
                versions={
                    "python": platform.python_version(),
                    "torch": str(torch.__version__),
                    "results": str(RESULTS),
                },
                experiment=self.experiment.hash(),
                federation=self.federation.hash,
                method=self.method.label,
                rounds=rounds,
                done=self.state.round,
                clients=clients,
                novel=len(self.federation.novel_ids),
                views=dataclasses.asdict(self.host.views),
                privacy=self._promise(clients),
                seconds_to_start=time.monotonic() - self.started,
            )
        )

    def round(self) -> None:
        began = time.monotonic()
        rounds = self.experiment.training.rounds
        per_round = self.experiment.training.clients_per_round
        count = min(per_round, len(self.federation.train_ids))
        chosen = select(
            self.experiment.seed, self.state.round, len(self.federation.train_ids), count
        )
        self._leaves()
        jobs = [job("update", [client], self.kept) for client in chosen]
        gathering = Gathering(self.experiment, self.federation, self.state, self._failed, self.emit)
        needed = max(1, math.ceil(self.experiment.engine.quorum * count))
        try:
            state = gathering.aggregate(self.crew.run(self.state, jobs))
        except EmptyMeanError:
            raise self._below_quorum(0, needed) from None
        reports = gathering.reports
        if len(reports) < needed:
            raise self._below_quorum(len(reports), needed)
        try:
            check_state(state, self.state)
        except ValueError as problem:
            raise self._implausible(problem, sorted(reports)) from None
        self.state = state
        self.kept.update(dict.fromkeys(gathering.keepers, state.round))
        # the event first: a kill in between repeats the round and drops what was written of it
        self.emit(
            RoundDone(
                round=state.round,
                clients=reports,
                privacy=gathering.private.report() if gathering.private else None,
                robust=gathering.defence.report() if gathering.defence else None,
                seconds=time.monotonic() - began,
            )
        )
        if state.round % self.experiment.engine.checkpoint_every == 0 or state.round == rounds:
            self.checkpoints.save(
                Checkpoint(state, self.failures, self.kept), self.experiment.engine.keep
            )

    def _personalise(self, clients: int) -> Metrics:
        """A personal model for every client, and the results of all that was done."""
        began = time.monotonic()
        self._leaves()
        self.federation = self.latest(self.federation)
        stage = PersonalStage(
            self.experiment, self.federation, self.host, self.crew, self.state, self.kept,
            self._failed, self.emit, self.store,
        )  # fmt: skip
        rows, choice = stage.results()
        past = events.read(self.store.events)
        rounds_done = [event for event in past if isinstance(event, RoundDone)]
        metrics = write_results(
            self.experiment,
            self.state,
            self.store,
            self.federation.hash,
            rows,
            self.failures,
            collapse.warnings(past, self._name),
            # of all attempts, after resumes too
            seconds=sum(done.seconds for done in rounds_done) + time.monotonic() - began,
            images=sum(done.images for done in rounds_done),
            promise=self._promise(clients),
            choice=choice,
        )
        self.emit(Ended(metrics=metrics))
        return metrics

    def _leaves(self) -> None:
        """Enter a noised state before it is sent to anybody, or published."""
        if self.ledger is not None:
            self.ledger.enter(self.state)

    def _promise(self, clients: int) -> Promise | None:
        """What privacy costs by the end of the run, by all that was sent so far."""
        if self.ledger is None:
            return None
        return spent(self.experiment, clients, self.ledger.times(), done=self.state.round)

    def _failed(self, client: int, cause: str, detail: str) -> None:
        self.failures += 1
        name = self._name(client)
        self.last_failure = f"{name}: {cause}"
        self.clients.discard(client, self.state.round + 1)
        round_ = self.state.round + 1
        self.emit(ClientFailed(round=round_, client=client, name=name, cause=cause, detail=detail))
        self.emit(Progressed(stage="train"))

    def _name(self, client: int) -> str:
        return self.federation.client(client).name

    def _below_quorum(self, survivors: int, needed: int) -> UserError:
        return UserError(
            f"round {self.state.round + 1} stopped: {survivors} clients succeeded, engine.quorum "
            f"asks for {needed}; the last to fail was {self.last_failure} (all of them: "
            f"'failure' in {self.store.events}); put right what failed, then continue with  "
            f"calibre-fl resume {quoted(self.store.path)}"
        )

    def _implausible(self, problem: ValueError, clients: list[int]) -> UserError:
        return UserError(
            f"round {self.state.round + 1} was not kept: in the server's new state {problem}. "
            f"{', '.join(map(self._name, clients))} took part. Where earlier rounds are already "
            "hurt, take the run back with  "
            f"calibre-fl rewind {quoted(self.store.path)} --round N; if training itself does this, "
            "lower its learning rate; [robust] bounds what one client can do"
        )


def _loading(emit: Emit) -> Callable[[int, int], None]:
    def progress(done: int, of: int) -> None:
        emit(Progressed(stage="reading images", done=done, of=of))

    return progress
