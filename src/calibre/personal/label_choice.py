"""Which of a client's labels make its personal model, where not all of them may (personal.labels).

- ``random``: the same as ``federation.label_count`` would leave a client that trains with labels;
- ``class``: evenly by class;
- ``typical``: of as many clusters of the client's encodings as labels are wanted, the most typical
  image each. The encoder alone decides: no label is looked at before it is chosen.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from calibre import rng
from calibre.calibration.typical import suggest
from calibre.data.dealing import keep_labels
from calibre.data.parts import Parts
from calibre.local.features import encode
from calibre.local.site import Site


def with_chosen_labels(site: Site) -> Site:
    """The client with as many labels as its settings allow; its other images have none.

    Its network must hold the encoder that is to choose.
    """
    wanted = site.personal.labels
    if wanted is None or wanted >= site.labelled:
        return site
    by_class = site.personal.label_choice == "class"
    typical = site.personal.label_choice == "typical"
    chosen = most_typical(site, wanted) if typical else drawn(site, wanted, by_class)
    others = torch.ones(len(site.images), dtype=torch.bool)
    others[chosen] = False
    order = torch.cat([chosen, torch.nonzero(others)[:, 0]]).to(site.device)
    labels = site.labels[order]
    labels[wanted:] = -1
    return replace(
        site,
        images=site.images[order],
        labels=labels,
        labelled=wanted,
        labels_by_class=site.labels_by_class or by_class,
    )


def drawn(site: Site, wanted: int, by_class: bool) -> Tensor:
    """Rows, ascending."""
    images = Parts(np.arange(site.labelled, dtype=np.int32), np.array([0, site.labelled]))
    labels = site.labels[: site.labelled].cpu().numpy()
    stream = partial(rng.numpy_stream, site.seed, "federation/labels", site.client)
    kept = keep_labels(
        images, labels, np.array([wanted]), by_class, streams=lambda client: stream()
    )
    return torch.from_numpy(np.flatnonzero(kept))


def most_typical(site: Site, wanted: int) -> Tensor:
    """Rows, those that stand for most images first.

    Clusters may come out empty: then what is still wanted is chosen anew, beside what is known.
    """
    encoder = site.network.get_submodule("encoder")
    z = encode(encoder, site.images[: site.labelled], site.normalization).cpu()
    chosen: list[int] = []
    while len(chosen) < wanted:
        generator = rng.stream(site.seed, "label-choice", site.client, len(chosen))
        found = [one.index for one in suggest(z, chosen, wanted - len(chosen), generator)]
        rest = [row for row in range(site.labelled) if row not in set(chosen)]
        chosen += found or rest[: wanted - len(chosen)]
    return torch.tensor(chosen)
