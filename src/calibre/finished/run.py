"""A finished run, opened: its images, who holds them, its model and its clients' own."""

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from calibre.data import augment
from calibre.data import federation as federations
from calibre.data.federation import Federation
from calibre.data.pool import Pool
from calibre.data.sources import load
from calibre.engine.checkpoints import Checkpoint, Checkpoints
from calibre.engine.client_store import ClientStore
from calibre.engine.host import Host
from calibre.engine.messages import METHOD
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import unsealed
from calibre.finished import packing
from calibre.finished.packing import Scored
from calibre.methods.method import ServerState
from calibre.personal.assemble import assemble
from calibre.personal.bundle import Bundle
from calibre.personal.card import Preprocessing
from calibre.personal.making import RATE, Making
from calibre.personal.model import Kept, Prepared, held_tensors
from calibre.personal.pooling import HeadChoice
from calibre.registry import DATA_SETS
from calibre.report import runs
from calibre.report.metrics import GROUPS, Summary
from calibre.report.naming import find_clients, folder_names
from calibre.run_folder import RunFolder
from calibre.settings import validate
from calibre.tensors import Tensors, check_like, digest, read_file
from calibre.wording import quoted


def check_there(experiment: Experiment, folder: Path) -> None:
    """Whether the data of a run still lies where it lay."""
    source = experiment.data.source
    own = source not in DATA_SETS and ":" not in source
    if own and not os.path.exists(os.path.expanduser(source)):
        raise UserError(
            f"{source}: there is no such folder or file any more; if the images of the run in "
            f"{folder} were moved:  calibre-fl resume {quoted(folder)} --data NEWPLACE"
        )


