"""What workers are asked to do and what they answer, and how both cross a pipe.

A message is a JSON header and, where there are tensors, one safetensors block: nothing that
crosses is ever unpickled.
"""

import json
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

import safetensors.torch as st

from calibre.tensors import Tensors

METHOD = "method"  # the role of the experiment's own method; floors have their own names


@dataclass(frozen=True)
class Job:
    """Train one client for a round, or make personal models for a group of clients."""

    kind: Literal["update", "personalize"]
    clients: tuple[int, ...]
    role: str = METHOD
    kept: tuple[int, ...] = ()  # the round of each client's last accepted update, 0 for none


@dataclass(frozen=True)
class Outcome:
    """A job's answer, or why there is none."""

    job: Job
    report: dict[str, Any] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)
    error: str | None = None
    detail: str = ""  # the traceback, where there was one


def send(connection: Connection, header: dict[str, Any], tensors: bytes = b"") -> None:
    connection.send_bytes(json.dumps({**header, "tensors": bool(tensors)}).encode())
    if tensors:
        connection.send_bytes(tensors)


def receive(connection: Connection) -> tuple[dict[str, Any], Tensors]:
    header = json.loads(connection.recv_bytes())
    return header, st.load(connection.recv_bytes()) if header.pop("tensors") else {}
