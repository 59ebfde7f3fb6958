"""A worker process: ``python -m calibre.engine.worker FD``, spoken to over an inherited socket.

It has one compute thread, so that a client's bits do not depend on how many workers there are.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from calibre import experiment as experiments
from calibre.data import cache
from calibre.data import federation as federations
from calibre.data.sources import load
from calibre.engine.host import Host
from calibre.engine.messages import (
    LONGEST_DETAIL,
    Assessed,
    Failed,
    Job,
    Personalised,
    Reply,
    Score,
    Updated,
    pack,
    read,
    unpack,
    write,
)
from calibre.files import lacking
from calibre.freed import trim
from calibre.methods.method import ServerState
from calibre.personal.model import Personal
from calibre.run_folder import RunFolder
from calibre.sections import Count, Positive
from calibre.settings import Settings
from calibre.tensors import Tensors, grouped, prefixed


class Setup(Settings):
    """What a worker is for."""

    folder: Path
    device: str
    images: Path | None  # where they lie decoded: a worker does not look for their source again


class State(Settings):
    """That the server's state follows, as a block."""

    round: Count
    clients: Positive


class Ready(Settings):
    """That a worker has loaded all it needs."""


def perform(host: Host, state: ServerState, job: Job) -> tuple[Reply, Tensors]:
    """Carry out one job: what to tell, and the tensors that leave the client."""
    began = time.time()
    if job.kind == "update":
        update = host.update(state, job.clients[0])
        return Updated.of(update, began, time.time() - began), prefixed(update.shared)
    if job.kind == "assess":
        return Assessed(curves=host.assess(state, job.role, job.clients)), {}
    models = host.personalize(state, job.role, job.clients, job.choice, job.curves)
    return Personalised(scores={model.client: score_of(model) for model in models}), {}


def score_of(model: Personal) -> Score:
    return Score(correct=model.correct, images=model.images)


def failure(error: Exception) -> Failed:
    """What went wrong, in one line and in full; an endless text is cut in its middle."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    detail = traceback.format_exc()
    if len(detail) > LONGEST_DETAIL:
        half = LONGEST_DETAIL // 2 - 10
        detail = f"{detail[:half]}\n...\n{detail[-half:]}"
    return Failed(error=said[:2000], detail=detail, lacking=(lacking(error) or "")[:2000])


def serve(connection: Connection) -> None:
    setup = read(connection.recv_bytes().decode(), Setup)
    experiment = experiments.read(RunFolder(setup.folder).experiment)
    host = Host(
        experiment,
        (setup.images and cache.read(setup.images)) or load(experiment.data),
        federations.load(setup.folder),
        setup.folder,
        torch.device(setup.device),
    )
    say(connection, Ready())
    state = ServerState(0, {})
    while True:
        request = read(connection.recv_bytes().decode(), State, Job)
        if isinstance(request, State):
            groups = grouped(unpack(connection.recv_bytes()))
            state = ServerState(request.round, groups, request.clients)
            continue
        assert isinstance(request, Job)
        try:
            reply, shared = perform(host, state, request)
        except Exception as error:
            reply, shared = failure(error), {}
        say(connection, reply)
        connection.send_bytes(pack(shared))
        if request.kind != "update":
            trim()  # a group of heads takes much memory, and the next one not the same


def say(connection: Connection, record: Settings) -> None:
    connection.send_bytes(write(record).encode())


def leave_with(parent: int) -> None:
    """End when the parent has gone, even in the middle of a job."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=leave_with, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # parent is done
        serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
