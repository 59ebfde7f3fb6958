"""Image files in folders: ``class/a.png``, or ``client/class/a.png`` where clients own images.

``train/`` and ``test/`` may stand above either; without them a test part is split off. A folder
``unlabelled`` where a class would be holds images that nobody labelled, and so does every folder
with a ``labels.csv`` beside its images: it says which of them somebody has labelled since. These
names may be in capitals.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibre.data import labels_file
from calibre.data.class_names import one_spelling
from calibre.data.formats import EncodedImage, Part, Raw, number_classes
from calibre.data.formats.given import Given, given_labels
from calibre.data.formats.own_output import RUN_FOLDERS, Folders, is_own, is_run, nothing_else
from calibre.data.pool import UNLABELLED
from calibre.errors import UserError

SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".dcm",
    ".dicom",
)  # fmt: skip
PARTS = ("train", "test")
NO_PARTS = ("val", "valid", "validation")  # though many people have them beside the others
NOBODY_KNOWS = ("unlabelled", "unlabeled")  # in place of a class
LAYOUT = (
    "one sub-folder per class (above them, if wanted, one per client; above all train/ and test/)"
)

SHOWN = 5  # names in a note


@dataclass(frozen=True)
class Listing:
    """What lies below a folder; hidden files and folders do not count, nor do Calibre's own."""

    images: tuple[tuple[Folders, str], ...]  # and the path; sorted
    others: tuple[str, ...]  # files of other kinds; sorted
    labels: tuple[tuple[Folders, str], ...]  # files called labels.csv; those above come first
    folders: frozenset[Folders]  # that a file may be in, below the place
    own: tuple[Folders, ...] = ()  # runs and bundles that lie among the images; sorted

    @property
    def files(self) -> list[str]:
        """All that decide what is read."""
        return [path for _, path in (*self.images, *self.labels)]

    @property
    def kinds_left_out(self) -> str:
        """The kinds of files that are not read, as a person says it; empty: there are none."""
        return _kinds(self.others)

    def of_kind(self, suffix: str) -> list[Path]:
        """Files of another kind."""
        return [Path(path) for path in self.others if path.lower().endswith(suffix)]


@dataclass(frozen=True)
class Listed:
    """An image to train on, as its place and labels.csv tell it; nothing is decoded."""

    path: str
    client: str | None  # whose folder it is in, where clients have folders
    label: str  # empty: none
    labels_file: Path | None  # where a label for it is written; None: its folder is its label


def survey(place: Path) -> Listing:
    """Everything below ``place``, from the names alone."""
    images: list[tuple[Folders, str]] = []
    others: list[str] = []
    labels: list[tuple[Folders, str]] = []
    seen: set[Folders] = set()
    filled: set[Folders] = set()
    own: set[Folders] = set()
    waiting: list[tuple[Folders, str, frozenset[tuple[int, int]]]]
    waiting = [((), str(place), frozenset())]
    while waiting:
        folders, path, above = waiting.pop()
        try:
            about = os.stat(path)
            if (here := (about.st_dev, about.st_ino)) in above:
                continue  # a link to a folder above would go on for ever
            with os.scandir(path) as found:
                entries = [entry for entry in found if not entry.name.startswith(".")]
        except OSError as error:
            raise UserError(f"the folder {_shown(path)} cannot be read: {error.strerror}") from None
        names = {entry.name for entry in entries}
        if folders and is_own(names):
            own.add(folders)
            continue
        if is_run(names):  # the images lie in a run's own folder
            entries = [entry for entry in entries if entry.name not in RUN_FOLDERS]
        seen.add(folders)
        for entry in entries:
            if os.path.isdir(entry.path):  # unlike the entry's own word, it takes any link
                inside = (*folders, one_spelling(entry.name))
                waiting.append((inside, entry.path, above | {here}))
                continue
            filled.add(folders)
            if entry.name.lower().endswith(SUFFIXES) or _is_nameless_dicom(entry):
                _check_name(entry.path)
                images.append((folders, entry.path))
            elif entry.name == labels_file.NAME:
                _check_name(entry.path)
                labels.append((folders, entry.path))
            else:
                others.append(entry.path)
    labels.sort(key=lambda found: (len(found[0]), found))
    return Listing(
        tuple(sorted(images)),
        tuple(sorted(others)),
        tuple(labels),
        frozenset(seen - nothing_else(own, seen, filled)),
        tuple(sorted(own)),
    )


def read(place: Path, listing: Listing) -> Raw:
    given = given_labels(listing.labels)
    images = _classified(listing, given)
    if not images:
        kinds = f", only files of other kinds ({_kinds(listing.others)})" if listing.others else ""
        raise UserError(
            f"{place} holds no images{kinds}; put images ({', '.join(SUFFIXES)}) in {LAYOUT}"
        )
    in_parts = _in_parts(place, images)
    depth = _depth(place, images, in_parts)
    rows = _rows(images, given, in_parts, depth)
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
        notes=(*_notes(listing, images, classes, depth, in_parts), *given.notes()),
        given=sum(os.path.normpath(path) in given.taken for _, _, path in rows["train"]),
        left_out=(
            *((_shown(path), "is of a kind that is not read") for path in listing.others),
            *given.left_out(),
        ),
    )


