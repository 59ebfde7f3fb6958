"""FedRep at whose sites things go wrong in known rounds: real processes load it by name."""

import os
import time
from pathlib import Path
from typing import ClassVar

import torch

from calibre.methods.fedrep import FedRep


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
        if self.sound:
            return update
        model = update.shared["model"]
        name = next(iter(model))
        match site.client, server.round:  # after so many rounds
            case (1, 0):
                raise RuntimeError("the disk of bert is full")
            case (2, 0):
                model[name] = torch.full_like(model[name], float("nan"))
            case (1, 1):
                model[name] = torch.zeros(7, 7)
            case (1, 2):
                time.sleep(self.slow)
        return update