class FinishedRun:
    """Everything is read when it is first asked for: much needs no image at all."""

    def __init__(self, folder: Path | runs.Run) -> None:
        self.run = folder if isinstance(folder, runs.Run) else runs.read(folder)
        self.files = RunFolder(self.run.folder)
        self.experiment = self.run.experiment
        self.results = {client.id: client for client in self.run.clients}

    @cached_property
    def federation(self) -> Federation:
        return federations.load(self.files.path)

    @cached_property
    def pool(self) -> Pool:
        """The run's images, seen to be the same."""
        if self.experiment.engine.runtime == "flower":
            raise UserError(
                f"sites trained the run in {self.files.path}, and their images and personal models "
                "stayed with them: each site's bundle is in its own state folder; for somebody "
                f"new, make one with  calibre-fl personalize {quoted(self.files.path)} "
                "--data IMAGES --out BUNDLE"
            )
        check_there(self.experiment, self.files.path)
        pool = load(self.experiment.data)
        if pool.fingerprint != self.federation.fingerprint:
            raise UserError(
                f"the images of '{self.experiment.data.source}' have changed since the run in "
                f"{self.files.path}: this needs the same ones"
            )
        return pool

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """As the run noted it; older runs did not, and need their images again."""
        if self.files.preprocessing.is_file():
            try:
                noted = unsealed(self.files.preprocessing.read_bytes())
                preprocessing: Preprocessing = validate(Preprocessing, noted)
                return preprocessing
            except (OSError, ValueError) as error:
                raise self._damaged(self.files.preprocessing, error) from None
        images = self.pool.images[self.pool.train.start : self.pool.train.stop]
        return Preprocessing.of(self.pool.shape, augment.statistics(images))

    @cached_property
    def host(self) -> Host:
        """Works on the CPU, where bundles are measured."""
        cpu = torch.device("cpu")
        return Host(self.experiment, self.pool, self.federation, self.files.path, cpu)

    @cached_property
    def last_checkpoint(self) -> Checkpoint | None:
        """After the last round; None of a run without rounds. It needs no image."""
        rounds = self.run.metrics.rounds
        if rounds == 0:
            return None
        checkpoints = Checkpoints(self.files.checkpoints, self.experiment.training_hash())
        problems: list[str] = []
        held = next(checkpoints.whole(problems.append), None)
        if held is None or held.state.round != rounds:
            why = f" ({problems[0]})" if problems else ""
            raise UserError(
                f"{self.files.path} lacks the checkpoint of its last round{why}; make it anew with "
                f" calibre-fl resume {quoted(self.files.path)}"
            )
        return held

    @cached_property
    def _last(self) -> Checkpoint:
        held, start = self.last_checkpoint, self.host.initial_state()
        if held is None:
            return Checkpoint(start)
        try:
            check_like(held.state.groups.get("model", {}), start.groups.get("model", {}))
        except ValueError as problem:
            raise UserError(
                f"the last checkpoint in {self.files.path} is not of the experiment there: "
                f"{problem}"
            ) from None
        return held

    @property
    def state(self) -> ServerState:
        """The server's last state."""
        return self._last.state

    def prepared(self, client: int) -> Prepared:
        """A client as the run's end found it, with all that it kept."""
        self._check_kept(client)
        return self.host.prepared(METHOD, self.state, client)

    def _check_kept(self, client: int) -> None:
        """Without it, the client would be taken for one that never trained."""
        kept = {one: round_ for one, round_ in self._last.kept.items() if one == client}
        if problem := self.clients.problem(kept):
            raise UserError(
                f"{problem}; calibre-fl resume {quoted(self.files.path)}  tells what can be done"
            )

    @cached_property
    def model(self) -> Tensors:
        """The server's model, which needs no image."""
        try:
            found = read_file(self.files.model)
        except (OSError, ValueError) as error:
            raise self._damaged(self.files.model, error) from None
        if self.run.metrics.model not in ("", digest(found)):
            raise self._damaged(self.files.model, "it is another run's")
        return found

    def personal(self, client: int) -> Tensors:
        """What of a client's personal model is its own."""
        try:
            found = self.clients.load_personal(client)
        except (OSError, ValueError) as error:
            raise self._damaged(self.clients.personal_file(client), error) from None
        if found is None:
            raise self._damaged(self.clients.personal_file(client), "it is not there")
        return found

    @cached_property
    def clients(self) -> ClientStore:
        """What they kept."""
        return ClientStore(self.files.clients, self.experiment.training_hash())

    def _damaged(self, file: Path, cause: object) -> UserError:
        said = str(cause).partition("\n")[0]
        return UserError(
            f"{file} is missing or damaged ({said}); make it anew with  "
            f"calibre-fl resume {quoted(self.files.path)}"
        )

    def find(self, wanted: Sequence[str]) -> list[int]:
        """Clients by number or name; all of them when none is named."""
        if not wanted:
            return list(self.results)
        return find_clients(self.run.clients, wanted)

    @cached_property
    def folders(self) -> dict[int, str]:
        """What the folder of each client's bundle is called."""
        rows = self.run.clients
        names = folder_names([row.name for row in rows])
        return {row.id: name for row, name in zip(rows, names, strict=True)}

    def bundle(self, client: int, rate: float = RATE) -> Bundle:
        """One client's personal model, as the run made and scored it."""
        return assemble(self.making(client, rate))

    def making(self, client: int, rate: float = RATE) -> Making:
        """What its bundle is made from."""
        row = self.results[client]
        host = self.host  # first: where the images are missing, nothing else matters
        own = self.personal(client)
        self._check_kept(client)
        scored = Scored(client, row.name, row.novel, row.accuracy, own, row.floors)
        found = packing.making(host, self.state, scored, self.facts, self.choice, rate)
        if Kept.of(own).held is None:
            # it may have taken the training of several networks: the next bundle finds it here
            with suppress(OSError):  # a folder that cannot be written to is none the worse
                host.keep.clients.save_personal(client, {**own, **held_tensors(found.held_out)})
        return found

    @property
    def choice(self) -> HeadChoice | None:
        """What all clients' personal models went by."""
        stage = self.run.metrics.personal
        return stage.choice if stage else None

    @property
    def facts(self) -> dict[str, Any]:
        """What a card tells of the run."""
        run, parent = self.run, self.run.experiment.parent
        settings = run.experiment.model_dump(mode="json", exclude={"data": {"root"}})
        # where data lay on the machine that trained is nobody's business elsewhere
        settings["data"]["source"] = run.experiment.data.title
        return {
            "fairness": {group: _figures(run.metrics.of(group)) for group in GROUPS},
            "run": {
                "experiment": run.experiment.hash(),
                "federation": run.federation,
                "seed": run.seed,
                "rounds": run.metrics.rounds,
                **({"parent": f"{parent.experiment}, round {parent.round}"} if parent else {}),
            },
            "settings": settings,
        }


def _figures(summary: Summary) -> dict[str, Any]:
    """The single numbers of a group's summary."""
    return summary.model_dump(exclude={"interval"})
