"""What a client's bundle is made from: its personal model, and images set aside to measure it.

A finished run packs its clients this way, and so does a site of a deployed federation, which knows
its own client alone.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibre.engine.host import Host
from calibre.engine.messages import METHOD
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.local.features import encode
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState
from calibre.models.network import Head
from calibre.personal.card import Preprocessing
from calibre.personal.heads import Samples
from calibre.personal.making import RATE, Making
from calibre.personal.model import Kept, as_classifier, count_right_by_head
from calibre.personal.own import ALONE
from calibre.personal.pooling import HeadChoice
from calibre.personal.predictor import SideBySide
from calibre.personal.ways import way_of
from calibre.tensors import Tensors

ALL = "all that the client's data has a label for"
CHOICES = {
    "random": "drawn at random",
    "class": "drawn evenly by class",
    "typical": "the most typical images, by the encoder",
}
FOREIGN = 1000  # images of classes that a client does not hold, to try its limit on


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
    host: Host,
    state: ServerState,
    scored: Scored,
    facts: Mapping[str, Any],
    choice: HeadChoice | None,
    rate: float = RATE,
) -> Making:
    """What a client's bundle is made from; ``facts`` are what its card tells of the run.

    The host works on the CPU, where bundles are measured.
    """
    method = host.experiment.method
    kept = Kept.of(scored.tensors)
    client = host.prepared(METHOD, state, scored.client)
    site, test = client.site, client.test
    encoders, head = as_classifier(method, site.network, kept.own)
    encoders = copy.deepcopy(encoders)  # the host's network goes on to serve others
    labelled = _samples(encoders, site, site.images[: site.labelled], site.labels[: site.labelled])
    tested = _samples(encoders, site, test.images, test.labels)
    _check(scored, method, head, tested)
    foreign = _foreign(host, labelled)
    client = host.prepared(METHOD, state, scored.client)  # as it was before its own model
    way = way_of(method, host.experiment.personal)
    how = way.how_held_out(method, state, client)
    return Making(
        client=scored.name,
        novel=scored.novel,
        method=method.label,
        classes=host.pool.classes,
        network=host.experiment.network,
        preprocessing=Preprocessing.of(host.pool.shape, site.normalization),
        encoders=encoders,
        head=head,
        final=kept.final,
        labelled=labelled,
        held_out=kept.held or way.held_out(method, state, client, choice),
        fitted=how,
        usable=how != ALONE,
        test=tested,
        images=site.images,
        test_images=test.images,
        foreign=foreign if len(foreign) else None,
        unlabelled=len(site.labels) - site.labelled,
        chosen=_chosen(host.experiment, site),
        floors=scored.floors,
        rate=rate,
        **facts,
    )


def _samples(encoders: Sequence[nn.Module], site: Site, images: Tensor, labels: Tensor) -> Samples:
    return Samples(encode(SideBySide(encoders), images, site.normalization), labels)


def _chosen(experiment: Experiment, site: Site) -> str:
    """How the images with a label were chosen, in words."""
    federation, personal = experiment.federation, experiment.personal
    if personal.labels == site.labelled:
        return CHOICES[personal.label_choice]
    if federation.labels or federation.label_count or federation.label_fraction:
        return CHOICES["class" if federation.labels_by_class else "random"]
    return ALL


def _check(scored: Scored, method: Method, head: Head, test: Samples) -> None:
    """What is bundled must be what was scored; another machine may round an image away."""
    right = count_right_by_head(head, test)
    counted = round(scored.accuracy * len(test.labels))
    if abs(right - counted) > max(1, len(test.labels) // 100):
        raise UserError(
            f"{scored.name}: the run counted {counted} of {len(test.labels)} test images "
            f"as right, the model to be bundled gets {right}. {method.label} may not predict by "
            "an encoder and a linear head, or the run was made by another version of Calibre"
        )


def _foreign(host: Host, labelled: Samples) -> Tensor:
    """Test images at hand of classes that the client does not hold, spread evenly."""
    pool = host.pool
    rows = np.arange(pool.test.start, pool.test.stop)
    rows = rows[~np.isin(pool.labels[rows], labelled.labels.unique().numpy())]
    return torch.from_numpy(pool.images[rows[:: -(-len(rows) // FOREIGN) or 1]])
