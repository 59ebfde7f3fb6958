"""What the encoders of a finished run make of its clients' test images."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from calibre.data.federation import Federation
from calibre.engine.crew import one_thread
from calibre.errors import UserError
from calibre.finished.run import FinishedRun
from calibre.local.features import encode
from calibre.report.figures.tsne import View, views
from calibre.report.representations import Representations
from calibre.report.rows import arrange
from calibre.report.runs import Run
from calibre.tensors import belongs

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
    finished = FinishedRun(run)
    federation = finished.federation
    chosen = _chosen(federation, clients)
    most = max(1, MOST // len(chosen))
    features, classes, owners = [], [], []
    seen: set[int] = set()
    with one_thread():
        for client in chosen:
            held = federation.client(client).test
            new = np.array([i for i, row in enumerate(held.tolist()) if row not in seen], np.int64)
            if len(new) == 0:
                continue
            if len(new) > most:
                new = new[np.linspace(0, len(new) - 1, most).astype(int)]
            seen.update(held[new].tolist())
            site, kept, test, _ = finished.prepared(client)
            own = {n: t for n, t in finished.personal(client).items() if belongs(n, ("encoder",))}
            site.load(finished.state.groups.get("model"), kept, own)
            encoder = site.network.get_submodule("encoder")
            features.append(encode(encoder, test.images[new], site.normalization).numpy())
            classes.append(test.labels[new].numpy())
            owners.append(np.full(len(new), client))
    return Representations(
        run.label,
        np.concatenate(features),
        np.concatenate(classes),
        np.concatenate(owners),
        federation.classes,
        {client: federation.client(client).name for client in chosen},
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
