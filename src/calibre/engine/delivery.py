"""From a finished run to bundles: every client's own model, measured and ready to be taken away."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors
import safetensors.torch as st
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre import rng
from calibre.data import federation as federations
from calibre.data.sources import load
from calibre.engine.host import Host
from calibre.engine.jobs import METHOD
from calibre.engine.store import RunFolder
from calibre.errors import UserError
from calibre.local.features import encode
from calibre.local.site import Site
from calibre.methods.apfl import Mixture
from calibre.methods.method import Method, ServerState
from calibre.models.network import feature_count
from calibre.personal.assemble import RATE, Making, assemble
from calibre.personal.bundle import Bundle
from calibre.personal.card import Preprocessing
from calibre.personal.heads import Head, Samples
from calibre.personal.holdout import HeldOut, Refit, as_it_is, cross_validate, refit_heads
from calibre.personal.personalize import TestSet, first_head, personalize
from calibre.personal.predictor import SideBySide
from calibre.report import runs
from calibre.settings import nearest
from calibre.ssl.objective import Objective
from calibre.tensors import Tensors, belongs, put

FOREIGN = 1000  # images of classes that a client does not hold, to try its limit on
REFITS = 3  # folds, where each means to train a whole network
ALONE = (
    "left at 1, for this client's network met all of its labels in many rounds of its own, and no "
    "image is left that it has not seen"
)


class Delivery:
    """A finished run, opened to make bundles of its clients. It needs the run's images."""

    def __init__(self, folder: Path) -> None:
        self.run = runs.read(folder)
        experiment = self.run.experiment
        pool = load(experiment.data)
        federation = federations.load(folder)
        if pool.fingerprint != federation.fingerprint:
            raise UserError(
                f"the images of '{experiment.data.source}' are not those that the run in {folder} "
                "was made with: bundles need the same ones"
            )
        self.federation = federation
        self.host = Host(experiment, pool, federation, folder, torch.device("cpu"))
        self.method = cast(Method, experiment.method)
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
        site, kept, test = self.host.prepared(METHOD, self.state, client)
        site.load(self.state.groups.get("model"), kept)
        start = self._first_head(site) if self._only_head() else None
        encoders, head = parts(site.network, self._personal_tensors(client), self.method)
        encoders = copy.deepcopy(encoders)  # the host's network goes on to serve others
        both = SideBySide(encoders)

        def features(images: Tensor) -> Tensor:
            return encode(both, images, site.normalization)

        labelled = Samples(features(site.images[: site.labelled]), site.labels[: site.labelled])
        tested = Samples(features(test.images), test.labels)
        self._check(client, head, tested)
        held_out, how = self._held_out(site, labelled, head, start)
        usable = start is not None or not self._grew_alone(kept)
        strangers = self._foreign(labelled)
        return Making(
            client=self.results[client].name,
            novel=self.results[client].novel,
            method=self.run.label,
            classes=self.host.pool.classes,
            network=self.run.experiment.network,
            preprocessing=Preprocessing.of(self.host.pool.shape, site.normalization),
            encoders=encoders,
            head=head,
            labelled=labelled,
            held_out=held_out,
            fitted=how if usable else ALONE,
            usable=usable,
            test=tested,
            foreign=features(strangers) if len(strangers) else None,
            unlabelled=len(site.labels) - site.labelled,
            floors=self.results[client].floors,
            rate=rate,
            **facts(self.run),
        )

    def _first_head(self, site: Site) -> Head:
        features = feature_count(site.network.get_submodule("encoder"))
        return first_head(site, len(self.host.pool.classes), features)

    def _only_head(self) -> bool:
        whole = self.run.experiment.personal.finetune_encoder
        return self.method.personalization() == "head" and not whole

    def _personal_tensors(self, client: int) -> Tensors:
        file = self.run.folder / "clients" / f"{client:06d}" / "personal.safetensors"
        try:
            return st.load(file.read_bytes())
        except (OSError, safetensors.SafetensorError) as error:
            raise UserError(
                f"the personal model of client {client} cannot be read from {file} ({error}); make "
                f"it anew with  calibre-fl resume {self.run.folder}"
            ) from None

    def _check(self, client: int, head: Head, test: Samples) -> None:
        """What is bundled must be what was scored; another machine may round an image away."""
        right = int((F.linear(test.features, *head).argmax(1) == test.labels).sum())
        scored = round(self.results[client].accuracy * len(test.labels))
        if abs(right - scored) > max(1, len(test.labels) // 100):
            raise UserError(
                f"client {client}: the run counted {scored} of {len(test.labels)} test images as "
                f"right, the model to be bundled gets {right}. {self.run.label} may not predict by "
                "an encoder and a linear head, or the run was made by another version of Calibre"
            )

    def _held_out(
        self, site: Site, labelled: Samples, head: Head, start: Head | None
    ) -> tuple[HeldOut, str]:
        """Answers to labelled images by models that were not fitted to them, and how they came."""
        generator = rng.stream(site.seed, "folds", site.client)
        settings = self.run.experiment.personal
        met = self.method.federated and not isinstance(site.network, Objective)
        caution = (
            "; but the encoder met these labels in training, so that it may be too sure of them"
            if met and not self.results[site.client].novel
            else ""
        )
        if start is not None:
            refit = refit_heads(labelled, start, settings, site.seed)
            how = "each answered by a head that was trained without it"
        elif self.method.personalization() == "none":
            refit = as_it_is(labelled.features, F.linear(labelled.features, *head))
            how = "the client's labelled images, which its model was not tuned to"
        else:
            refit = self._refit_networks(site)
            how = "each answered by a network that was personalised, as a newcomer's, without it"
            return cross_validate(labelled.labels, refit, generator, REFITS), how
        return cross_validate(labelled.labels, refit, generator), how + caution

    def _grew_alone(self, kept: Tensors | None) -> bool:
        """Whether the client's encoder is its own work of many rounds, which no refit repeats."""
        shared = self.state.groups.get("model", {})
        return kept is not None and not any(belongs(name, ("encoder",)) for name in shared)

    def _refit_networks(self, site: Site) -> Refit:
        """Whole personal models, made from the server's state and a part of the images alone."""

        def refit(trained: Sequence[Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
            images = site.images[: site.labelled]
            for rows in trained:
                part = replace(
                    site, images=images[rows], labels=site.labels[rows], labelled=len(rows)
                )
                kept = self.method.newcomer(self.state, part)
                some = TestSet(part.images[:1], part.labels[:1])  # its score is not of interest
                (made,) = personalize(
                    self.method,
                    self.state,
                    [(part, kept, some)],
                    site.personal,
                    len(self.host.pool.classes),
                )
                part.load(self.state.groups.get("model"), kept)
                encoders, head = parts(part.network, made.tensors, self.method)
                z = encode(SideBySide(encoders), images, site.normalization)
                yield z, F.linear(z, *head)

        return refit

    def _foreign(self, labelled: Samples) -> Tensor:
        """Test images of classes that the client does not hold, spread evenly."""
        pool = self.host.pool
        rows = np.arange(pool.test.start, pool.test.stop)
        rows = rows[~np.isin(pool.labels[rows], labelled.labels.unique().numpy())]
        return torch.from_numpy(pool.images[rows[:: -(-len(rows) // FOREIGN) or 1]])


def parts(network: nn.Module, own: Tensors, method: Method) -> tuple[list[nn.Module], Head]:
    """Encoders side by side and one linear head: all that a personal model is, of any method.

    ``network`` holds the common start, the server's model and what the client kept.
    """
    known = network.state_dict().keys()
    put(network, {name: tensor for name, tensor in own.items() if name in known})
    encoder = network.get_submodule("encoder")
    if isinstance(network, Mixture):  # alpha own + (1 - alpha) w, in logits
        alpha, w, v = network.alpha.detach(), _head(network.head), _head(network.own.head)
        weight = torch.cat([(1 - alpha) * w.weight, alpha * v.weight], dim=1)
        bias = (1 - alpha) * w.bias + alpha * v.bias
        return [encoder, network.own.encoder], Head(weight, bias)
    strange = [name for name in own if not belongs(name, ("encoder", "head"))]
    held = getattr(network, "head", None)
    if not strange and "head.weight" in own and "head.bias" in own:
        return [encoder], Head(own["head.weight"], own["head.bias"])
    if not strange and isinstance(held, nn.Linear):
        return [encoder], _head(held)
    raise UserError(
        f"the personal models of {method.label} cannot be bundled: a bundle holds an encoder and a "
        f"linear head, but these {f'also have {strange[0]}' if strange else 'have no head'}"
    )


def _head(linear: nn.Linear) -> Head:
    return Head(linear.weight.detach().clone(), linear.bias.detach().clone())


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
