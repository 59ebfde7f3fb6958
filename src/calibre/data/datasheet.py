"""A federation's datasheet: what a reader wants to know of it, in words and numbers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibre.data.parts import Ints
from calibre.data.pool import Pool
from calibre.sections import FederationSettings
from calibre.wording import how_many

if TYPE_CHECKING:
    from calibre.data.federation import Federation


def datasheet(
    federation: "Federation",
    pool: Pool,
    settings: FederationSettings,
    seed: int,
    left_out: Mapping[str, str],
) -> dict[str, Any]:
    """``left_out`` says of owners why they are no clients."""
    per_client = {
        "labelled": federation.labelled.sizes,
        "unlabelled": federation.unlabelled.sizes,
        "test": federation.test.sizes,
        "classes": np.count_nonzero(federation.train_table, axis=1),
    }
    spread = {name: _spread(values) for name, values in per_client.items()}
    used = _uses(federation, pool)
    unused = {
        part: int((used[getattr(pool, part)] == 0).sum())
        for part in ("train", "test", "unlabelled")
    }
    shared = int((used[pool.train] > 1).sum())
    return {
        "description": _description(federation, pool, settings, spread, shared, unused),
        "pool": {
            "name": pool.name,
            "fingerprint": pool.fingerprint,
            "images": {part: len(getattr(pool, part)) for part in unused},
        },
        "settings": settings.model_dump(mode="json", exclude_none=True),
        "seed": seed,
        "clients": {"training": federation.training, "novel": len(federation.novel_ids)},
        "classes": list(pool.classes),
        "per_client": spread,
        "shared": shared,
        "unused": unused,
        "left_out": dict(left_out),
        "source": dict(pool.report),
        "notes": [
            *pool.report.get("notes", ()),
            *dealt_anew(pool, settings),
            *_notes(federation, left_out),
        ],
    }


def _uses(federation: "Federation", pool: Pool) -> Ints:
    """How often clients hold each image of the pool, [N]."""
    used = np.zeros(len(pool.labels), np.int64)
    for parts in (federation.labelled, federation.unlabelled, federation.test):
        np.add.at(used, parts.indices, 1)
    return used


def _description(
    federation: "Federation",
    pool: Pool,
    settings: FederationSettings,
    spread: Mapping[str, dict[str, float]],
    shared: int,
    unused: Mapping[str, int],
) -> str:
    made = {
        "iid": "Every client's images are taken at random (iid)",
        "quantity": f"Every client holds {settings.classes} classes (Q-non-iid)",
        "dirichlet": f"Every client's class mix is drawn from Dir({settings.alpha:g}) (D-non-iid)",
        "natural": "Every client holds the images of one owner",
    }[settings.scheme]
    left = "all are used"
    if unused["train"]:
        left = f"{unused['train']:,} of {len(pool.train):,} are not used"
    return (
        f"{how_many(len(federation), 'client')} of {pool.name}: {federation.training} train, "
        f"{len(federation.novel_ids)} are novel and only personalise. {made}. A client has "
        f"{_words(spread['labelled'])} labelled and {_words(spread['unlabelled'])} unlabelled "
        f"images to train on, of {_words(spread['classes'])} of {len(pool.classes)} classes, "
        f"and {_words(spread['test'])} test images. {shared or 'No'} training images are held "
        f"by more than one client; {left}."
    )


def dealt_anew(pool: Pool, settings: FederationSettings) -> Iterator[str]:
    """That the images' owners do not count, where they do not."""
    if pool.owners is not None and settings.scheme not in ("natural", "auto"):
        yield (
            f"{pool.name} says whose the images are, but federation.scheme = "
            f'"{settings.scheme}" deals them out to clients that are made up'
        )


def _notes(federation: "Federation", left_out: Mapping[str, str]) -> Iterator[str]:
    """What a reader of the results should know of the clients, in sentences."""
    if left_out:
        name, why = next(iter(left_out.items()))
        yield f"clients left out: {_some([*left_out])}; '{name}' has {why}"
    alone = np.flatnonzero(np.count_nonzero(federation.train_table, axis=1) == 1)
    if federation.names and alone.size:
        yield (
            f"clients with images of one class only: {_some([federation.names[i] for i in alone])};"
            " they score 100 % without having learned anything"
        )
    unseen = (federation.train_table.sum(0) == 0) & (federation.test_table.sum(0) > 0)
    if unseen.any():
        names = [federation.classes[i] for i in np.flatnonzero(unseen)]
        yield f"classes to be tested on that nobody trains on: {_some(names)}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _spread(values: Ints) -> dict[str, float]:
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def _words(spread: dict[str, float]) -> str:
    low, high = spread["min"], spread["max"]
    return f"{low}" if low == high else f"{low} to {high}"
