"""From a name, a folder or a file to a pool of decoded images."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, chain
from pathlib import Path

import numpy as np

from calibre.data import cache, labels_file
from calibre.data.class_names import odd_names
from calibre.data.facts import Facts
from calibre.data.formats import Part, Raw, csvtable, folder, npz, parquet
from calibre.data.formats.images import Survey
from calibre.data.formats.known import KNOWN, Known
from calibre.data.intake import Intake, survey_of
from calibre.data.pool import Pool
from calibre.data.splitting import owners_of, split
from calibre.errors import UserError
from calibre.sections import DataSettings
from calibre.settings import look_up, nearest


@dataclass(frozen=True)
class Found:
    """A source on this disk, not yet read."""

    name: str
    place: Path
    files: Sequence[Path | str]  # that decide what it holds
    read: Callable[[], Raw]
    content: str = ""  # a hash of what it holds, where no files decide that

    @cached_property
    def raw(self) -> Raw:
        """What it holds, checked; read once, however often it is asked for."""
        return read_found(self)


@dataclass(frozen=True)
class SourceRow:
    """A row of ``calibre-fl data list``."""

    name: str
    known: Known  # what it is: about, shape, counts
    found: Path | None  # where it lies on this machine
    get: str  # the command that fetches it; empty where it is found


def load(
    settings: DataSettings, progress: cache.Progress | None = None, found: Found | None = None
) -> Pool:
    """The pool of a source: decoded the first time, mapped from the cache ever after.

    ``found`` is what :func:`locate` gave, where somebody has looked already.
    """
    found = found or locate(settings)
    entry = _entry(found, settings)
    return cache.read(entry) or cache.write(entry, _draft(found, settings), progress)


def read(settings: DataSettings) -> Raw:
    """What a source holds, checked; images are still to be decoded."""
    return read_found(locate(settings))


def left_out(settings: DataSettings) -> list[tuple[str, str]]:
    """Every file of a source that is not in its pool, and why; after :func:`load`."""
    return cache.left_out(_entry(locate(settings), settings))


def _entry(found: "Found", settings: DataSettings) -> Path:
    chosen = settings.model_dump(mode="json", exclude={"root"})
    return cache.entry(found.files, chosen | ({"content": found.content} if found.content else {}))


def describe(root: Path | None = None) -> list[SourceRow]:
    """Every known data set and whether it is on this machine; looks at names of files only."""
    rows = []
    for name, known in KNOWN.items():
        found = find(name, root)
        place = found.place if found else None
        get = "" if found else f"calibre-fl data download {name}"
        rows.append(SourceRow(name, known, place, get))
    return rows


def data_root(root: Path | None = None) -> Path:
    """Where known data sets lie: ``root``, else $CALIBRE_DATA, else the user's cache folder."""
    if root is not None:
        return Path(os.path.expanduser(root))
    elsewhere = os.environ.get("CALIBRE_DATA")
    return Path(elsewhere) if elsewhere else cache.user_folder() / "data"


def find(name: str, root: Path | None = None) -> Found | None:
    """A known data set, in the first of its layouts that is complete."""
    for layout in KNOWN[name].layouts:
        for place in (data_root(root) / below for below in layout.folders):
            matches = [_files(place, pattern) for pattern in layout.files]
            if all(matches):
                matches += [_files(place, pattern) for pattern in layout.optional]
                return Found(name, place, [*chain(*matches)], partial(layout.read, place))
    return None


def _files(place: Path, pattern: str) -> list[Path]:
    return [path for path in sorted(place.glob(pattern)) if path.is_file()]


def locate(settings: DataSettings) -> Found:
    """The source that the settings name, or where we looked for it."""
    if settings.source not in KNOWN:
        return _own(settings)
    found = find(settings.source, settings.root)
    if found is None:
        name, root = settings.source, data_root(settings.root)
        folders = [below for layout in KNOWN[name].layouts for below in layout.folders]
        raise UserError(
            f"{name} was not found in {root} (looked for {', '.join(dict.fromkeys(folders))}); "
            f"get it with `calibre-fl data download {name}`, or say with data.root or "
            "$CALIBRE_DATA where it lies"
        )
    return found


def _own(settings: DataSettings) -> Found:
    """A file or folder of the user's, or what a function of theirs returns."""
    source = settings.source
    place = Path(os.path.expanduser(source))
    if not os.path.exists(place):  # unlike Path's, it takes any name
        if ":" in source:
            return _returned(source)
        raise UserError(
            f"data.source = '{source}': there is no such folder or file, and no data set of that "
            f"name; {nearest(source, KNOWN)}"
        )
    name = place.resolve().stem
    columns = (settings.image_column, settings.label_column, settings.client_column)
    if place.is_dir():
        listing = folder.survey(place)
        if tables := listing.of_kind(".parquet"):
            _check_files(tables)
            return Found(name, place, tables, partial(parquet.read, place, *columns, files=tables))
        return Found(name, place, listing.files, partial(folder.read, place, listing))
    _check_files([place])
    if place.suffix == ".npz":
        return Found(name, place, [place], partial(npz.read, place))
    if place.suffix in csvtable.SUFFIXES:
        rows = csvtable.rows(place, *columns)
        files = [row.image.content for row in rows if isinstance(row.image.content, str)]
        return Found(name, place, [place, *files], partial(csvtable.read, place, rows))
    if place.suffix == ".parquet":
        return Found(name, place, [place], partial(parquet.read, place, *columns))
    raise UserError(
        f"data.source = '{source}': a file must be an .npz, a .parquet or a .csv file; images of "
        f"other kinds go in a folder, {folder.LAYOUT}"
    )


