"""What one process keeps alive between clients: the data, the networks, the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch
from torch import nn

from calibre import rng
from calibre.data import augment
from calibre.data.federation import Federation
from calibre.data.pool import Pool
from calibre.engine.checkpoints import Checkpoints
from calibre.engine.client_store import ClientStore
from calibre.engine.messages import METHOD
from calibre.errors import UserError
from calibre.experiment import Experiment, method_named
from calibre.freed import let_go, trim
from calibre.local.features import encode
from calibre.local.memory import Memory
from calibre.local.site import Site
from calibre.methods.method import IMAGES, Method, ServerState, Update
from calibre.models.network import Problem, to_fast_layout
from calibre.models.preprocessing import chosen_normalization
from calibre.personal.label_choice import with_chosen_labels
from calibre.personal.model import Personal, Prepared, TestSet
from calibre.personal.own import start_anew
from calibre.personal.pooling import Curves, HeadChoice
from calibre.personal.ways import way_of
from calibre.run_folder import RunFolder
from calibre.tensors import Tensors, put, take


def method_of(experiment: Experiment, role: str) -> Method:
    """The experiment's method, or the floor that a role names."""
    return experiment.method if role == METHOD else method_named(role)


@dataclass(frozen=True)
class Loaded:
    """A method with its network and the network's common start."""

    method: Method
    network: nn.Module
    initial: Tensors


class Keep(Protocol):
    """Where clients' own state lies, and how far back a resume may go."""

    clients: ClientStore

    def oldest_round(self) -> int: ...


class InRunFolder:
    """In the run folder, where everything is on one machine."""

    def __init__(self, folder: RunFolder, training: str) -> None:
        self.clients = ClientStore(folder.clients, training)
        self.oldest_round = Checkpoints(folder.checkpoints).oldest_round


