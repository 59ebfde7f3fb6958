"""Image files in folders: ``class/a.png``, or ``client/class/a.png`` where clients own images.

``train/`` and ``test/`` may stand above either; without them a test part is split off. A folder
``unlabelled`` where a class would be holds images that nobody labelled.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibre.data.formats import EncodedImage, Part, Raw, number_classes
from calibre.data.pool import UNLABELLED
from calibre.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
NOBODY_KNOWS = ("unlabelled", "unlabeled")  # in place of a class
LAYOUT = (
    "one sub-folder per class (above them, if wanted, one per client; above all train/ and test/)"
)


@dataclass(frozen=True)
class Listing:
    """What lies below a folder; hidden files and folders do not count."""

    images: tuple[tuple[tuple[str, ...], str], ...]  # folders below the place, and the path; sorted
    others: Counter[str]  # files of other kinds, by suffix
    empty: frozenset[tuple[str, ...]]  # folders with nothing in them

    @property
    def files(self) -> list[str]:
        return [path for _, path in self.images]


def survey(place: Path) -> Listing:
    """Everything below ``place``, from the names alone."""
    images: list[tuple[tuple[str, ...], str]] = []
    others: Counter[str] = Counter()
    empty = set()
    waiting: list[tuple[tuple[str, ...], str, frozenset[tuple[int, int]]]]
    waiting = [((), str(place), frozenset())]
    while waiting:
        folders, path, above = waiting.pop()
        about = os.stat(path)
        if (here := (about.st_dev, about.st_ino)) in above:
            continue  # a link to a folder above would go on for ever
        with os.scandir(path) as found:
            entries = [entry for entry in found if not entry.name.startswith(".")]
        if folders and not entries:
            empty.add(folders)
        for entry in entries:
            if entry.is_dir():
                waiting.append(((*folders, entry.name), entry.path, above | {here}))
            elif entry.name.lower().endswith(SUFFIXES) and (entry.is_file() or entry.is_symlink()):
                _check_name(entry.path)
                images.append((folders, entry.path))
            else:
                others[os.path.splitext(entry.name)[1].lower() or "no suffix"] += 1
    return Listing(tuple(sorted(images)), others, frozenset(empty))


def read(place: Path, listing: Listing) -> Raw:
    images = listing.images
    if not images:
        kinds = f", only files of other kinds ({_kinds(listing.others)})" if listing.others else ""
        raise UserError(
            f"{place} holds no images{kinds}; put images ({', '.join(SUFFIXES)}) in {LAYOUT}"
        )
    # a class may be called "train": it names a part only where nothing but parts is beside it
    in_parts = all(len(folders) > 1 and folders[0] in ("train", "test") for folders, _ in images)
    depth = _depth(place, images, in_parts)
    rows: dict[str, list[tuple[str, str, str]]] = {"train": [], "test": [], "unlabelled": []}
    for folders, path in images:
        part = folders[0] if in_parts else "train"
        if folders[-1] in NOBODY_KNOWS:
            if part == "test":
                raise UserError(
                    f"{path} is a test image without a label: nothing can be scored on it; put "
                    f"unlabelled images below train/, or take them away"
                )
            part = "unlabelled"
        rows[part].append((folders[-depth], folders[-1], path))
    if not rows["train"]:
        only = "in test/ but none in train/" if rows["test"] else "but none with a label"
        raise UserError(f"{place} has images {only}; put those to train on in {LAYOUT}")
    classes, labels = number_classes(
        place, *([row[1] for row in rows[part]] for part in ("train", "test"))
    )
    nothing = np.full(len(rows["unlabelled"]), UNLABELLED, np.int64)
    train, test, unlabelled = (
        Part(
            [EncodedImage(path, path) for _, _, path in part],
            part_labels,
            [owner for owner, _, _ in part] if depth == 2 else None,
        )
        for part, part_labels in zip(rows.values(), [*labels, nothing], strict=True)
    )
    return Raw(
        classes,
        train,
        test if rows["test"] else None,
        unlabelled if rows["unlabelled"] else None,
        notes=tuple(_notes(listing, classes, depth + in_parts)),
    )


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = path.encode(errors="surrogateescape").decode(errors="replace")
        raise UserError(f"{shown}: its name is not UTF-8; rename it") from None


def _depth(place: Path, images: Sequence[tuple[tuple[str, ...], str]], in_parts: bool) -> int:
    """How many folders a file is in, below train/ and test/: 1, or 2 where clients own images."""
    depths = {len(folders) - in_parts for folders, _ in images}
    if len(depths) == 1 and depths <= {1, 2}:
        return depths.pop()
    usual = Counter(len(folders) - in_parts for folders, _ in images).most_common(1)[0][0]
    odd = next(
        path
        for folders, path in images
        if (depth := len(folders) - in_parts) not in (1, 2) or depth != usual
    )
    raise UserError(f"{odd} is not where the others suggest; {place} needs {LAYOUT}")


def _notes(listing: Listing, classes: Iterable[str], depth: int) -> Iterable[str]:
    if listing.others:
        yield (
            f"files of other kinds, not read: {listing.others.total():,} ({_kinds(listing.others)})"
        )
    empty = {folders[-1] for folders in listing.empty if len(folders) == depth}
    if nowhere := sorted(empty - {*classes, *NOBODY_KNOWS}):
        yield f"no image is of class {', '.join(map(repr, nowhere))}: the class was left out"


def _kinds(others: Counter[str]) -> str:
    shown = [f"{count:,} {suffix}" for suffix, count in others.most_common(4)]
    return ", ".join(shown + (["..."] if len(others) > 4 else []))
