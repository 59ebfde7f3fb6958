"""FedRep at whose sites things go wrong in known rounds: real processes load it by name."""

import os
import time
from pathlib import Path
from typing import ClassVar

import torch

from calibre.methods.fedrep import FedRep

RAISES, NAN, SHAPE, SLOW = 0, 1, 2, 3  # after how many rounds, all of them at client 1


class Faulty(FedRep):
    """``signs`` is a folder where clients leave a file when they begin a round."""

    title: ClassVar[str] = "Faulty"
    name: str = "tests.deploy.faulty:Faulty"
    signs: str = ""
    slow: float = 0.0  # seconds
    sound: bool = False  # nothing goes wrong by itself

    def local_update(self, server, personal, site):
        Path(self.signs, f"{site.client}-{server.round}-{os.getpid()}").touch()
        update = super().local_update(server, personal, site)
        if self.sound or site.client != 1:
            return update
        model = update.shared["model"]
        name = next(iter(model))
        if server.round == RAISES:
            raise RuntimeError("the disk of bert is full")
        if server.round == NAN:
            model[name] = torch.full_like(model[name], float("nan"))
        if server.round == SHAPE:
            model[name] = torch.zeros(7, 7)
        if server.round == SLOW:
            time.sleep(self.slow)
        return update
