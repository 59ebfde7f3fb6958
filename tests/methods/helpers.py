"""A method at work on a handful of digits, without an engine."""

from pathlib import Path

import pytest
import torch

from calibre.data import federation as federations
from calibre.data.sources import load
from calibre.engine import rounds
from calibre.engine.host import Host, Keep
from calibre.experiment import Experiment


def host(experiment: Experiment, folder: Path | Keep) -> Host:
    """In a folder, or with what the clients of another host keep."""
    pool = load(experiment.data)
    federation = federations.build(pool, experiment.federation, experiment.seed)
    return Host(experiment, pool, federation, folder, torch.device("cpu"))


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[name].double(), other[name].double(), atol=1e-6) for name in one
    )


def results(folder: Path) -> dict[str, bytes]:
    """Everything that a run came to: model, scores and every client's personal model."""
    files = [folder / "model.safetensors", folder / "clients.csv"]
    files += sorted(folder.glob("clients/*/personal.safetensors"))
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def stopped_and_whole(experiment, folder):
    """The results of a run that was stopped after its second round, and of an undisturbed one."""

    def stop(event):
        if event.event == "round" and event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rounds.run(experiment, folder / "stopped", stop)
    rounds.run(experiment, folder / "stopped")
    metrics = rounds.run(experiment, folder / "whole")
    assert metrics.failures == 0
    assert metrics.rounds == experiment.training.rounds
    return results(folder / "stopped"), results(folder / "whole")


def parts(tensors):
    return {name.partition(".")[0] for name in tensors}
