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
from typing import Any

import safetensors.torch as st
import torch

from calibre import experiment as experiments
from calibre.data import federation as federations
from calibre.data.sources import load
from calibre.engine.host import Host
from calibre.engine.jobs import receive, send
from calibre.methods.method import ServerState
from calibre.tensors import Tensors, grouped, prefixed


def perform(
    host: Host, state: ServerState, kind: str, role: str, clients: list[int]
) -> tuple[dict[str, Any], Tensors]:
    """Carry out one job: what to tell, and the tensors that leave the client."""
    began = time.time()
    if kind == "update":
        update = host.update(state, clients[0])
        report = {"samples": update.samples, "weight": update.weight, "report": update.report}
        report |= {"began": began, "seconds": time.time() - began}
        return report, prefixed(update.shared)
    models = host.personalize(state, role, clients)
    return {"accuracy": {str(model.client): model.accuracy for model in models}}, {}


def serve(connection: Connection) -> None:
    setup, _ = receive(connection)
    folder = Path(setup["folder"])
    experiment = experiments.read(folder / "experiment.toml")
    host = Host(
        experiment,
        load(experiment.data),
        federations.load(folder),
        folder,
        torch.device(setup["device"]),
    )
    send(connection, {"ready": True})
    state = ServerState(0, {})
    while True:
        request, tensors = receive(connection)
        if "round" in request:
            state = ServerState(request["round"], grouped(tensors))
            continue
        try:
            answer, shared = perform(host, state, **request)
            send(connection, answer, st.save(shared))
        except Exception as error:
            send(connection, {"error": describe(error), "detail": traceback.format_exc()})


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


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
