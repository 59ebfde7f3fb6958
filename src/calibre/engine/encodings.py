"""What the encoders of a finished run make of its clients' test images."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import safetensors
import safetensors.torch as st
import torch

from calibre.data import federation as federations
from calibre.data.federation import Federation
from calibre.data.sources import load
from calibre.engine.host import Host
from calibre.engine.jobs import METHOD
from calibre.engine.store import RunFolder
from calibre.engine.workers import one_thread
from calibre.errors import UserError
from calibre.local.features import encode
from calibre.methods.method import ServerState
from calibre.report.figures.tsne import View, views
from calibre.report.representations import Representations
from calibre.report.rows import arrange
from calibre.report.runs import Run
from calibre.tensors import Tensors, belongs, check_like

CLIENTS = 6  # where none are chosen: as many as the paper shows
MOST = 2000  # images in all; of more, every client shows as many


def views_of(
    runs: Sequence[Run],
    clients: Sequence[int] | None = None,
    by: Sequence[Literal["class", "client"]] = ("class", "client"),
) -> list[View]:
    """Representations of the same clients by several runs of one federation, to be drawn."""
    if len({run.federation for run in runs}) > 1:
        raise UserError(
            "figure tsne: these runs are on several federations, so their clients are not the "
            "same; give runs of one seed"
        )
    rows = arrange(runs, floors=False)
    labels = {entry.run.folder: row.label for row in rows for entry in row.entries}
    methods = [replace(encode_clients(run, clients), label=labels[run.folder]) for run in runs]
    return views(methods, by)


def encode_clients(run: Run, clients: Sequence[int] | None = None) -> Representations:
    """Test images of some clients, each by the encoder of its own personal model.

    Where a method shares the encoder, that is the same for all. Test images were seen by no method
    in training. One that several of the clients hold is taken once, for the first of them: twins
    would be each other's nearest neighbours.
    """
    federation = federations.load(run.folder)
    chosen = _chosen(federation, clients)
    host = _host(run, federation)
    state = ServerState(int(run.metrics["rounds"]), {"model": _model(run, host)})
    features, classes, owners = [], [], []
    seen: set[int] = set()
    with one_thread():
        for client in chosen:
            held = federation.client(client).test
            new = np.array([i for i, row in enumerate(held.tolist()) if row not in seen], np.int64)
            new = new[np.unique(np.linspace(0, len(new) - 1, MOST // len(chosen)).astype(int))]
            seen.update(held[new].tolist())
            site, kept, test = host.prepared(METHOD, state, client)
            site.load(state.model, kept, _own_encoder(run, client))
            encoder = site.network.get_submodule("encoder")
            features.append(encode(encoder, test.images[new], host.normalization).numpy())
            classes.append(test.labels[new].numpy())
            owners.append(np.full(len(new), client))
    return Representations(
        run.label,
        np.concatenate(features),
        np.concatenate(classes),
        np.concatenate(owners),
        federation.classes,
    )


def _chosen(federation: Federation, clients: Sequence[int] | None) -> list[int]:
    if clients is None:
        return list(range(min(CLIENTS, len(federation))))
    for client in clients:
        if not 0 <= client < len(federation):
            raise UserError(
                f"there is no client {client}: this run has clients 0 to {len(federation) - 1}, "
                f"novel from {federation.training} on"
            )
    return sorted(set(clients))


def _host(run: Run, federation: Federation) -> Host:
    pool = load(run.experiment.data)
    if pool.fingerprint != federation.fingerprint:
        raise UserError(
            f"the images of '{run.experiment.data.source}' have changed since {run.folder} was run"
        )
    return Host(run.experiment, pool, federation, run.folder, torch.device("cpu"))


def _model(run: Run, host: Host) -> Tensors:
    path = run.folder / "model.safetensors"
    try:
        model = st.load(path.read_bytes())
        check_like(model, host.initial_state().groups.get("model", {}))
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise UserError(
            f"{path} is damaged ({error}); write it anew with  calibre-fl resume {run.folder}"
        ) from None
    return model


def _own_encoder(run: Run, client: int) -> Tensors | None:
    """The encoder of a personal model where it is the client's own."""
    try:
        own = RunFolder(run.folder).clients.load_personal(client)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"the personal model of client {client} is damaged: {error}") from None
    if own is None:
        raise UserError(
            f"{run.folder} has no personal model of client {client}; make it anew with  "
            f"calibre-fl resume {run.folder}"
        )
    return {name: tensor for name, tensor in own.items() if belongs(name, ("encoder",))}
