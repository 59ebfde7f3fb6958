"""One client's images as files: those that have a label, and those that somebody may give one."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from calibre.data.class_names import one_spelling
from calibre.data.formats import EncodedImage, Part, Shape
from calibre.data.formats.folder import Listed, listed_images
from calibre.errors import UserError
from calibre.finished.run import FinishedRun
from calibre.personal.arrival import decoded


@dataclass(frozen=True)
class Collection:
    client: str
    place: Path  # the folder that holds the images
    images: Sequence[Listed]
    classes: tuple[str, ...] = ()  # that are known before any label is
    novel: bool = True  # took no part in training the encoder
    test: Path | None = None  # a folder of images to measure with
    notes: tuple[str, ...] = ()  # what is odd about labels that are there already

    def decoded(self, shape: Shape) -> "Decoded":
        """The images that can be read, as an encoder of this shape takes them."""
        encoded = [EncodedImage(image.path, image.path) for image in self.images]
        found, unread = decoded(Part(encoded, np.arange(len(encoded))), shape)
        if not len(found.labels):
            raise UserError(f"none of the images in {self.place} can be read: {unread[0]}")
        return Decoded([self.images[i] for i in found.labels.tolist()], found.pixels, unread)


@dataclass(frozen=True)
class Decoded:
    images: list[Listed]
    pixels: Tensor  # uint8 [m, H, W, C]
    unread: list[str]  # what is wrong with the others


def of_folder(place: Path) -> Collection:
    """The images of a folder that no run needs to have seen."""
    if not place.is_dir():
        raise UserError(f"--data {place}: there is no such folder")
    images, given = listed_images(place)
    if not images:
        raise UserError(f"{place} holds no images")
    clients = sorted({image.client for image in images if image.client is not None})
    if len(clients) > 1:
        raise UserError(
            f"{place} holds images of {len(clients)} clients; give the folder of one, such as "
            f"{place / clients[0]}"
        )
    return Collection(place.resolve().name, place, images, notes=tuple(given.notes()))


def of_client(finished: FinishedRun, client: int) -> Collection | None:
    """The folder of a run's client; None where the run's images did not lie in clients' folders."""
    about = finished.results[client]
    name = about.name
    place = Path(os.path.expanduser(finished.experiment.data.source))
    if not place.is_dir():
        return None
    listed, given = listed_images(place)
    images = [image for image in listed if image.client == name]
    if not images:
        return None
    own = _first_called(name, Path(images[0].path).relative_to(place).parents, place)
    notes = tuple(given.notes(below=os.path.join(own, "")))
    test = next((at for at in place.glob("*/*") if _is_test(at, name)), None)
    return Collection(
        name, own, images, finished.federation.classes, about.novel,
        test if own.parent != place else None, notes,
    )  # fmt: skip


def _first_called(name: str, parents: Sequence[Path], place: Path) -> Path:
    """The folder of a client, of all that an image of its own is in."""
    return next(place / at for at in reversed(parents) if one_spelling(at.name) == name)


def _is_test(place: Path, client: str) -> bool:
    called = place.parent.name.lower(), one_spelling(place.name)
    return called == ("test", client) and place.is_dir()
