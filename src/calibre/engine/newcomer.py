"""A bundle for a client that a run has never seen, from the run's folder and its own images."""

import copy
from pathlib import Path
from typing import cast

import safetensors
import safetensors.torch as st
import torch

from calibre import rng
from calibre.data import augment
from calibre.data import federation as federations
from calibre.data.sources import load
from calibre.engine import events
from calibre.engine.delivery import facts
from calibre.errors import UserError
from calibre.local.features import encode
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState
from calibre.models.network import Problem, to_fast_layout
from calibre.personal.assemble import RATE, Making, assemble
from calibre.personal.bundle import Bundle
from calibre.personal.card import Preprocessing
from calibre.personal.heads import Samples
from calibre.personal.newcomer import Arrived, fit_head, read_images
from calibre.report import runs
from calibre.tensors import Tensors, belongs, take


def personalize_newcomer(
    folder: Path, data: Path, name: str | None = None, rate: float = RATE
) -> Bundle:
    """The run's encoder with a head of the newcomer's own. The run's images are not needed."""
    run = runs.read(folder)
    method = cast(Method, run.experiment.method)
    model = _model(folder)
    if not any(belongs(tensor, ("encoder",)) for tensor in model):
        raise UserError(
            f"{run.label} shares no encoder, so the run in {folder} has none for a newcomer; use a "
            "run of a method that sends its encoder (calibre-fl methods)"
        )
    preprocessing = _preprocessing(run)
    arrived = read_images(data, preprocessing.shape)
    encoder = _encoder(run, method, model, preprocessing, arrived)

    def samples(pixels: torch.Tensor, labels: torch.Tensor) -> Samples:
        return Samples(encode(encoder, pixels, preprocessing.normalization), labels)

    labelled = samples(*arrived.train)
    head, held_out = fit_head(
        labelled, len(arrived.classes), run.experiment.personal, run.experiment.seed
    )
    return assemble(
        Making(
            client=name or data.resolve().name,
            novel=True,
            method=run.label,
            classes=arrived.classes,
            network=run.experiment.network,
            preprocessing=preprocessing,
            encoders=[encoder],
            head=head,
            labelled=labelled,
            held_out=held_out,
            fitted="each answered by a head that was trained without it",
            test=samples(*arrived.test) if arrived.test else None,
            unlabelled=arrived.unlabelled,
            notes=arrived.notes,
            rate=rate,
            **facts(run),
        )
    )


def _encoder(
    run: runs.Run, method: Method, model: Tensors, shape: Preprocessing, arrived: Arrived
) -> torch.nn.Module:
    """The run's encoder as a client that never trained receives it."""
    experiment = run.experiment
    classes = len(federations.load(run.folder).classes)
    problem = Problem(shape.height, shape.channels, classes, experiment.network, experiment.seed)
    network = to_fast_layout(method.build(problem), torch.device("cpu"))
    state = ServerState(run.metrics["rounds"], {"model": model})
    site = Site(
        client=len(run.clients),
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
        personal=experiment.personal,
    )
    with rng.isolated(site.seed, "newcomer", site.round, site.client):
        kept = method.newcomer(state, site)  # FedBN: batch norm of its own images
    site.load(model, kept)
    return copy.deepcopy(network.get_submodule("encoder"))


def _model(folder: Path) -> Tensors:
    file = folder / "model.safetensors"
    try:
        return st.load(file.read_bytes())
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(
            f"the model of the run cannot be read from {file} ({error}); write it anew with  "
            f"calibre-fl resume {folder}"
        ) from None


def _preprocessing(run: runs.Run) -> Preprocessing:
    """As the run noted it when it started; older runs did not, and need their images again."""
    started = [e for e in events.read(run.folder / "events.jsonl") if e["event"] == "start"]
    noted = started[-1].get("preprocessing") if started else None
    if noted is None:
        pool = load(run.experiment.data)
        shape, norm = (
            pool.shape,
            augment.statistics(pool.images[pool.train.start : pool.train.stop]),
        )
        return Preprocessing.of(shape, norm)
    return Preprocessing.model_validate(noted)
