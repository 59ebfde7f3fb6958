"""The images that a client should label next, by their names and with the reason in words."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibre import rng
from calibre.calibration.typical import Suggestion, suggest
from calibre.data.names import names
from calibre.errors import UserError
from calibre.finished.collection import Collection
from calibre.finished.label_store import LabelStore
from calibre.finished.newcomer import check_encoder, newcomers_site
from calibre.finished.run import FinishedRun
from calibre.local.features import encode
from calibre.local.site import Site
from calibre.personal.arrival import Arrived, Images
from calibre.personal.bundle import Bundle


@dataclass(frozen=True)
class Suggested:
    image: str  # its path; a number where the source has no files
    cluster: int
    size: int
    typicality: float
    reason: str


@dataclass(frozen=True)
class Suggestions:
    images: list[Suggested]  # in the order in which to label them
    unlabelled: int  # images that nobody has looked at, of which these are some
    labelled: int
    unsure: int  # looked at, without a label
    files: bool  # whether the images are files
    notes: list[str]


def suggest_in(collection: Collection, model: FinishedRun | Bundle, count: int) -> Suggestions:
    """From files, by the encoder of a run or of a bundle."""
    if isinstance(model, Bundle):
        found = collection.decoded(model.card.preprocessing.shape)
        encoder = model.predictor.network.get_submodule("encoder.encoders.0")
        encodings = encode(encoder, found.pixels, model.card.preprocessing.normalization)
    else:
        check_encoder(model)
        found = collection.decoded(model.preprocessing.shape)
        site = site_of(model, found.pixels)
        encodings = encode(site.network.get_submodule("encoder"), site.images, site.normalization)
    store = LabelStore(found.images)
    seen = {i: row.label for i in range(len(found.images)) if (row := store.row(i)) is not None}
    paths = [image.path for image in found.images]
    unsure = sum(not label for label in seen.values())
    notes = [*(f"left out: {text}" for text in found.unread), *collection.notes]
    chosen = suggest(encodings, seen, count, stream())
    return Suggestions(
        _told(chosen, paths), len(paths) - len(seen), len(seen) - unsure, unsure, True, notes
    )


def suggest_of_run(finished: FinishedRun, client: int, count: int) -> Suggestions:
    """Of a run's client whose images do not lie in a folder of its own."""
    check_encoder(finished)
    held, pool = finished.federation.client(client), finished.pool
    rows = [*held.labelled.tolist(), *held.unlabelled.tolist()]
    site = finished.prepared(client).site
    images = torch.from_numpy(pool.images[rows])
    encodings = encode(site.network.get_submodule("encoder"), images, site.normalization)
    known = names(finished.experiment.data, pool)
    called = [known[row] if known else f"image {row}" for row in rows]
    labelled = len(held.labelled)
    found = suggest(encodings, range(labelled), count, stream())
    files = known is not None
    return Suggestions(_told(found, called), len(called) - labelled, labelled, 0, files, [])


def site_of(finished: FinishedRun, pixels: Tensor) -> Site:
    """The run's network as it meets images whose labels are told later."""
    none = Images(pixels[:0], torch.zeros(0, dtype=torch.int64))
    return newcomers_site(finished, Arrived((), none, None, pixels, ()))


def stream() -> torch.Generator:
    """The same for everybody: suggestions depend on images and labels alone."""
    return rng.stream(0, "suggestions")


def in_words(found: Suggestion, images: int) -> str:
    share = 100 * found.size / images
    if found.size == 1:
        return "looks like no other image"
    return (
        f"the most typical of {found.size:,} images that look alike ({share:.0f} % of all) and "
        "have no label yet"
    )


def _told(found: Sequence[Suggestion], called: list[str]) -> list[Suggested]:
    return [
        Suggested(
            called[row.index], row.cluster, row.size, row.typicality, in_words(row, len(called))
        )
        for row in found
    ]


def check_some_left(found: Suggestions) -> None:
    if not found.images:
        raise UserError(
            "there is nothing to suggest: all images have a label"
            + (f", but for {found.unsure:,} that somebody was not sure of" if found.unsure else "")
            if not found.unlabelled
            else f"there is nothing to suggest: the {found.unlabelled:,} images without a label "
            "look like some that have one"
        )
