"""Who does the client work: this process, or several of one thread each. The bits are the same."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Protocol, get_args

import torch

from calibre.engine.child import Worker
from calibre.engine.host import Host
from calibre.engine.messages import Failed, Job, Outcome, Reply, pack, read, unpack
from calibre.engine.patience import START_SECONDS, Busy, Patience
from calibre.engine.worker import Ready, Setup, State, failure, perform, say
from calibre.errors import UserError
from calibre.files import lacking
from calibre.methods.method import ServerState
from calibre.tensors import prefixed
from calibre.wording import quoted


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
                if lacking(error):  # of this machine, which is the clients' as well as the run's
                    raise
                outcome = Outcome(job, failure(error))
            yield outcome

    def close(self) -> None:
        pass


class Processes:
    """Several worker processes. A dead one is replaced; its client has failed this time.

    One that does not answer, because it was stopped or hangs, is replaced as well, and its job is
    tried once more before it counts as the client's failure.
    """

    def __init__(
        self,
        folder: Path,
        devices: Sequence[str],
        prepared: Iterable[Worker],
        deadline: float | None = None,  # seconds for one client's job; default: by those before
        images: Path | None = None,  # where they lie decoded
    ) -> None:
        self.folder = folder
        self.images = images
        self.devices = devices
        self.patience = Patience(deadline)
        self.busy: dict[int, Busy] = {}  # by worker
        ready = deque(prepared)
        self.workers = [ready.popleft() if ready else Worker() for _ in devices]
        for spare in ready:
            spare.stop()
        for worker, device in zip(self.workers, devices, strict=True):
            self._set_up(worker, device)

    def run(self, state: ServerState, jobs: Sequence[Job]) -> Iterator[Outcome]:
        block = pack(prefixed(state.groups))
        # what an earlier caller left unfinished ends some time, and then counts for nobody
        self.busy = {i: replace(old, index=None) for i, old in self.busy.items()}
        done: dict[int, Outcome] = {}
        ahead = 2 * len(self.workers)  # outcomes waiting for an earlier one: memory stays bounded
        again: list[int] = []  # jobs whose worker hung
        sent = yielded = 0
        while yielded < len(jobs):
            for i, worker in enumerate(self.workers):
                if not worker.ready or i in self.busy:
                    continue
                if again:
                    index, second = again.pop(0), True
                elif sent < min(len(jobs), yielded + ahead):
                    index, second = sent, False
                    sent += 1
                else:
                    continue
                self.busy[i] = Busy(jobs[index], index, second)
                self._send(worker, state, block, jobs[index])
            for i in self._readable():
                outcome = self._read(i, self.busy[i].job if i in self.busy else None)
                if outcome is not None:
                    ended = self.busy.pop(i)
                    self.patience.learn(ended.job, ended.seconds)
                    if ended.index is not None:
                        done[ended.index] = outcome
            for i in self._hanging():
                late = self.busy.pop(i, None)
                if late is None:
                    raise UserError(f"a worker did not start within {START_SECONDS:g} s")
                self._replace(i)
                if late.index is not None and late.second:
                    done[late.index] = Outcome(late.job, self.patience.failure(late))
                elif late.index is not None:
                    again.append(late.index)
            while yielded in done:
                yield done.pop(yielded)
                yielded += 1

    def _set_up(self, worker: Worker, device: str) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # dead: reading from it will say so
            folder = self.folder.resolve()
            say(worker.connection, Setup(folder=folder, device=device, images=self.images))

    def _readable(self) -> list[int]:
        """Workers that have something to say, or none once one of them should have spoken."""
        connections = {id(worker.connection): i for i, worker in enumerate(self.workers)}
        left = [
            self._limit(i) - self._waited(i)
            for i, worker in enumerate(self.workers)
            if i in self.busy or not worker.ready
        ]
        timeout = max(0.0, min(left, default=0.0))
        ready = wait([worker.connection for worker in self.workers], timeout)
        return [connections[id(connection)] for connection in ready]

    def _hanging(self) -> list[int]:
        return [
            i
            for i, worker in enumerate(self.workers)
            if (i in self.busy or not worker.ready)
            and (worker.stuck or self._waited(i) > self._limit(i))
        ]

    def _limit(self, i: int) -> float:
        return self.patience.limit(self.busy[i].job) if i in self.busy else START_SECONDS

    def _waited(self, i: int) -> float:
        since = self.busy[i].since if i in self.busy else self.workers[i].started
        return time.monotonic() - since

    def _send(self, worker: Worker, state: ServerState, block: bytes, job: Job) -> None:
        worker.wait_at_most(self.patience.limit(job))
        try:
            if worker.knows is not state:
                say(worker.connection, State(round=state.round, clients=state.clients))
                worker.connection.send_bytes(block)
                worker.knows = state
            say(worker.connection, job)
        except BlockingIOError:  # it takes no more: stopped before it was asked
            worker.stuck = True
        except (BrokenPipeError, ConnectionResetError):
            pass  # dead: reading from it will say so

    def _read(self, i: int, job: Job | None) -> Outcome | None:
        worker = self.workers[i]
        try:
            text = worker.connection.recv_bytes().decode()
            reply = read(text, Ready, *get_args(Reply))
            block = b"" if isinstance(reply, Ready) else worker.connection.recv_bytes()
        except BlockingIOError:  # it stopped in the middle of a message
            worker.stuck = True
            return None
        except (EOFError, OSError):  # an end in the middle of a message is an OSError
            cause = worker.obituary()
            if not worker.ready:
                raise UserError(f"a worker could not start: {cause}") from None
            self._replace(i)
            return Outcome(job, Failed(error=cause)) if job is not None else None
        if isinstance(reply, Ready):
            worker.ready = True
            return None
        assert job is not None
        assert isinstance(reply, Reply)
        if isinstance(reply, Failed) and reply.lacking:
            raise UserError(
                f"{reply.lacking}; nothing is lost but the time since the last checkpoint: put it "
                f"right, then continue with  calibre-fl resume {quoted(self.folder)}"
            )
        return Outcome(job, reply, unpack(block))

    def _replace(self, i: int) -> None:
        self.workers[i].stop()
        self.workers[i] = Worker()
        self._set_up(self.workers[i], self.devices[i])

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()
