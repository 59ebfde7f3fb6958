"""Which workers to start, and on what."""

from dataclasses import dataclass

from calibre.cores import usable_cores
from calibre.errors import UserError
from calibre.sections import EngineSettings


@dataclass(frozen=True)
class Machine:
    """What this computer offers."""

    cores: int
    gpus: int
    mps: bool

    @staticmethod
    def here() -> "Machine":
        import torch

        return Machine(
            cores=usable_cores(),
            gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
            mps=torch.backends.mps.is_available(),
        )


def plan(settings: EngineSettings, machine: Machine, amp: bool = False) -> list[str]:
    """The device of each worker; an empty list means: in this process, on :func:`main_device`.

    CPU workers have one thread each, so there are as many as cores; a GPU is kept busy by one.
    """
    kind = choose(settings, machine)
    if amp and kind != "cuda":
        raise UserError(f"training.amp needs engine.device = 'cuda'; the device here is '{kind}'")
    if settings.workers == 0:
        return []
    if kind == "cuda":
        count = settings.workers or machine.gpus
        return [f"cuda:{i % machine.gpus}" for i in range(count)]
    return [kind] * (settings.workers or (1 if kind == "mps" else machine.cores))


def main_device(settings: EngineSettings, machine: Machine) -> str:
    """Where this process works when there are no workers."""
    kind = choose(settings, machine)
    return "cuda:0" if kind == "cuda" else kind


def choose(settings: EngineSettings, machine: Machine) -> str:
    if settings.device == "auto":
        return "cuda" if machine.gpus else "mps" if machine.mps else "cpu"
    if settings.device == "cuda" and not machine.gpus:
        raise UserError("engine.device = 'cuda', but torch sees no GPU here; use 'cpu' or 'auto'")
    if settings.device == "mps" and not machine.mps:
        raise UserError("engine.device = 'mps', but there is none here; use 'cpu' or 'auto'")
    return settings.device
