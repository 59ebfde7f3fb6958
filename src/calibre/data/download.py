"""Fetch a known data set from its official place, checked, unpacked and put where it is looked for.

A download goes to a ``.part`` file that a later attempt, or a later run, continues. Only a file
with the published length and checksum is unpacked, and only a complete folder is moved into place.
"""

import gzip
import hashlib
import http.client
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from calibre.data.cache import Progress
from calibre.data.sources import find
from calibre.errors import UserError
from calibre.settings import nearest

ATTEMPTS = 5
PAUSE = 1.0  # seconds before the second attempt; doubles with each further one
TIMEOUT = 30.0  # seconds of silence
CHUNK = 1 << 20
MEMBERS = 100  # files in an archive


@dataclass(frozen=True)
class Remote:
    """A file as its publisher describes it."""

    url: str
    size: int  # bytes
    md5: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Download:
    """What to fetch for a data set, and the folder that it becomes."""

    files: tuple[Remote, ...]
    folder: str  # below root/name; an archive must hold a folder of this name
    unpacked: int  # bytes that an archive may unpack to


def _idx(base: str, *files: tuple[str, int, str]) -> Download:
    remotes = (Remote(f"{base}/{name}-ubyte.gz", size, md5) for name, size, md5 in files)
    return Download(tuple(remotes), "raw", 0)


RECIPES = {
    "cifar10": Download(
        (
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                170_052_171,
                "c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        "cifar-10-batches-bin",
        unpacked=200_000_000,
    ),
    "cifar100": Download(
        (
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                168_513_733,
                "03b5dce01913d631647c71ecec9e9cb8",
            ),
        ),
        "cifar-100-binary",
        unpacked=200_000_000,
    ),
    "stl10": Download(
        (
            Remote(
                "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
                2_640_397_119,
                "91f7769df0f17e558f3565bffb0c7dfb",
            ),
        ),
        "stl10_binary",
        unpacked=3_500_000_000,
    ),
    "mnist": _idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        ("train-images-idx3", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "fashion-mnist": _idx(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        ("train-images-idx3", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
}


def download(
    name: str,
    root: Path,
    progress: Progress | None = None,
    recipes: Mapping[str, Download] = RECIPES,
) -> Path:
    """Put the data set below ``root / name`` and return its folder; at once if it is there already.

    ``progress`` hears of bytes, over all files of the data set.
    """
    if name == "digits":
        raise UserError("digits is part of scikit-learn: there is nothing to download")
    if name not in recipes:
        raise UserError(f"cannot download '{name}': {nearest(name, recipes)}")
    found = find(name, root)
    if found:
        return found.place
    recipe = recipes[name]
    place = root / name / recipe.folder
    if place.exists():
        raise UserError(f"{place} is there but not complete; take it away and try again")
    staging = root / f".{name}.download"
    try:
        staging.mkdir(parents=True, exist_ok=True)
        ready = _fetch_all(recipe, staging, progress)
        place.parent.mkdir(exist_ok=True)
        ready.rename(place)
        shutil.rmtree(staging)
    except OSError as error:
        raise UserError(
            f"cannot store {name} in {root}: {error.strerror}; give another folder, or make room"
        ) from error
    finally:
        shutil.rmtree(staging / "ready", ignore_errors=True)
    return place


def _fetch_all(recipe: Download, staging: Path, progress: Progress | None) -> Path:
    """Everything the recipe names, as one complete folder inside ``staging``."""
    total = sum(remote.size for remote in recipe.files)

    def report(before: int, of_this_file: int) -> None:
        if progress:
            progress(before + of_this_file, total)

    ready = staging / "ready"
    shutil.rmtree(ready, ignore_errors=True)  # of a run that was killed
    parts: list[Path] = []
    before = 0
    for remote in recipe.files:
        parts.append(staging / f"{remote.name}.part")
        _fetch(remote, parts[-1], partial(report, before))
        before += remote.size
    ready.mkdir()
    for remote, part in zip(recipe.files, parts, strict=True):
        if remote.name.endswith(".tar.gz"):
            _unpack(part, remote, ready, recipe.unpacked)
            ready = ready / recipe.folder
            if not ready.is_dir():
                raise UserError(f"{remote.url} holds no folder {recipe.folder}")
        else:
            part.rename(ready / remote.name)
    return ready


def _fetch(remote: Remote, part: Path, progress: Callable[[int], None]) -> None:
    """Fill ``part``, going on where an earlier attempt broke off, and check it."""
    failures = 0
    had = _length(part)
    while trouble := _attempt(remote, part, progress):
        have = _length(part)
        failures = 1 if have > had else failures + 1
        had = have
        if failures == ATTEMPTS:
            raise UserError(
                f"{remote.url}: {trouble}; {ATTEMPTS} attempts in a row brought nothing more. What "
                "came so far is kept: run the same command again to go on from there"
            )
        time.sleep(PAUSE * 2 ** (failures - 1))
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, _md5).hexdigest()
    if digest != remote.md5:
        part.unlink()
        raise UserError(
            f"{remote.url}: the file has the checksum {digest} instead of the published "
            f"{remote.md5}: it was damaged or changed, and has been thrown away; try again later"
        )


def _attempt(remote: Remote, part: Path, progress: Callable[[int], None]) -> str:
    """One connection. Returns what went wrong, or nothing when the file is complete."""
    have = _length(part)
    if have == remote.size:
        return ""
    if have > remote.size:
        have = 0
    request = urllib.request.Request(remote.url)  # noqa: S310  the table holds only http and https
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code < 500 and error.code not in (408, 416, 429):
            raise UserError(
                f"{remote.url}: the server answers {error.code} {error.reason}; the file may have "
                "moved: get it by other means and say with data.root where it lies"
            ) from error
        if error.code == 416:
            part.unlink(missing_ok=True)
        return f"the server answers {error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        return f"no connection: {getattr(error, 'reason', error)}"
    with response:
        if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0  # the server ignores the range and starts again
        length = response.length  # None where the server does not say
        announced = remote.size if length is None else have + length
        if announced != remote.size:
            raise UserError(
                f"{remote.url}: the server offers {announced:,} bytes where {remote.size:,} were "
                "published: this is not the official file, or a page of a proxy or login"
            )
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            return _copy(response, file, remote.size, progress)


def _copy(response: IO[bytes], file: IO[bytes], size: int, progress: Callable[[int], None]) -> str:
    progress(file.tell())
    while file.tell() < size:
        try:
            chunk = response.read(min(CHUNK, size - file.tell()))
        except (OSError, http.client.HTTPException) as error:
            return f"the connection broke off after {file.tell():,} of {size:,} bytes: {error}"
        if not chunk:
            return f"the connection broke off after {file.tell():,} of {size:,} bytes"
        file.write(chunk)
        progress(file.tell())
    return ""


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)  # what the publishers publish


def _unpack(archive: Path, remote: Remote, folder: Path, limit: int) -> None:
    """Regular files and folders only, inside ``folder``, no more than ``limit`` bytes."""
    size = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for count, member in enumerate(tar):
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts:
                    raise UserError(f"{remote.url}: '{member.name}' would land outside its folder")
                if not (member.isreg() or member.isdir()):
                    raise UserError(f"{remote.url}: '{member.name}' is a link or device")
                size += member.size
                if size > limit or count >= MEMBERS:
                    raise UserError(f"{remote.url} unpacks to more than the data set can have")
                tar.extract(member, folder, filter="data")
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{remote.url} cannot be unpacked: {error}") from error
