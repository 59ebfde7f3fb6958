"""Who does the client work: this process, or several of one thread each. The bits are the same."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Protocol, get_args

import torch

from calibre.engine.child import Worker
from calibre.engine.host import Host
from calibre.engine.messages import Failed, Job, Outcome, Reply, pack, read, unpack
from calibre.engine.worker import Ready, Setup, State, failure, perform, say
from calibre.errors import UserError
from calibre.methods.method import ServerState
from calibre.tensors import prefixed


class Crew(Protocol):
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
                    outcome = Outcome(job, *perform(self.host, state, job))
            except Exception as error:
                outcome = Outcome(job, failure(error))
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
        block = pack(prefixed(state.groups))
        busy: dict[int, int] = {}  # worker -> index of its job
        done: dict[int, Outcome] = {}
        ahead = 2 * len(self.workers)  # outcomes waiting for an earlier one: memory stays bounded
        sent = yielded = 0
        while yielded < len(jobs):
            for i, worker in enumerate(self.workers):
                if worker.ready and i not in busy and sent < min(len(jobs), yielded + ahead):
                    busy[i] = sent
                    self._send(worker, state, block, jobs[sent])
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
            say(worker.connection, Setup(folder=self.folder.resolve(), device=device))

    def _readable(self) -> list[int]:
        connections = {id(worker.connection): i for i, worker in enumerate(self.workers)}
        ready = wait([worker.connection for worker in self.workers])
        return [connections[id(connection)] for connection in ready]

    def _send(self, worker: Worker, state: ServerState, block: bytes, job: Job) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # dead: reading from it will say so
            if worker.knows is not state:
                say(worker.connection, State(round=state.round, clients=state.clients))
                worker.connection.send_bytes(block)
                worker.knows = state
            say(worker.connection, job)

    def _read(self, i: int, job: Job | None) -> Outcome | None:
        worker = self.workers[i]
        try:
            text = worker.connection.recv_bytes().decode()
            reply = read(text, Ready, *get_args(Reply))
            block = b"" if isinstance(reply, Ready) else worker.connection.recv_bytes()
        except (EOFError, OSError):  # an end in the middle of a message is an OSError
            cause = worker.obituary()
            if not worker.ready:
                raise UserError(f"a worker could not start: {cause}") from None
            worker.stop()
            self.workers[i] = Worker()
            self._set_up(self.workers[i], self.devices[i])
            return Outcome(job, Failed(error=cause)) if job is not None else None
        if isinstance(reply, Ready):
            worker.ready = True
            return None
        assert job is not None
        assert isinstance(reply, Reply)
        return Outcome(job, reply, unpack(block))

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()
