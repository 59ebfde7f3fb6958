"""Files that are whole or absent, whenever the power fails."""

import errno
import hashlib
import json
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from calibre.errors import UserError

LACKING = {  # of a machine, not of a file's content: who puts it right can simply go on
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file may not become so large (ulimit -f says how large)",
    errno.ENOMEM: "there is no memory left",
    errno.ELOOP: "links lead in a circle",
    errno.ESTALE: "the file system was taken away",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission is missing",
    errno.EPERM: "permission is missing",
    errno.EMFILE: "too many files are open (ulimit -n says how many may be)",
    errno.ENFILE: "too many files are open on this machine",
    errno.EIO: "the disk does not answer",
    errno.ENAMETOOLONG: "the name is too long for this file system",
    errno.EISDIR: "there is a folder where a file belongs",
    errno.ENOTDIR: "there is a file where a folder belongs",
}

LARGEST_TOML = 2**24  # bytes
DEEPEST_TOML = 32  # tables and lists within each other
TOO_DEEP = f"its tables or lists are nested more than {DEEPEST_TOML} deep"


def lacking(error: BaseException) -> str | None:
    """What this machine lacks, and where, if that is what an error tells of."""
    if not isinstance(error, OSError) or error.errno not in LACKING:
        return None
    place = error.filename2 or error.filename
    return LACKING[error.errno] + (f": {place}" if place else "")


@contextmanager
def in_words(afterwards: str) -> Iterator[None]:
    """Tell of what the machine lacks in one message that ends with what to do ``afterwards``."""
    try:
        yield
    except OSError as error:
        if (said := lacking(error)) is None:
            raise
        raise UserError(f"{said}; {afterwards}") from None


def write_atomic(path: Path, content: bytes | str, private: bool = False) -> None:
    """Write to a temporary name, force it to disk, then rename: never half a file.

    A private one can be read by its owner alone, from its first byte on.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.is_char_device() or path.is_block_device():  # renaming would put a file in its place
        raise UserError(f"{path} is a device: say which file to write")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    mode = 0o600 if private else 0o666
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def open_regular(path: Path | str) -> BufferedReader:
    """Open a file that somebody else may have put there; a pipe or device might never end.

    Whatever it is, opening does not wait, and a link counts as what it leads to.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def private_folder(folder: Path) -> Path:
    """A folder that its owner alone may enter, made if need be: for keys, runs, a site's state."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise UserError(f"cannot use {folder}: {error.strerror}") from None
    return folder


def inside(folder: Path, name: str) -> Path:
    """The place of this name in a folder; names that would lead out of it are refused."""
    if name in ("", ".", "..") or any(c in "/\\" or not c.isprintable() for c in name):
        raise UserError(f"{name!r} cannot be the name of a folder: leave out '/', '\\' and '..'")
    return folder / name


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text in TOML; ValueError says what is wrong with it."""
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    _check_toml(values)
    return values


def _check_toml(value: Any, depth: int = 0) -> None:
    """Numbers beyond 64 bits are no TOML, though Python reads them; nor does anybody nest so."""
    if depth > DEEPEST_TOML:
        raise ValueError(TOO_DEEP)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number has more than 64 bits")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        _check_toml(item, depth + 1)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file that a person wrote; what is wrong with it in words."""
    try:
        with open_regular(path) as file:
            content = file.read(LARGEST_TOML + 1)
        if len(content) > LARGEST_TOML:
            raise UserError(f"{path} is not a TOML file: it has more than {LARGEST_TOML:,} bytes")
        return parse_toml(content.decode("utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} is not a TOML file: {error}") from None


SEAL = "seal"  # the key of a table's own checksum


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A table to be kept as JSON, with a checksum of all that it says."""
    return {**fields, SEAL: _seal(fields)}


def unsealed(content: bytes | str) -> dict[str, Any]:
    """What :func:`sealed` was given; a table without a seal is an older one. Else a ValueError."""
    try:
        fields = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError("it is not a table")
    promised = fields.pop(SEAL, None)
    if promised is not None and promised != _seal(fields):
        raise ValueError("its checksum does not match")
    return fields


def _seal(fields: Mapping[str, Any]) -> str:
    read_back = json.loads(json.dumps(fields))  # keys that are numbers become text
    return hashlib.sha256(json.dumps(read_back, sort_keys=True).encode()).hexdigest()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, not only the files' contents."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
