"""From a finished run to bundles: every client's own model, measured and ready to be taken away."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch as st
import torch

from calibre.data import federation as federations
from calibre.data.sources import load
from calibre.engine import packing
from calibre.engine.host import Host
from calibre.engine.packing import Scored
from calibre.engine.store import RunFolder
from calibre.errors import UserError
from calibre.methods.method import ServerState
from calibre.personal.assemble import RATE, Making, assemble
from calibre.personal.bundle import Bundle
from calibre.report import runs
from calibre.settings import nearest
from calibre.tensors import Tensors


class Delivery:
    """A finished run, opened to make bundles of its clients. It needs the run's images."""

    def __init__(self, folder: Path) -> None:
        self.run = runs.read(folder)
        experiment = self.run.experiment
        if experiment.engine.runtime == "flower":
            raise UserError(
                f"sites trained the run in {folder}, and their personal models stayed with them: "
                "each site's bundle is in its own state folder; for somebody new, make one with  "
                f"calibre-fl personalize {folder} --data IMAGES --out BUNDLE"
            )
        pool = load(experiment.data)
        federation = federations.load(folder)
        if pool.fingerprint != federation.fingerprint:
            raise UserError(
                f"the images of '{experiment.data.source}' are not those that the run in {folder} "
                "was made with: bundles need the same ones"
            )
        self.federation = federation
        self.host = Host(experiment, pool, federation, folder, torch.device("cpu"))
        self.state = self._state(folder)
        self.results = {client.id: client for client in self.run.clients}

    def _state(self, folder: Path) -> ServerState:
        held = RunFolder(folder).load_checkpoint(lambda text: None)
        if held is not None and held[0].round == self.run.metrics["rounds"]:
            return held[0]
        if self.run.metrics["rounds"]:
            raise UserError(
                f"{folder} lacks the checkpoint of its last round; make it anew with  "
                f"calibre-fl resume {folder}"
            )
        return self.host.initial_state()

    def find(self, wanted: Sequence[str]) -> list[int]:
        """Clients by number or name; all of them when none is named."""
        if not wanted:
            return list(self.results)
        known = {row.name: row.id for row in self.run.clients}
        known |= {str(row.id): row.id for row in self.run.clients}
        for name in wanted:
            if name not in known:
                raise UserError(f"the run has no client '{name}': {nearest(name, known)}")
        return list(dict.fromkeys(known[name] for name in wanted))

    def bundle(self, client: int, rate: float = RATE) -> Bundle:
        """One client's personal model, as the run made and scored it."""
        return assemble(self.making(client, rate))

    def making(self, client: int, rate: float = RATE) -> Making:
        """What its bundle is made from."""
        row = self.results[client]
        own = self._personal_tensors(client)
        scored = Scored(client, row.name, row.novel, row.accuracy, own, row.floors)
        return packing.making(self.host, self.state, scored, facts(self.run), rate)

    def _personal_tensors(self, client: int) -> Tensors:
        file = self.run.folder / "clients" / f"{client:06d}" / "personal.safetensors"
        try:
            return st.load(file.read_bytes())
        except (OSError, safetensors.SafetensorError) as error:
            raise UserError(
                f"the personal model of client {client} cannot be read from {file} ({error}); make "
                f"it anew with  calibre-fl resume {self.run.folder}"
            ) from None


def facts(run: runs.Run) -> dict[str, Any]:
    """What a card tells of the run."""
    return {
        "fairness": {group: run.metrics[group] for group in ("train", "novel")},
        "run": {
            "experiment": run.experiment.hash(),
            "federation": run.federation,
            "seed": run.seed,
            "rounds": run.metrics["rounds"],
        },
        # where data lay on the machine that trained is nobody's business elsewhere
        "settings": run.experiment.model_dump(mode="json", exclude={"data": {"root"}}),
    }
