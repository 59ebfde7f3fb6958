"""What decoding brings to light: files that cannot be read, copies of test images, conversions."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from calibre.data.formats import Part, Pixels, images, pick
from calibre.data.formats.decoders import block_size, decode
from calibre.errors import UserError

UNREADABLE_AT_MOST = 0.1  # of all images; with more of them, something is wrong with the source
LISTED = 1_000  # names that a datasheet lists of one kind
SAMPLE = 1_000  # headers that a survey reads

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
        decoded = decode(chain.from_iterable(encoded), self.shape) if encoded else ()
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
        unread = dict(zip(self._names([*self.problems]), self.problems.values(), strict=False))
        copied = self._names(copies)
        report = {
            "unreadable": {"count": len(self.problems), "files": unread},
            "copies_of_test_images": {"count": len(copies), "files": copied},
            "converted": dict(self.changes),
            "notes": [*self._notes(unread, len(copies), copied)],
        }
        return keep, report

    def _problem(self, place: int, text: str) -> None:
        self.problems[place] = text
        if not self.own:
            raise UserError(f"{self.name} is damaged: {self._names([place])[0]} {text}")
        if len(self.problems) > UNREADABLE_AT_MOST * len(self):
            first = next(iter(self.problems))
            raise UserError(
                f"{self._names([first])[0]} {self.problems[first]}. With it, "
                f"{len(self.problems):,} of {len(self):,} images cannot be read, more than "
                f"{UNREADABLE_AT_MOST:.0%}: too many to leave out"
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

    def _names(self, places: Sequence[int]) -> list[str]:
        """What messages call the first of these images, which ascend."""
        names: list[str] = []
        for part, inside in zip(self.parts, _by_part(self.parts, places[:LISTED]), strict=True):
            if isinstance(part.images, np.ndarray):
                names += [f"image {place}" for place in inside]
            else:
                names += [image.name for image in pick(part.images, inside)]
        return names

    def _notes(
        self, unread: Mapping[str, str], copies: int, copied: Sequence[str]
    ) -> Iterator[str]:
        for name, text in [*unread.items()][:1]:
            yield (
                f"images that cannot be read, left out: {len(self.problems):,} of {len(self):,}; "
                f"{name} {text}"
            )
        if copies:
            yield (
                f"images to train on that are copies of test images, left out: {copies:,}; "
                f"{copied[0]} is one"
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
        count = sum(len(part.labels) for part in parts)
        spread = range(0, count, -(-count // SAMPLE))
        some = [
            pick(part.images, inside)
            for part, inside in zip(parts, _by_part(parts, spread), strict=True)
            if not isinstance(part.images, np.ndarray)
        ]
        return images.survey(chain.from_iterable(some), count)
    kinds = {array.shape[1:] for array in arrays}
    if len(kinds) > 1 and (size is None or len({channels for *_, channels in kinds}) > 1):
        raise UserError(
            f"{name}: training and test images differ in shape: {' and '.join(map(str, kinds))}; "
            "bring all to one size with e.g. --set data.size=32, and to 1 or 3 channels"
        )
    sizes = Counter({(height, width): 1 for height, width, _ in kinds})
    return images.Survey(sizes, colour=arrays[0].shape[-1] == 3)


def _by_part(parts: Sequence[Part], places: Sequence[int]) -> list[npt.NDArray[np.intp]]:
    """Places among all images, which ascend, as places in each part."""
    ascending = np.array(places, np.intp)
    starts = [0, *accumulate(len(part.labels) for part in parts)]
    ends = np.searchsorted(ascending, starts)
    return [
        ascending[first:last] - start
        for start, (first, last) in zip(starts, pairwise(ends), strict=False)
    ]
