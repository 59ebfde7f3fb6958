"""Who does the client work: this process, or several of one thread each. The bits are the same."""

import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Protocol

import safetensors.torch as st
import torch

from calibre.engine.host import Host
from calibre.engine.jobs import Job, Outcome, receive, send
from calibre.engine.process import Worker
from calibre.engine.worker import describe, perform
from calibre.errors import UserError
from calibre.methods.method import ServerState
from calibre.tensors import prefixed


class Workers(Protocol):
    def run(self, state: ServerState, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Carry out jobs on a server state; outcomes come in the order of the jobs."""
        ...

    def close(self) -> None: ...


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, as workers do: more would round sums differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class InProcess:
    """All work in this process: for notebooks, debugging and tests."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def run(self, state: ServerState, jobs: Sequence[Job]) -> Iterator[Outcome]:
        for job in jobs:
            try:
                with one_thread():
                    done = perform(self.host, state, job.kind, job.role, list(job.clients))
                outcome = Outcome(job, *done)
            except Exception as error:
                outcome = Outcome(job, error=describe(error), detail=traceback.format_exc())
            yield outcome

    def close(self) -> None:
        pass


class Processes:
    """Several worker processes. A dead one is replaced; its client has failed this time."""

    def __init__(self, folder: Path, devices: Sequence[str], prepared: Iterable[Worker]) -> None:
        self.folder = folder
        self.devices = devices
        ready = deque(prepared)
        self.workers = [ready.popleft() if ready else Worker() for _ in devices]
        for spare in ready:
            spare.stop()
        for worker, device in zip(self.workers, devices, strict=True):
            self._set_up(worker, device)

    def run(self, state: ServerState, jobs: Sequence[Job]) -> Iterator[Outcome]:
        packed = st.save(prefixed(state.groups))
        busy: dict[int, int] = {}  # worker -> index of its job
        done: dict[int, Outcome] = {}
        ahead = 2 * len(self.workers)  # outcomes waiting for an earlier one: memory stays bounded
        sent = yielded = 0
        while yielded < len(jobs):
            for i, worker in enumerate(self.workers):
                if worker.ready and i not in busy and sent < min(len(jobs), yielded + ahead):
                    busy[i] = sent
                    self._send(worker, state, packed, jobs[sent])
                    sent += 1
            for i in self._readable():
                outcome = self._read(i, jobs[busy[i]] if i in busy else None)
                if outcome is not None:
                    done[busy.pop(i)] = outcome
            while yielded in done:
                yield done.pop(yielded)
                yielded += 1

    def _set_up(self, worker: Worker, device: str) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # dead: reading from it will say so
            send(worker.connection, {"folder": str(self.folder.resolve()), "device": device})

    def _readable(self) -> list[int]:
        connections = {id(worker.connection): i for i, worker in enumerate(self.workers)}
        ready = wait([worker.connection for worker in self.workers])
        return [connections[id(connection)] for connection in ready]

    def _send(self, worker: Worker, state: ServerState, packed: bytes, job: Job) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # dead: reading from it will say so
            if worker.knows is not state:
                send(worker.connection, {"round": state.round}, packed)
                worker.knows = state
            send(
                worker.connection,
                {"kind": job.kind, "role": job.role, "clients": list(job.clients)},
            )

    def _read(self, i: int, job: Job | None) -> Outcome | None:
        worker = self.workers[i]
        try:
            answer, tensors = receive(worker.connection)
        except (EOFError, OSError):  # an end in the middle of a message is an OSError
            cause = worker.obituary()
            if not worker.ready:
                raise UserError(f"a worker could not start: {cause}") from None
            worker.stop()
            self.workers[i] = Worker()
            self._set_up(self.workers[i], self.devices[i])
            return Outcome(job, error=cause) if job is not None else None
        if answer.pop("ready", False):
            worker.ready = True
            return None
        assert job is not None
        error, detail = answer.pop("error", None), answer.pop("detail", "")
        return Outcome(job, answer, tensors, error, detail)

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()
