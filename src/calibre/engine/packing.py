"""What a client's bundle is made from: its personal model, and images set aside to measure it.

A finished run packs its clients this way (:mod:`calibre.engine.delivery`), and so does a site of a
deployed federation, which knows its own client alone.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre import rng
from calibre.engine.host import Host, method_of
from calibre.engine.jobs import METHOD
from calibre.errors import UserError
from calibre.local.features import encode
from calibre.local.site import Site
from calibre.methods.apfl import Mixture
from calibre.methods.method import Method, ServerState
from calibre.models.network import feature_count
from calibre.personal.assemble import RATE, Making
from calibre.personal.card import Preprocessing
from calibre.personal.heads import Head, Samples
from calibre.personal.holdout import HeldOut, Refit, as_it_is, cross_validate, refit_heads
from calibre.personal.personalize import TestSet, first_head, personalize
from calibre.personal.predictor import SideBySide
from calibre.ssl.objective import Objective
from calibre.tensors import Tensors, belongs, put

FOREIGN = 1000  # images of classes that a client does not hold, to try its limit on
REFITS = 3  # folds, where each means to train a whole network
ALONE = (
    "left at 1, for this client's network met all of its labels in many rounds of its own, and no "
    "image is left that it has not seen"
)


@dataclass(frozen=True)
class Scored:
    """A client whose personal model is made and scored."""

    client: int
    name: str
    novel: bool
    accuracy: float  # on the client's own test images
    tensors: Tensors  # of its personal model, those that are its own
    floors: Mapping[str, float] = field(default_factory=dict)


def making(
    host: Host, state: ServerState, scored: Scored, facts: Mapping[str, Any], rate: float = RATE
) -> Making:
    """What a client's bundle is made from; ``facts`` are what its card tells of the run.

    The host works on the CPU, where bundles are measured.
    """
    method = method_of(host.experiment, METHOD)
    site, kept, test = host.prepared(METHOD, state, scored.client)
    site.load(state.groups.get("model"), kept)
    start = _first_head(method, site, len(host.pool.classes))
    encoders, head = parts(site.network, scored.tensors, method)
    encoders = copy.deepcopy(encoders)  # the host's network goes on to serve others
    both = SideBySide(encoders)

    def features(images: Tensor) -> Tensor:
        return encode(both, images, site.normalization)

    labelled = Samples(features(site.images[: site.labelled]), site.labels[: site.labelled])
    tested = Samples(features(test.images), test.labels)
    _check(scored, method, head, tested)
    held_out, how = _held_out(host, state, site, labelled, head, start, scored.novel)
    usable = start is not None or not _grew_alone(state, kept)
    strangers = _foreign(host, labelled)
    return Making(
        client=scored.name,
        novel=scored.novel,
        method=method.label,
        classes=host.pool.classes,
        network=host.experiment.network,
        preprocessing=Preprocessing.of(host.pool.shape, site.normalization),
        encoders=encoders,
        head=head,
        labelled=labelled,
        held_out=held_out,
        fitted=how if usable else ALONE,
        usable=usable,
        test=tested,
        foreign=features(strangers) if len(strangers) else None,
        unlabelled=len(site.labels) - site.labelled,
        floors=scored.floors,
        rate=rate,
        **facts,
    )


def _first_head(method: Method, site: Site, classes: int) -> Head | None:
    """What its head began from; None where the whole network is the client's own."""
    if method.personalization() != "head" or site.personal.finetune_encoder:
        return None
    return first_head(site, classes, feature_count(site.network.get_submodule("encoder")))


def _check(scored: Scored, method: Method, head: Head, test: Samples) -> None:
    """What is bundled must be what was scored; another machine may round an image away."""
    right = int((F.linear(test.features, *head).argmax(1) == test.labels).sum())
    counted = round(scored.accuracy * len(test.labels))
    if abs(right - counted) > max(1, len(test.labels) // 100):
        raise UserError(
            f"client {scored.client}: the run counted {counted} of {len(test.labels)} test images "
            f"as right, the model to be bundled gets {right}. {method.label} may not predict by "
            "an encoder and a linear head, or the run was made by another version of Calibre"
        )


def _held_out(
    host: Host,
    state: ServerState,
    site: Site,
    labelled: Samples,
    head: Head,
    start: Head | None,
    novel: bool,
) -> tuple[HeldOut, str]:
    """Answers to labelled images by models that were not fitted to them, and how they came."""
    method = method_of(host.experiment, METHOD)
    generator = rng.stream(site.seed, "folds", site.client)
    met = method.federated and not isinstance(site.network, Objective)
    caution = (
        "; but the encoder met these labels in training, so that it may be too sure of them"
        if met and not novel
        else ""
    )
    if start is not None:
        refit = refit_heads(labelled, start, site.personal, site.seed)
        how = "each answered by a head that was trained without it"
    elif method.personalization() == "none":
        refit = as_it_is(labelled.features, F.linear(labelled.features, *head))
        how = "the client's labelled images, which its model was not tuned to"
    else:
        refit = _refit_networks(method, state, site, len(host.pool.classes))
        how = "each answered by a network that was personalised, as a newcomer's, without it"
        return cross_validate(labelled.labels, refit, generator, REFITS), how
    return cross_validate(labelled.labels, refit, generator), how + caution


def _grew_alone(state: ServerState, kept: Tensors | None) -> bool:
    """Whether the client's encoder is its own work of many rounds, which no refit repeats."""
    shared = state.groups.get("model", {})
    return kept is not None and not any(belongs(name, ("encoder",)) for name in shared)


def _refit_networks(method: Method, state: ServerState, site: Site, classes: int) -> Refit:
    """Whole personal models, made from the server's state and a part of the images alone."""

    def refit(trained: Sequence[Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
        images = site.images[: site.labelled]
        for rows in trained:
            part = replace(site, images=images[rows], labels=site.labels[rows], labelled=len(rows))
            kept = method.newcomer(state, part)
            some = TestSet(part.images[:1], part.labels[:1])  # its score is not of interest
            (made,) = personalize(method, state, [(part, kept, some)], site.personal, classes)
            part.load(state.groups.get("model"), kept)
            encoders, head = parts(part.network, made.tensors, method)
            z = encode(SideBySide(encoders), images, site.normalization)
            yield z, F.linear(z, *head)

    return refit


def _foreign(host: Host, labelled: Samples) -> Tensor:
    """Test images at hand of classes that the client does not hold, spread evenly."""
    pool = host.pool
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
