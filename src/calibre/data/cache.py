"""Decoded pools on disk: plain .npy files that every process maps into memory.

An entry is written beside its place and renamed into it, so a killed process leaves nothing half
written there and two processes may build the same entry at once. ``pool.json`` records the length
of every file; an entry whose files have other lengths counts as absent and is built anew.
"""

import csv
import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from calibre.data.intake import Settled
from calibre.data.mapped import mapped_npy
from calibre.data.pool import Pool
from calibre.errors import UserError

Progress = Callable[[int, int], None]  # done so far, of how many
VERSION = 4  # of what an entry holds: a new one builds every entry anew
CHUNK = 2**24  # bytes handled at a time
UNFINISHED = ".building-"
LEFT_OUT = "left_out.csv"  # every file that is not in the pool, and why
A_DAY = 86400  # seconds after which an unfinished entry was left by a killed process


@dataclass(frozen=True)
class Draft:
    """A pool whose images are still to come, block by block: train, then test, then unlabelled.

    Only then is it known which of them to keep, and what there is to report.
    """

    name: str
    shape: tuple[int, int, int, int]  # of all images, [N, H, W, C]
    blocks: Iterable[npt.NDArray[np.uint8]]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    train: range
    test: range
    unlabelled: range
    owners: npt.NDArray[np.int32] | None
    owner_names: tuple[str, ...]
    settle: Callable[[], Settled]

    def kept(self, keep: npt.NDArray[np.bool_]) -> "Draft":
        """What is left of it. (Owners and classes keep their numbers.)"""
        ends = [0, *np.cumsum([keep[part].sum() for part in self._slices()]).tolist()]
        train, test, unlabelled = (range(*pair) for pair in pairwise(ends))
        return replace(
            self,
            shape=(ends[-1], *self.shape[1:]),
            labels=self.labels[keep],
            owners=None if self.owners is None else self.owners[keep],
            train=train,
            test=test,
            unlabelled=unlabelled,
        )

    def _slices(self) -> list[slice]:
        return [slice(part.start, part.stop) for part in (self.train, self.test, self.unlabelled)]


