"""A method at work on a handful of digits, without an engine."""

from pathlib import Path

import torch

from calibre.data import federation as federations
from calibre.data.sources import load
from calibre.engine.host import Host
from calibre.experiment import Experiment


def host(experiment: Experiment, folder: Path) -> Host:
    pool = load(experiment.data)
    federation = federations.build(pool, experiment.federation, experiment.seed)
    return Host(experiment, pool, federation, folder, torch.device("cpu"))


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[name].double(), other[name].double(), atol=1e-6) for name in one
    )