def _check_files(files: Iterable[Path]) -> None:
    for file in files:
        if not file.is_file():
            raise UserError(f"{file} is a pipe or a device, or a link to one: give a file")


def _returned(source: str) -> Found:
    """Arrays named as in an .npz file. The function is called every time: nothing goes stale."""
    function = look_up("data.source", source, {})
    try:
        returned = function()
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"data.source = '{source}' fails: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(returned, Mapping):
        raise UserError(
            f"data.source = '{source}' returns {type(returned).__name__}: return a dict of arrays, "
            "such as {'images': ..., 'labels': ...}"
        )
    arrays = {key: np.asarray(value) for key, value in returned.items()}
    content = hashlib.blake2b(digest_size=16)
    for key, array in sorted(arrays.items()):
        if array.dtype == object:
            raise UserError(f"data.source = '{source}': '{key}' is not an array of one type")
        content.update(f"{key} {array.dtype} {array.shape}".encode())
        content.update(np.atleast_1d(np.ascontiguousarray(array)).view(np.uint8).data)
    name = source.rpartition(":")[2]
    read = partial(npz.from_arrays, source, arrays)
    return Found(name, Path(source), [], read, content.hexdigest())


def read_found(found: Found) -> Raw:
    """What the source holds, checked."""
    try:
        raw = found.read()
    except OSError as error:  # no permission, a disk that fails
        raise UserError(f"{found.name} cannot be read: {error}") from error
    for part in filter(None, (raw.train, raw.test, raw.unlabelled)):
        _check(found.name, part, raw.classes, labelled=part is not raw.unlabelled)
    if not len(raw.train.labels):
        raise UserError(f"{found.place} holds no images to train on: it needs some with labels")
    if raw.unlabelled and (raw.unlabelled.owners is None) != (raw.train.owners is None):
        raise UserError(
            f"{found.name}: say of labelled and unlabelled images, or of neither, whose they are"
        )
    return replace(raw, notes=(*raw.notes, *odd_names(raw.classes)))


def _draft(found: Found, settings: DataSettings) -> cache.Draft:
    raw = found.raw
    own = settings.source not in KNOWN
    train, test = (raw.train, raw.test) if raw.test else split(found.name, raw.train, settings)
    parts = [train, test] + ([raw.unlabelled] if raw.unlabelled else [])
    survey = survey_of(found.name, parts, settings.size)
    given = [f"images with a label from {labels_file.NAME}: {raw.given:,}"] if raw.given else []
    notes = (*given, *raw.notes)
    intake = Intake(found.name, parts, survey, settings.size, own, notes, raw.left_out)
    ends = list(accumulate(len(part.labels) for part in parts))
    owners, owner_names = owners_of(parts)
    return cache.Draft(
        name=found.name,
        shape=(ends[-1], *intake.shape),
        blocks=intake.blocks(),
        labels=np.concatenate([part.labels for part in parts]),
        classes=raw.classes,
        train=range(ends[0]),
        test=range(ends[0], ends[1]),
        unlabelled=range(ends[1], ends[-1]),
        owners=owners,
        owner_names=owner_names,
        settle=intake.settle,
    )


def facts(settings: DataSettings, found: Found | None = None) -> Facts:
    """What a source says of itself, from names, tables and headers: nothing is decoded."""
    found = found or locate(settings)
    raw = found.raw
    parts = [part for part in (raw.train, raw.test, raw.unlabelled) if part is not None]
    owners, names = owners_of([part for part in (raw.train, raw.test) if part is not None])
    labels = raw.train.labels
    rows = np.zeros_like(labels) if owners is None else owners[: len(labels)]
    room = max(1, len(names)) * len(raw.classes)
    cells = np.bincount(rows * len(raw.classes) + labels, minlength=room)
    survey = survey_of(found.name, parts, settings.size)
    if settings.size:
        survey = Survey(Counter({(settings.size, settings.size): 1}), survey.colour)
    return Facts(
        name=found.name,
        known=settings.source in KNOWN,
        table=cells.reshape(-1, len(raw.classes)),
        owned=owners is not None,
        tested=raw.test is not None,
        unlabelled=len(raw.unlabelled.labels) if raw.unlabelled else 0,
        size=survey.shape()[:2] if survey.alike else None,
        sizes=survey.words(),
        common_size=survey.common_size(),
        channels=survey.shape()[2],
    )


def _check(name: str, part: Part, classes: tuple[str, ...], labelled: bool) -> None:
    labels = part.labels
    if isinstance(part.images, np.ndarray) and 0 in part.images.shape[1:]:
        raise UserError(f"{name} has images without a pixel: their shape is {part.images.shape}")
    if len(part.images) != len(labels):
        raise UserError(f"{name} has {len(part.images):,} images but {len(labels):,} labels")
    if part.owners is not None and len(part.owners) != len(labels):
        raise UserError(f"{name} has {len(labels):,} images but {len(part.owners):,} clients")
    if labelled and len(labels) and not (labels.min() >= 0 and labels.max() < len(classes)):
        raise UserError(
            f"{name} has labels from {labels.min()} to {labels.max()}, but {len(classes)} classes: "
            f"labels must go from 0 to {len(classes) - 1}"
        )