def _rows(
    images: Sequence[tuple[Folders, str]], given: Given, in_parts: bool, depth: int
) -> dict[str, list[tuple[str, str, str]]]:
    """Owner, label and path of every image, by part."""
    rows: dict[str, list[tuple[str, str, str]]] = {"train": [], "test": [], "unlabelled": []}
    for folders, path in images:
        part = folders[0].lower() if in_parts else "train"
        label = folders[-1]
        if _is_unlabelled(label):
            label = given.take(path)
        else:
            given.compare(path, label)
        if not label:
            if part == "test":
                raise UserError(
                    f"{path} is a test image without a label: nothing can be scored on it; put "
                    f"unlabelled images below train/, or take them away"
                )
            part = "unlabelled"
        rows[part].append((folders[-depth], label, path))
    return rows


def listed_images(place: Path) -> tuple[list[Listed], Given]:
    """All images below ``place`` but those to test on, with a label or without; what was given.

    Images that lie in ``place`` itself have none unless a ``labels.csv`` beside them gives it.
    """
    listing = survey(place)
    given = given_labels(listing.labels)
    images = [
        ((NOBODY_KNOWS[0],) if folders == () else folders, path)
        for folders, path in _classified(listing, given)
    ]
    depth = _depth(place, images, in_parts := _in_parts(place, images)) if images else 1
    found = []
    for folders, path in images:
        label, beside = folders[-1], None
        if _is_unlabelled(label):
            label, beside = given.take(path), Path(path).parent / labels_file.NAME
        else:
            given.compare(path, label)
        if not (in_parts and folders[0].lower() == "test"):
            client = folders[in_parts] if depth == 2 else None
            found.append(Listed(path, client, label, beside))
    return found, given


def _classified(listing: Listing, given: Given) -> list[tuple[Folders, str]]:
    """Every image in the folder of a class, or in ``unlabelled``."""
    return [
        (
            (*folders, NOBODY_KNOWS[0])
            if folders in given.beside and not (folders and _is_unlabelled(folders[-1]))
            else folders,
            path,
        )
        for folders, path in listing.images
    ]


def _is_unlabelled(name: str) -> bool:
    return name.lower() in NOBODY_KNOWS


def _in_parts(place: Path, images: Sequence[tuple[Folders, str]]) -> bool:
    """A class may be called "train": it names a part where nothing but parts is beside it."""
    if not all(len(folders) > 1 for folders, _ in images):
        return False
    above = {folders[0].lower(): folders[0] for folders, _ in images}
    parts, others = above.keys() & {*PARTS}, above.keys() - {*PARTS}
    if parts and others and others <= {*NO_PARTS}:
        more, beside = above[min(others)], above[max(parts)]
        raise UserError(
            f"{place / more} lies beside {beside}/, but images are to train on or to test on: move "
            f"those of {more}/ to train/ or to test/"
        )
    return not others


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UserError(f"{_shown(path)}: its name is not UTF-8; rename it") from None


def _shown(path: str) -> str:
    """A name that can be written, whatever bytes it is made of."""
    return path.encode(errors="surrogateescape").decode(errors="replace")


def _is_nameless_dicom(entry: "os.DirEntry[str]") -> bool:
    """Scanners call files IM000017 or 1.2.840.113619.2: no suffix, or a number."""
    suffix = os.path.splitext(entry.name)[1]
    if (
        (suffix and not suffix[1:].isdecimal())
        or entry.name == "DICOMDIR"
        or not os.path.isfile(entry.path)
    ):
        return False
    try:
        with open(entry.path, "rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def _depth(place: Path, images: Sequence[tuple[Folders, str]], in_parts: bool) -> int:
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


def _notes(
    listing: Listing,
    images: Iterable[tuple[Folders, str]],
    classes: Iterable[str],
    depth: int,
    in_parts: bool,
) -> Iterator[str]:
    if listing.own:
        names = ", ".join(repr(_shown("/".join(folders))) for folders in listing.own[:SHOWN])
        more = f" and {len(listing.own) - SHOWN:,} more" if len(listing.own) > SHOWN else ""
        yield f"Calibre's own runs and bundles, left out: {names}{more}"
    if listing.others:
        count = len(listing.others)
        yield f"files of other kinds, not read: {count:,} ({_kinds(listing.others)})"

    def without_images(level: int, known: Iterable[str]) -> str:
        there = (folders[level] for folders in listing.folders if len(folders) == level + 1)
        names = {name for name in there if not _is_unlabelled(name)}
        return ", ".join(repr(_shown(name)) for name in sorted(names - {*known}))

    if depth == 2 and (
        empty := without_images(int(in_parts), {folders[in_parts] for folders, _ in images})
    ):
        yield f"clients whose folders hold no image, left out: {empty}"
    if nowhere := without_images(depth - 1 + in_parts, classes):
        yield f"no image is of class {nowhere}: the class was left out"


def _kinds(others: Iterable[str]) -> str:
    kinds = Counter(_shown(os.path.splitext(path)[1].lower()) or "no suffix" for path in others)
    shown = [f"{count:,} {suffix}" for suffix, count in kinds.most_common(4)]
    return ", ".join(shown + (["..."] if len(kinds) > 4 else []))
