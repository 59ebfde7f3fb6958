"""What decoding brings to light: files that cannot be read, copies of test images, conversions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibre.data.copies import Copies, find_copies
from calibre.data.formats import Part, PixelArray, Shape, dicom, images, pick, rendering
from calibre.data.formats.decoders import block_size, decode
from calibre.errors import UserError
from calibre.wording import percent

UNREADABLE_AT_MOST = 0.1  # of all images; with more of them, something is wrong with the source
LISTED = 1_000  # names that a datasheet lists of one kind; the cache has all of them
MOST_SIDE = 4_096  # pixels of an image, as it is kept
SAMPLE = 1_000  # headers that a survey reads

SENTENCES = {
    rendering.TURNED: "photographs turned upright, as their EXIF says: {}",
    rendering.FLATTENED: "images with transparency laid on white: {}",
    rendering.CMYK: "images converted from CMYK: {}",
    rendering.DEEP: (
        "gray images of more than 8 bits, each stretched so that its 0.5th percentile is black and "
        "its 99.5th white: {}; absolute values are lost"
    ),
    rendering.DEEP_COLOUR: "colour images of 16 bits a colour, reduced to the upper 8: {}",
    rendering.MADE_GRAY: "colour images made gray, like the others: {}",
    rendering.ANIMATED: "animations, of which the first picture is used: {}",
    rendering.PAGES: (
        "TIFF files of several pages, of which the first is used: {}; save others that matter as "
        "files of their own"
    ),
    dicom.WINDOWED: "DICOM images shown in the window that their file names: {}",
    dicom.STRETCHED: (
        "DICOM images without a window, each stretched so that its 0.5th percentile is black and "
        "its 99.5th white: {}"
    ),
    dicom.INVERTED: "DICOM images of kind MONOCHROME1, shown inverted: {}",
}


class Settled(NamedTuple):
    """What became of the images of a source."""

    keep: npt.NDArray[np.bool_]  # [N]
    report: dict[str, Any]  # for a datasheet
    left_out: list[tuple[str, str]]  # every file that was left out, and why


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
        left_out: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.name = name
        self.parts = parts
        self.survey = survey
        self.size = size
        self.own = own
        self.notes = notes
        self.left_out = left_out  # before anything was decoded
        self.shape: Shape = survey.shape(size)
        if max(self.shape) > MOST_SIDE:
            height, width, _ = self.shape
            raise UserError(
                f"{name}: images of {width:,} x {height:,} pixels are too large to train on, "
                f"{MOST_SIDE:,} is the most; bring them to a size such as --set data.size=64"
            )
        self.problems: dict[int, str] = {}
        self.changes: Counter[str] = Counter()
        self.prints: list[npt.NDArray[np.void]] = []

    def __len__(self) -> int:
        return sum(len(part.labels) for part in self.parts)

    def blocks(self) -> Iterator[PixelArray]:
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

    def settle(self) -> Settled:
        """Which images to keep, and what there is to tell, once all blocks were taken."""
        keep = np.ones(len(self), np.bool_)
        keep[list(self.problems)] = False
        copies = self._copies() if self.own else Copies([], [])
        keep[[*copies.training, *copies.tests]] = False
        unread = [*zip(self._names([*self.problems]), self.problems.values(), strict=True)]
        copied, tests = self._names(copies.training), self._names(copies.tests)
        left_out = [
            *unread,
            *((name, "is the copy of a test image") for name in copied),
            *((name, "is a copy, and its client trains on too few images") for name in tests),
            *self.left_out,
        ]
        report = {
            "unreadable": {"count": len(unread), "files": dict(unread[:LISTED])},
            "copies_of_test_images": {"count": len(copied), "files": copied[:LISTED]},
            "test_images_of_no_client": {"count": len(tests), "files": tests[:LISTED]},
            "converted": dict(self.changes),
            "notes": [*self._notes(unread, copied, tests)],
        }
        return Settled(keep, report, left_out)

    def _problem(self, place: int, text: str) -> None:
        self.problems[place] = text
        if not self.own:
            raise UserError(f"{self.name} is damaged: {self._names([place])[0]} {text}")
        if len(self.problems) > UNREADABLE_AT_MOST * len(self):
            first = next(iter(self.problems))
            raise UserError(
                f"{self._names([first])[0]} {self.problems[first]}. With it, "
                f"{len(self.problems):,} of {len(self):,} images cannot be read, more than "
                f"{percent(UNREADABLE_AT_MOST, 0)}: too many to leave out"
            )

    def _copies(self) -> Copies:
        train, test = (len(part.labels) for part in self.parts[:2])
        owned = all(part.owners is not None for part in self.parts)
        copies = find_copies(
            np.concatenate(self.prints).tolist(),
            train,
            test,
            [owner for part in self.parts for owner in part.owners or ()] if owned else None,
            self.problems.keys(),
        )
        if len([i for i in copies.training if i < train]) == train:
            raise UserError(f"{self.name}: every training image is the copy of a test image")
        return copies

    def _names(self, places: Sequence[int]) -> list[str]:
        """What messages call these images, which ascend."""
        names: list[str] = []
        for part, inside in zip(self.parts, _by_part(self.parts, places), strict=True):
            if isinstance(part.images, np.ndarray):
                names += [f"image {place}" for place in inside]
            else:
                names += [image.name for image in pick(part.images, inside)]
        return names

    def _notes(
        self, unread: Sequence[tuple[str, str]], copied: Sequence[str], tests: Sequence[str]
    ) -> Iterator[str]:
        for name, text in unread[:1]:
            yield (
                f"images that cannot be read, left out: {len(unread):,} of {len(self):,}; "
                f"{name} {text}"
            )
        if copied:
            yield (
                f"images to train on that are copies of test images, left out: {len(copied):,}; "
                f"{copied[0]} is one"
            )
        if tests:
            yield (
                "test images of clients with too few images to train on, left out because others "
                f"train on the same: {len(tests):,}; {tests[0]} is one"
            )
        if self.changes[rendering.RESIZED] and self.size is None:
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
