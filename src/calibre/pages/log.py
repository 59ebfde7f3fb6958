"""A log of requests without their contents: when, who, what route, how it ended, how long.

No query, header, body or file name is written, nor a path that is not one of the server's own.
One line of JSON each, in a file that only its owner can read and that stays bounded: at 10 MB
it is put aside, and of those put aside the newest five are kept.
"""

import json
import logging
import os
import sys
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from calibre.errors import UserError

LARGEST, KEPT = 10_000_000, 5


class RequestLog:
    """Writes one line per request; a disk that is full costs the line, not the answer."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = _PrivateFile(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write the log {path}: {error.strerror}") from None

    def __call__(self, **facts: Any) -> None:
        line = json.dumps(facts, separators=(",", ":"))
        self._file.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        self._file.close()


class _PrivateFile(RotatingFileHandler):
    said = False

    def _open(self) -> TextIOWrapper:
        def private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        opened = open(  # noqa: SIM115, closed with the log
            self.baseFilename, self.mode, encoding=self.encoding, opener=private
        )
        assert isinstance(opened, TextIOWrapper)
        return opened

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.said:
            self.said = True
            print(f"cannot write {self.baseFilename}: {sys.exception()}", file=sys.stderr)
