"""Large images take turns: with many threads and processes, one of them is in memory at a time."""

import fcntl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from calibre.data.formats import UnreadableError
from calibre.freed import trim

LARGE = 2**26  # bytes: what an image may take beside others
MOST = 400_000_000  # bytes: what an image may take at all

_one_thread = threading.RLock()
_file: IO[Any] | None = None  # whoever has locked it is the process whose turn it is


@contextmanager
def turn(bytes_needed: int, pixels: int) -> Iterator[None]:
    """Hold it while an image of this size is decoded."""
    if bytes_needed > MOST:
        raise UnreadableError(
            f"has {pixels / 1e6:.1f} million pixels and would take {bytes_needed / 1e6:,.0f} MB to "
            f"decode, {MOST / 1e6:.0f} MB is the limit; make it smaller"
        )
    if bytes_needed < LARGE:
        yield
        return
    with _one_thread:
        place = shared_file().fileno()
        fcntl.lockf(place, fcntl.LOCK_EX)  # of the process, so a killed one gives it back
        try:
            yield
        finally:
            trim()  # or this thread keeps it
            fcntl.lockf(place, fcntl.LOCK_UN)


def shared_file() -> IO[Any]:
    """The file that this process and those it starts lock; they get it from here."""
    global _file
    with _one_thread:
        if _file is None:
            _file = tempfile.TemporaryFile()  # noqa: SIM115, as long as the process lives
        return _file


def share(handle: int) -> None:
    """Take turns with the process that handed this file down."""
    global _file
    _file = open(handle, "rb+")  # noqa: SIM115
