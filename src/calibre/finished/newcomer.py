"""A bundle for a client that a run has never seen, from the run's folder and its own images."""

import copy
from collections.abc import Sequence
from pathlib import Path

import torch

from calibre import rng
from calibre.data import augment
from calibre.errors import UserError
from calibre.finished.packing import ALL
from calibre.finished.run import FinishedRun
from calibre.local.site import Site
from calibre.methods.method import ServerState
from calibre.models.network import Head, Problem, to_fast_layout
from calibre.personal.arrival import Arrived, Images, read_images
from calibre.personal.assemble import assemble
from calibre.personal.bundle import Bundle
from calibre.personal.cross_validation import held_out, strengths_for
from calibre.personal.encoded import Encoded, Trained, encode_client, fitted_parts
from calibre.personal.frozen_head import HOW
from calibre.personal.heads import Samples
from calibre.personal.making import RATE, Making
from calibre.personal.own import start_anew
from calibre.personal.solved_head import solved, trained_parts
from calibre.tensors import belongs, take


def personalize_newcomer(
    folder: Path,
    data: Path,
    name: str | None = None,
    rate: float = RATE,
    novel: bool = True,
    test: Path | None = None,
) -> Bundle:
    """The run's encoder with a head of the newcomer's own. The run's images are not needed.

    ``novel``: it took no part in the run, as far as is known. ``test``: a folder of images to
    measure with, where ``data`` has none.
    """
    finished = FinishedRun(folder)
    check_encoder(finished)
    preprocessing, choice = finished.preprocessing, finished.choice
    arrived = read_images(data, preprocessing.shape, test)
    site = newcomers_site(finished, arrived)
    seen = _encoded(finished, arrived, site)
    strengths = strengths_for([seen], choice)
    (head,), (held,) = solved([seen], strengths), held_out([seen], strengths)
    norm = preprocessing.normalization

    def samples(images: Images) -> Samples:
        return Samples(seen.shown(images.pixels, norm), images.labels)

    return assemble(
        Making(
            client=name or data.resolve().name,
            novel=novel,
            method=finished.run.label,
            classes=arrived.classes,
            network=finished.experiment.network,
            preprocessing=preprocessing,
            encoders=copy.deepcopy(seen.parts),
            head=head,
            labelled=samples(arrived.train),
            held_out=held,
            fitted=HOW,
            test=samples(arrived.test) if arrived.test else None,
            images=site.images,
            test_images=arrived.test.pixels if arrived.test else None,
            unlabelled=len(arrived.unlabelled),
            chosen=_chosen(arrived),
            notes=arrived.notes,
            rate=rate,
            **finished.facts,
        )
    )


def _chosen(arrived: Arrived) -> str:
    """How the images with a label were chosen, as far as is known."""
    if not arrived.given:
        return ALL
    others = len(arrived.train.labels) - arrived.given
    return (
        f"{arrived.given} by labels.csv (calibre-fl label asks for the most typical images first)"
        + (f", {others} by the folders that they lie in" if others > 0 else "")
    )


def check_encoder(finished: FinishedRun) -> None:
    """Whether the run has an encoder that others than its clients can use."""
    if not any(belongs(tensor, ("encoder",)) for tensor in finished.model):
        raise UserError(
            f"{finished.run.label} shares no encoder, so the run in {finished.files.path} has none "
            "for a newcomer; use a run of a method that sends its encoder (calibre-fl methods)"
        )


def _encoded(finished: FinishedRun, arrived: Arrived, site: Site) -> Encoded:
    """The newcomer's images; the run's head, where it knows all these classes, is the prior."""
    norm = site.normalization
    trained = trained_for(finished, site, arrived.classes)
    fitted = fitted_parts(site.personal, site.images, norm)
    folds = rng.stream(site.seed, "folds", site.client)
    labels = arrived.train.labels
    return encode_client(trained, fitted, site.images, labels, norm, site.classes, folds)


def trained_for(finished: FinishedRun, site: Site, classes: Sequence[str]) -> list[Trained]:
    """The run's encoders, with their heads for these classes where they know them all."""
    known, trained = finished.federation.classes, trained_parts(site)
    if not set(classes) <= set(known):
        return [Trained(encoder) for encoder, _ in trained]
    rows = [known.index(name) for name in classes]
    return [
        Trained(encoder, Head(head.weight[rows], head.bias[rows]) if head else None)
        for encoder, head in trained
    ]


def newcomers_site(finished: FinishedRun, arrived: Arrived) -> Site:
    """The run's network as a client that never trained receives it, and the client's images."""
    experiment, shape = finished.experiment, finished.preprocessing
    classes = len(finished.federation.classes)
    problem = Problem(shape.height, shape.channels, classes, experiment.network, experiment.seed)
    built = experiment.method.build(problem.without_weights())  # the run's own tensors follow
    network = to_fast_layout(built, torch.device("cpu"))
    more = len(arrived.unlabelled)
    state = ServerState(finished.run.metrics.rounds, {"model": finished.model})
    site = Site(
        client=len(finished.results),
        round=state.round,
        seed=experiment.seed,
        training=experiment.training,
        network=network,
        initial=take(network),
        images=torch.cat([arrived.train.pixels, arrived.unlabelled]),
        labels=torch.cat([arrived.train.labels, arrived.train.labels.new_full((more,), -1)]),
        labelled=len(arrived.train.labels),
        views=augment.resolve(experiment.views, "", shape.channels, shape.height),
        normalization=shape.normalization,
        device=torch.device("cpu"),
        classes=len(arrived.classes),
        trains=False,
        personal=experiment.personal,
    )
    start_anew(experiment.method, state, site)
    return site
