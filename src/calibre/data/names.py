"""What the images of a pool are called at their source: the pool itself keeps pixels only."""

from collections import Counter

import numpy as np

from calibre.data.pool import Pool
from calibre.data.sources import left_out, locate, read_found
from calibre.data.splitting import split
from calibre.errors import UserError
from calibre.sections import DataSettings


def names(settings: DataSettings, pool: Pool) -> list[str] | None:
    """The path (or the row of a table) of every image of the source's pool, in its order.

    None where the source is arrays, whose images have no names. The source is listed again; what
    was left out of the pool is left out here by its name.
    """
    found = locate(settings)
    raw = read_found(found)
    train, test = (raw.train, raw.test) if raw.test else split(found.name, raw.train, settings)
    listed = []
    for part in (train, test, *([raw.unlabelled] if raw.unlabelled else [])):
        if isinstance(part.images, np.ndarray):
            return None
        listed += [image.name for image in part.images]
    gone = Counter(name for name, _ in left_out(settings))
    kept = []
    for name in listed:
        if gone[name]:
            gone[name] -= 1
        else:
            kept.append(name)
    if len(kept) != len(pool.labels):
        raise UserError(
            f"{found.place} lists {len(kept):,} images where its pool has {len(pool.labels):,}: "
            "it changes while it is read; try again"
        )
    return kept
