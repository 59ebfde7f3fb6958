"""What one process keeps alive between clients: the data, the networks, the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import torch
from torch import nn

from calibre import rng
from calibre.data import augment
from calibre.data.federation import Federation
from calibre.data.pool import Pool
from calibre.engine.jobs import METHOD
from calibre.engine.store import ClientStore, RunFolder
from calibre.experiment import Experiment
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState, Update
from calibre.models.network import Problem, to_fast_layout
from calibre.personal.personalize import Personal, Prepared, TestSet, personalize
from calibre.registry import METHODS
from calibre.settings import look_up
from calibre.tensors import Tensors, put, take


def method_of(experiment: Experiment, role: str) -> Method:
    """The experiment's method, or the floor that a role names."""
    if role == METHOD:
        return cast(Method, experiment.method)
    return cast(Method, look_up("floor", role, METHODS)())


@dataclass(frozen=True)
class Loaded:
    """A method with its network and the network's common start."""

    method: Method
    network: nn.Module
    initial: Tensors


class Keep(Protocol):
    """Where clients' own state lies, and how far back a resume may go: usually a run folder."""

    clients: ClientStore

    def oldest_round(self) -> int: ...


class Host:
    """Carries out client work; one at a time, in any process, with the same bits."""

    def __init__(
        self,
        experiment: Experiment,
        pool: Pool,
        federation: Federation,
        folder: Path | Keep,
        device: torch.device,
        normalization: augment.Normalization | None = None,  # default: of the pool's own images
    ) -> None:
        self.experiment = experiment
        self.pool = pool
        self.federation = federation
        self.folder: Keep = RunFolder(folder) if isinstance(folder, Path) else folder
        self.device = device
        height, _, channels = pool.shape
        self.problem = Problem(
            height, channels, len(pool.classes), experiment.network, experiment.seed
        )
        self.views = augment.resolve(experiment.views, pool.name, channels, height)
        self.normalization = normalization or augment.statistics(
            pool.images[pool.train.start : pool.train.stop]
        )
        self._loaded: dict[str, Loaded] = {}

    def load(self, role: str) -> Loaded:
        if role not in self._loaded:
            method = method_of(self.experiment, role)
            network = to_fast_layout(method.build(self.problem), self.device)
            self._loaded[role] = Loaded(method, network, take(network))
        return self._loaded[role]

    def initial_state(self, role: str = METHOD) -> ServerState:
        loaded = self.load(role)
        put(loaded.network, loaded.initial)
        return loaded.method.init(loaded.network)

    def update(self, state: ServerState, client: int) -> Update:
        """One client's local training; what it keeps is on disk before this returns."""
        loaded = self.load(METHOD)
        personal = self.folder.clients.load(client, state.round)
        with rng.isolated(self.experiment.seed, "local", state.round, client):
            update = loaded.method.local_update(state, personal, self.site(METHOD, state, client))
        if update.personal is not None:
            self.folder.clients.save(
                client, state.round + 1, update.personal, self.folder.oldest_round()
            )
        return update

    def personalize(self, state: ServerState, role: str, clients: Sequence[int]) -> list[Personal]:
        """Personal models of a group of clients, scored on their own test images."""
        loaded = self.load(role)
        prepared = (self.prepared(role, state, client) for client in clients)
        models = personalize(
            loaded.method, state, prepared, self.experiment.personal, len(self.pool.classes)
        )
        if role == METHOD:
            for model in models:
                self.folder.clients.save_personal(model.client, model.tensors)
        return models

    def prepared(self, role: str, state: ServerState, client: int) -> Prepared:
        """A client as personalisation finds it: its site, what it kept, its test images."""
        site = self.site(role, state, client)
        kept = self.folder.clients.load(client, state.round) if role == METHOD else None
        if kept is None:
            with rng.isolated(site.seed, "newcomer", site.round, client):
                kept = self.load(role).method.newcomer(state, site)
        return site, kept, self._test(client)

    def site(self, role: str, state: ServerState, client: int) -> Site:
        """A client's data and the network of a role, ready for a method."""
        loaded = self.load(role)
        held = self.federation.client(client)
        rows = np.concatenate([held.labelled, held.unlabelled])
        labels = self.pool.labels[rows]
        labels[len(held.labelled) :] = -1  # a label that was taken away is not there to be read
        return Site(
            client=client,
            round=state.round,
            seed=self.experiment.seed,
            training=self.experiment.training,
            network=loaded.network,
            initial=loaded.initial,
            images=self._images(rows),
            labels=torch.from_numpy(labels).to(self.device),
            labelled=len(held.labelled),
            views=self.views,
            normalization=self.normalization,
            device=self.device,
            amp=self.experiment.training.amp,
            clients=len(self.federation.train_ids),
            personal=self.experiment.personal,
        )

    def _test(self, client: int) -> TestSet:
        rows = self.federation.client(client).test
        labels = torch.from_numpy(self.pool.labels[rows]).to(self.device)
        return TestSet(self._images(rows), labels)

    def _images(self, rows: np.ndarray[tuple[int], np.dtype[np.int32]]) -> torch.Tensor:
        return torch.from_numpy(self.pool.images[rows]).to(self.device)
