"""A worker process and the pipe to it. Imports no torch, so that workers can start at once."""

import math
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection

PROGRAM = "calibre.engine.worker"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # idle threads that spin take the cores from the others
    # glibc would return every batch's memory to the system and fetch it again, page by page
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
    "MALLOC_MMAP_THRESHOLD_": str(2**28),
}


def in_worker() -> bool:
    """Whether this process is a worker itself."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == PROGRAM


class Worker:
    """Starts on creation; loads its libraries, then waits for its first message."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # -P and our own path: a worker finds the modules that this process finds, and no others
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115, closed with the worker
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", PROGRAM, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
            stderr=self.log,
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.knows: object = None  # the server state it was last sent
        self.ready = False
        self.started = time.monotonic()
        self.stuck = False  # in the middle of a message

    def wait_at_most(self, seconds: float) -> None:
        """For the rest of a message, either way: then it is a BlockingIOError."""
        timeout = struct.pack("ll", max(1, math.ceil(seconds)), 0)
        line = socket.socket(fileno=self.connection.fileno())
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        line.detach()

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()
        self.log.close()

    def obituary(self) -> str:
        """Why the process ended."""
        code = self.process.wait()
        if code == -signal.SIGKILL:
            return "its worker was killed by the system (SIGKILL: perhaps out of memory)"
        if code < 0:
            return f"its worker was ended by {signal.Signals(-code).name}"
        self.log.seek(0)
        last = self.log.read().decode(errors="replace").strip().splitlines()[-1:]
        return f"its worker ended with code {code}: {''.join(last)}"
