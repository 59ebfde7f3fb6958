"""The job that every framework is given: FedAvg with a small CNN on images in memory.

The network is Calibre's ``cnn`` of width 32 with a linear head, written once more because there is
no Calibre in a peer's environment. What :class:`Turns` writes is read by ``benchmarks.peers``.
"""

import json
import os
import socket
import time
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIENTS, CHOSEN, IMAGES, BATCH, RATE, CLASSES, WIDTH = 20, 10, 192, 32, 0.05, 10, 32
PAIRS = 96  # a batch of SimCLR
ROUNDS = 10_000  # more than anybody waits for: the last round measured ends the run
FOLDER = "PEERS_FOLDER"


class Network(nn.Module):
    """Four convolutions and a head; notes when it is first trained, in a file."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, WIDTH, 2 * WIDTH, 2 * WIDTH, 4 * WIDTH]
        layers: list[nn.Module] = []
        for i, (before, after) in enumerate(pairwise(widths)):
            layers += [
                nn.Conv2d(before, after, 3, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
            if i < 3:
                layers.append(nn.MaxPool2d(2))
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        note_training()
        x = x.contiguous(memory_format=torch.channels_last)  # the faster layout, as in Calibre
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.layers(x), 1), 1))  # type: ignore[no-any-return]


def sgd(parameters: Iterable[nn.Parameter], lr: float = RATE) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr, momentum=0.9, weight_decay=5e-4, foreach=True)


@lru_cache(maxsize=CLIENTS)
def client_data(client: int) -> tuple[Tensor, Tensor]:
    """A client's images, ready to be trained on, and their labels."""
    random = torch.Generator().manual_seed(client)
    images = torch.randn(IMAGES, 3, 32, 32, generator=random)
    return images, torch.randint(CLASSES, (IMAGES,), generator=random)


def note_training(when: float | None = None) -> None:
    """When this process first trained: now, or so many seconds after 1970."""
    if not NOTED:
        NOTED.append(when or time.time())
        (folder() / f"trained-{os.getpid()}").write_text(repr(NOTED[0]))


NOTED: list[float] = []


def folder() -> Path:
    return Path(os.environ[FOLDER])


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        port: int = line.getsockname()[1]
        return port


class Turns:
    """After each round, says how long it took and waits until the bare loop has had its turn."""

    def __init__(self, leads: bool = True) -> None:
        self.done = 0
        self.leads = leads
        self.began = time.time()

    def wait(self) -> None:
        seconds = time.time() - self.began
        if self.leads:
            with (folder() / "rounds.jsonl").open("a") as file:
                file.write(json.dumps(seconds) + "\n")
        while not (folder() / f"go-{self.done}").exists():
            time.sleep(0.002)
        self.done += 1
        self.began = time.time()