class Host:
    """Carries out client work; one at a time, in any process, with the same bits."""

    def __init__(
        self,
        experiment: Experiment,
        pool: Pool,
        federation: Federation,
        keep: Path | Keep,  # a run folder, or another place for what clients keep
        device: torch.device,
        normalization: augment.Normalization | None = None,  # default: of the pool's own images
    ) -> None:
        self.experiment = experiment
        self.pool = replace(pool, owners=None, owner_names=())  # the federation says who holds what
        self.federation = federation
        self.keep: Keep = (
            InRunFolder(RunFolder(keep), experiment.training_hash())
            if isinstance(keep, Path)
            else keep
        )
        self.device = device
        height, _, channels = pool.shape
        self.problem = Problem(
            height, channels, len(pool.classes), experiment.network, experiment.seed
        )
        self.views = augment.resolve(experiment.views, pool.name, channels, height)
        self.normalization = (
            normalization
            or chosen_normalization(experiment.network, channels)
            or augment.statistics(pool.images[pool.train.start : pool.train.stop])
        )
        self._loaded: dict[str, Loaded] = {}
        self._memory = Memory()
        let_go(pool.images)
        trim()

    def load(self, role: str) -> Loaded:
        if role not in self._loaded:
            method = method_of(self.experiment, role)
            try:
                network = to_fast_layout(method.build(self.problem), self.device)
            except (RuntimeError, MemoryError) as error:
                said = str(error).partition("\n")[0][:200] or "out of memory"
                raise UserError(
                    f"the network of {method.label} cannot be made with these settings: {said}; "
                    "make it smaller (network.width; hidden, projection, queue of the objective)"
                ) from error
            if self.views.extra and not method.supervised:
                self._try_small_views(network.get_submodule("encoder"))
            self._loaded[role] = Loaded(method, network, take(network))
        return self._loaded[role]

    def _try_small_views(self, encoder: nn.Module) -> None:
        """Not every encoder takes images of another size."""
        size = self.views.extra_size
        blank = torch.zeros(1, size, size, self.problem.channels, dtype=torch.uint8)
        try:
            encode(encoder, blank.to(self.device), self.normalization)
        except Exception as error:  # of any library's or somebody's own code
            raise UserError(
                f"views.extra = {self.views.extra}: network.encoder = "
                f"'{self.problem.network.encoder}' takes no small views of {size} pixels; set "
                f"views.extra = 0, or take a convolutional encoder, such as resnet18 ({error})"
            ) from error

    def initial_state(self, role: str = METHOD) -> ServerState:
        loaded = self.load(role)
        put(loaded.network, loaded.initial)
        start = loaded.method.init(loaded.network)
        return replace(start, clients=max(1, len(self.federation.train_ids)))

    def update(self, state: ServerState, client: int) -> Update:
        """One client's local training; what it keeps is on disk before this returns."""
        method = self.load(METHOD).method
        kept = self.kept(METHOD, state, client)
        site = self._loaded_site(METHOD, state, client, kept)
        if not method.uses_labels:
            site = replace(site, labels=torch.full_like(site.labels, -1))
        with rng.isolated(self.experiment.seed, "local", state.round, client):
            update = method.local_update(state, kept, site)
        update = replace(update, report={**update.report, IMAGES: float(sum(site.drawn))})
        if update.personal is not None:
            self.keep.clients.save(
                client, state.round + 1, update.personal, self.keep.oldest_round()
            )
        return update

    def assess(self, state: ServerState, role: str, clients: Sequence[int]) -> dict[int, Curves]:
        """What clients' cross-validation says of how to make their personal models."""
        method = self.load(role).method
        prepared = (self.prepared(role, state, client) for client in clients)
        return way_of(method, self.experiment.personal).assess(method, state, prepared) or {}

    def personalize(
        self,
        state: ServerState,
        role: str,
        clients: Sequence[int],
        choice: HeadChoice | None = None,
        curves: Mapping[int, Curves] = MappingProxyType({}),
    ) -> list[Personal]:
        """Personal models of a group of clients, scored on their own test images.

        ``curves`` are what :meth:`assess` found, where it was asked.
        """
        method = self.load(role).method
        prepared = (
            self.prepared(role, state, client)._replace(curves=curves.get(client))
            for client in clients
        )
        models = way_of(method, self.experiment.personal).make(method, state, prepared, choice)
        if role == METHOD:
            for model in models:
                self.keep.clients.save_personal(model.client, model.to_keep())
        return models

    def prepared(self, role: str, state: ServerState, client: int) -> Prepared:
        """A client as personalisation finds it: its site, what it kept, its test images."""
        kept = self.kept(role, state, client)
        site = with_chosen_labels(self._loaded_site(role, state, client, kept))
        if kept is None:
            kept = start_anew(self.load(role).method, state, site)
        return Prepared(site, kept, self._test(client))

    def kept(self, role: str, state: ServerState, client: int) -> Tensors | None:
        """What a client kept when it last trained; floors are methods of their own, without."""
        return self.keep.clients.load(client, state.round) if role == METHOD else None

    def site(self, role: str, state: ServerState, client: int) -> Site:
        """A client's data and the network of a role, loaded for a method's hooks."""
        return self._loaded_site(role, state, client, self.kept(role, state, client))

    def _loaded_site(
        self, role: str, state: ServerState, client: int, kept: Tensors | None
    ) -> Site:
        loaded = self.load(role)
        held = self.federation.client(client)
        rows = np.concatenate([held.labelled, held.unlabelled])
        trains = client in self.federation.train_ids
        labels = self.pool.labels[rows]
        labels[len(held.labelled) :] = -1  # a label that was taken away is not there to be read
        site = Site(
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
            classes=len(self.pool.classes),
            trains=trains,
            met_labels=loaded.method.met_labels(trains),
            labels_by_class=self.experiment.federation.labels_by_class,
            amp=self.experiment.training.amp,
            personal=self.experiment.personal,
            memory=self._memory,
        )
        site.load(state.groups.get("model"), kept)
        return site

    def _test(self, client: int) -> TestSet:
        rows = self.federation.client(client).test
        labels = torch.from_numpy(self.pool.labels[rows]).to(self.device)
        return TestSet(self._images(rows), labels)

    def _images(self, rows: np.ndarray[tuple[int], np.dtype[np.int32]]) -> torch.Tensor:
        taken = torch.from_numpy(self.pool.images[rows]).to(self.device)
        let_go(self.pool.images)
        return taken
