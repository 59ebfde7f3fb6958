"""What decoding brings to light: files that cannot be read, copies of test images, conversions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from calibre.data.formats import EncodedImage, Part, Pixels, images
from calibre.data.formats.decoders import block_size, decode
from calibre.errors import UserError

UNREADABLE_AT_MOST = 0.1  # of all images; with more of them, something is wrong with the source
LISTED = 1_000  # names that a datasheet lists of one kind

Shape = tuple[int, int, int]
SENTENCES = {
    images.TURNED: "photographs turned upright, as their EXIF says: {}",
    images.FLATTENED: "images with transparency laid on white: {}",
    images.CMYK: "images converted from CMYK: {}",
    images.DEEP: "images of 16 bits reduced to the upper 8: {}",
    images.DIM: (
        "images of 16 bits without a value above 4,095, which came out almost black: {}; if yours "
        "have 10 or 12 bits, stretch them to 16 first"
    ),
    images.MADE_GRAY: "colour images made gray, like the others: {}",
}


class Intake:
    """The images of a source on their way into the cache: one pass over the blocks, then settle.

    A known data set must be whole. Of a user's own, what cannot be read is left out, and so is
    every training image that is the copy of a test image, pixel by pixel: whoever trained on it,
    even another client or without its label, would be scored on what it has seen.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Part],
        survey: images.Survey,
        size: int | None,
        own: bool,
        notes: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.parts = parts
        self.survey = survey
        self.size = size
        self.own = own
        self.notes = notes
        self.shape: Shape = survey.shape(size)
        self.problems: dict[int, str] = {}
        self.changes: Counter[str] = Counter()
        self.prints: list[npt.NDArray[np.void]] = []

    def __len__(self) -> int:
        return sum(len(part.labels) for part in self.parts)

    def blocks(self) -> Iterator[Pixels]:
        """All images, decoded, in the order of the parts; black where one cannot be read."""
        encoded = [part.images for part in self.parts if not isinstance(part.images, np.ndarray)]
        arrays = [part.images for part in self.parts if isinstance(part.images, np.ndarray)]
        decoded = decode([*chain.from_iterable(encoded)], self.shape) if encoded else ()
        start = 0
        for block in decoded:
            self.changes += block.changes
            self.prints.append(block.prints)
            for place, problem in block.problems.items():
                self._problem(start + place, problem)
            yield block.pixels
            start += len(block.pixels)
        for pixels in chain.from_iterable(
            images.resize(array, self.size, block_size(self.shape)) for array in arrays
        ):
            if self.own:
                self.prints.append(images.prints(pixels))
            yield pixels

    def settle(self) -> tuple[npt.NDArray[np.bool_], dict[str, Any]]:
        """Which images to keep, and what a datasheet shall say, once all blocks were taken."""
        keep = np.ones(len(self), np.bool_)
        keep[list(self.problems)] = False
        copies = self._copies() if self.own else []
        keep[copies] = False
        report = {
            "unreadable": {
                "count": len(self.problems),
                "files": {self._name(i): text for i, text in [*self.problems.items()][:LISTED]},
            },
            "copies_of_test_images": {
                "count": len(copies),
                "files": [self._name(i) for i in copies[:LISTED]],
            },
            "converted": dict(self.changes),
            "notes": [*self._notes(copies)],
        }
        return keep, report

    def _problem(self, place: int, text: str) -> None:
        self.problems[place] = text
        if not self.own:
            raise UserError(f"{self.name} is damaged: {self._name(place)} {text}")
        if len(self.problems) > UNREADABLE_AT_MOST * len(self):
            first = next(iter(self.problems))
            raise UserError(
                f"{self._name(first)} {self.problems[first]}. With it, {len(self.problems):,} of "
                f"{len(self):,} images cannot be read, more than {UNREADABLE_AT_MOST:.0%}: too "
                "many to leave out"
            )

    def _copies(self) -> list[int]:
        """Images to train on that are, pixel by pixel, test images too."""
        train, test = (len(part.labels) for part in self.parts[:2])
        prints = np.concatenate(self.prints).tolist()
        tested = {prints[i] for i in range(train, train + test) if i not in self.problems}
        others = chain(range(train), range(train + test, len(prints)))
        copies = [i for i in others if prints[i] in tested and i not in self.problems]
        if len([i for i in copies if i < train]) == train:
            raise UserError(f"{self.name}: every training image is the copy of a test image")
        return copies

    def _name(self, place: int) -> str:
        for part in self.parts:
            if place < len(part.images):
                image = part.images[place]
                return image.name if isinstance(image, EncodedImage) else f"image {place}"
            place -= len(part.images)
        raise IndexError(place)

    def _notes(self, copies: Sequence[int]) -> Iterator[str]:
        if self.problems:
            first = next(iter(self.problems))
            yield (
                f"images that cannot be read, left out: {len(self.problems):,} of {len(self):,}; "
                f"{self._name(first)} {self.problems[first]}"
            )
        if copies:
            yield (
                f"images to train on that are copies of test images, left out: {len(copies):,}; "
                f"{self._name(copies[0])} is one"
            )
        if self.changes[images.RESIZED] and self.size is None:
            height, width, _ = self.shape
            yield (
                f"images differ in size ({self.survey.words()}) and were brought to "
                f"{width} x {height}; data.size chooses another size"
            )
        for word, sentence in SENTENCES.items():
            if self.changes[word]:
                yield sentence.format(f"{self.changes[word]:,}")
        yield from self.notes


def survey_of(name: str, parts: Sequence[Part], size: int | None) -> images.Survey:
    """What the images of all parts say of themselves, before they are resized."""
    arrays = [part.images for part in parts if isinstance(part.images, np.ndarray)]
    if not arrays:
        return images.survey([*chain.from_iterable(part.images for part in parts)])
    kinds = {array.shape[1:] for array in arrays}
    if len(kinds) > 1 and (size is None or len({channels for *_, channels in kinds}) > 1):
        raise UserError(
            f"{name}: training and test images differ in shape: {' and '.join(map(str, kinds))}; "
            "bring all to one size with e.g. --set data.size=32, and to 1 or 3 channels"
        )
    sizes = Counter({(height, width): 1 for height, width, _ in kinds})
    return images.Survey(sizes, colour=arrays[0].shape[-1] == 3)