def user_folder() -> Path:
    """Where this user's data sets and pools lie unless the environment says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "calibre"


def entry(files: Iterable[Path | str], settings: Mapping[str, Any]) -> Path:
    """Where the pool of these files, read with these settings, is cached."""
    content = json.dumps([VERSION, [*map(_stamp, files)], dict(settings)], sort_keys=True)
    return _place() / hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _place() -> Path:
    """Where all entries lie."""
    base = os.environ.get("CALIBRE_CACHE")
    return Path(base) if base else user_folder() / "pools"


def _stamp(file: Path | str) -> tuple[str, int, int]:
    try:
        about = os.stat(file)
    except OSError:  # a dangling link: reading it will tell
        return os.path.abspath(file), -1, 0
    return os.path.abspath(file), about.st_size, about.st_mtime_ns


def read(folder: Path) -> Pool | None:
    """The pool of an entry; None where there is none, or a damaged one."""
    try:
        about = json.loads((folder / "pool.json").read_text(encoding="utf-8"))
        if any((folder / name).stat().st_size != size for name, size in about["bytes"].items()):
            return None
        owned = "owners.npy" in about["bytes"]
        pool = Pool(
            name=about["name"],
            images=np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False),
            labels=mapped_npy(folder / "labels.npy"),
            classes=tuple(about["classes"]),
            train=range(*about["train"]),
            test=range(*about["test"]),
            unlabelled=range(*about["unlabelled"]),
            fingerprint=about["fingerprint"],
            owners=mapped_npy(folder / "owners.npy") if owned else None,
            owner_names=tuple(about["owner_names"]),
            report=about["report"],
            place=folder,
        )
    except Exception:  # absent; or damaged, and then it fails in any way
        return None
    return pool if _is_sound(pool) else None


def find(fingerprint: str) -> Pool | None:
    """The pool of these very images, whatever has become of their source since."""
    for about in sorted(_place().glob("*/pool.json")):
        pool = read(about.parent)
        if pool is not None and pool.fingerprint == fingerprint:
            return pool
    return None


def _is_sound(pool: Pool) -> bool:
    """Whether arrays and counts of an entry fit together."""
    count = len(pool.labels)
    return (
        pool.images.dtype == np.uint8
        and pool.images.ndim == 4
        and pool.labels.dtype == np.int64
        and len(pool.images) == count == pool.unlabelled.stop
        and (pool.train.start, pool.train.stop) == (0, pool.test.start)
        and pool.test.stop == pool.unlabelled.start
        and (pool.owners is None or len(pool.owners) == count)
    )


def left_out(folder: Path) -> list[tuple[str, str]]:
    """Every file that is not in the pool of an entry, and why."""
    with (folder / LEFT_OUT).open(encoding="utf-8", newline="") as text:
        return [(name, why) for name, why in csv.reader(text)]


def write(folder: Path, draft: Draft, progress: Progress | None = None) -> Pool:
    """Decode ``draft`` into an entry and read it back from there."""
    size = math.prod(draft.shape)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        if size > shutil.disk_usage(folder.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        unfinished = folder.parent / (UNFINISHED + uuid.uuid4().hex)
        try:
            unfinished.mkdir()
            _fill(unfinished, draft, progress)
            return _put(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"cannot keep the decoded images in {folder.parent}: {error.strerror}; set "
            f"CALIBRE_CACHE to a folder with {size / 1e6:,.0f} MB of room"
        ) from error


def _fill(folder: Path, draft: Draft, progress: Progress | None) -> None:
    path = folder / "images.npy"
    total, done = draft.shape[0], 0
    digest = _digest_of(draft)  # of the pixels as they come: decoders keep the cores busy anyway
    with path.open("wb") as file:
        _write_header(file, draft.shape)
        for block in draft.blocks:
            file.write(block.data)
            digest.update(block.data)
            done += len(block)
            if progress:
                progress(done, total)
        assert done == total
        _sync(file)
    keep, report, left_out = draft.settle()
    if not keep.all():
        draft = draft.kept(keep)
        _compact(path, np.flatnonzero(keep), draft.shape)
        digest = _digest_of(draft)
        _add_images(digest, path)
    for name, array in (("labels", draft.labels), ("owners", draft.owners)):
        if array is not None:
            digest.update(array.tobytes())
            with (folder / f"{name}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                _sync(file)

    with (folder / LEFT_OUT).open("w", encoding="utf-8", newline="") as text:
        csv.writer(text).writerows(left_out)
        _sync(text)

    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    described = {
        "name": draft.name, **_about(draft), "fingerprint": digest.hexdigest(), "bytes": sizes,
        "report": report,
    }  # fmt: skip
    with (folder / "pool.json").open("w", encoding="utf-8") as text:
        json.dump(described, text, indent=1)
        _sync(text)


def _about(draft: Draft) -> dict[str, Any]:
    return {
        "classes": draft.classes,
        "train": (draft.train.start, draft.train.stop),
        "test": (draft.test.start, draft.test.stop),
        "unlabelled": (draft.unlabelled.start, draft.unlabelled.stop),
        "owner_names": draft.owner_names,
    }


def _digest_of(draft: Draft) -> "hashlib.blake2b":
    """The fingerprint, before pixels, labels and owners are added to it."""
    return hashlib.blake2b(json.dumps([draft.shape, _about(draft)]).encode(), digest_size=16)


def _add_images(digest: "hashlib.blake2b", path: Path) -> None:
    with path.open("rb+") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        while part := file.read(CHUNK):
            digest.update(part)
        os.fsync(file.fileno())


def _write_header(file: IO[bytes], shape: tuple[int, ...]) -> None:
    """Of a .npy file; numpy leaves room in it, so another number of images takes as many bytes."""
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _compact(path: Path, kept: npt.NDArray[np.intp], shape: tuple[int, ...]) -> None:
    """Move the images that are kept to the front of the file, and cut the rest off."""
    images = np.load(path, mmap_mode="r+", allow_pickle=False)
    offset, step = images.offset, max(1, CHUNK // max(1, images[0].nbytes))
    for start in range(0, len(kept), step):
        rows = kept[start : start + step]  # none lies before its new place
        images[start : start + len(rows)] = images[rows]
    images.flush()
    del images
    with path.open("rb+") as file:
        file.truncate(offset + int(np.prod(shape)))
        _write_header(file, shape)
        assert file.tell() == offset


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _put(finished: Path, folder: Path) -> Pool:
    """Rename into place, and read from there. What is there already is another's, or damaged."""
    while (pool := read(folder)) is None:
        try:
            finished.rename(folder)
        except OSError:
            if read(folder) is not None:  # another process was faster by a moment
                continue
            aside = tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder.parent)
            with aside, suppress(FileNotFoundError):  # another process may be as far as we are
                folder.rename(Path(aside.name, "damaged"))
    return pool


def _sweep(folder: Path) -> None:
    for left in folder.glob(f"{UNFINISHED}*"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > A_DAY:
                shutil.rmtree(left, ignore_errors=True)
