"""A bundle for a client that a run has never seen, from the run's folder and its own images."""

import copy
from pathlib import Path

import torch

from calibre.data import augment
from calibre.errors import UserError
from calibre.finished.run import FinishedRun
from calibre.local.features import encode
from calibre.local.site import Site
from calibre.methods.method import ServerState
from calibre.models.network import Problem, to_fast_layout
from calibre.personal.arrival import Arrived, fit_head, read_images
from calibre.personal.assemble import RATE, Making, assemble
from calibre.personal.bundle import Bundle
from calibre.personal.frozen_head import HOW
from calibre.personal.heads import Samples
from calibre.personal.own import start_anew
from calibre.tensors import belongs, take


def personalize_newcomer(
    folder: Path, data: Path, name: str | None = None, rate: float = RATE
) -> Bundle:
    """The run's encoder with a head of the newcomer's own. The run's images are not needed."""
    finished = FinishedRun(folder)
    experiment = finished.experiment
    if not any(belongs(tensor, ("encoder",)) for tensor in finished.model):
        raise UserError(
            f"{finished.run.label} shares no encoder, so the run in {folder} has none for a "
            "newcomer; use a run of a method that sends its encoder (calibre-fl methods)"
        )
    preprocessing = finished.preprocessing
    arrived = read_images(data, preprocessing.shape)
    encoder = _encoder(finished, arrived)

    def samples(pixels: torch.Tensor, labels: torch.Tensor) -> Samples:
        return Samples(encode(encoder, pixels, preprocessing.normalization), labels)

    labelled = samples(*arrived.train)
    head, held_out = fit_head(labelled, len(arrived.classes), experiment.personal, experiment.seed)
    return assemble(
        Making(
            client=name or data.resolve().name,
            novel=True,
            method=finished.run.label,
            classes=arrived.classes,
            network=experiment.network,
            preprocessing=preprocessing,
            encoders=[encoder],
            head=head,
            labelled=labelled,
            held_out=held_out,
            fitted=HOW,
            test=samples(*arrived.test) if arrived.test else None,
            unlabelled=arrived.unlabelled,
            notes=arrived.notes,
            rate=rate,
            **finished.facts,
        )
    )


def _encoder(finished: FinishedRun, arrived: Arrived) -> torch.nn.Module:
    """The run's encoder as a client that never trained receives it."""
    experiment, shape = finished.experiment, finished.preprocessing
    classes = len(finished.federation.classes)
    problem = Problem(shape.height, shape.channels, classes, experiment.network, experiment.seed)
    network = to_fast_layout(experiment.method.build(problem), torch.device("cpu"))
    state = ServerState(finished.run.metrics["rounds"], {"model": finished.model})
    site = Site(
        client=len(finished.results),
        round=state.round,
        seed=experiment.seed,
        training=experiment.training,
        network=network,
        initial=take(network),
        images=arrived.train.pixels,
        labels=arrived.train.labels,
        labelled=len(arrived.train.labels),
        views=augment.resolve(experiment.views, "", shape.channels, shape.height),
        normalization=shape.normalization,
        device=torch.device("cpu"),
        classes=classes,
        trains=False,
        personal=experiment.personal,
    )
    start_anew(experiment.method, state, site)  # FedBN: batch norm of its own images
    return copy.deepcopy(network.get_submodule("encoder"))
