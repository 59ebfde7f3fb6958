"""The labels.csv files beside a client's images. The files are the truth, whoever writes them."""

import os
from collections.abc import Sequence
from pathlib import Path

from calibre.data import labels_file
from calibre.data.formats.folder import Listed
from calibre.data.labels_file import Label
from calibre.errors import UserError


class _File:
    """One labels.csv, as it was when last looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stamp: tuple[int, ...] | None = None
        self.rows: dict[str, Label] = {}  # by path, made normal; the last one given comes last
        self.refresh()

    def refresh(self) -> bool:
        """Read it again if it has changed; whether it had."""
        stamp = self._look()
        if stamp == self.stamp:
            return False
        rows: dict[str, Label] = {}
        for row in labels_file.read(self.path):
            rows.pop(self.place(row.path), None)
            rows[self.place(row.path)] = row
        self.rows, self.stamp = rows, stamp
        return True

    def put(self, path: str, row: Label | None) -> bool:
        """With what others wrote meanwhile, if they did; where writing fails, nothing changes."""
        others = self.refresh()
        rows = {place: held for place, held in self.rows.items() if place != path}
        if row is not None:
            rows[path] = row
        self._check_columns()
        labels_file.write(self.path, rows.values())
        self.rows, self.stamp = rows, self._look()
        return others

    def place(self, path: str) -> str:
        return os.path.normpath(self.path.parent / path)

    def _look(self) -> tuple[int, ...] | None:
        try:
            about = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from None
        return about.st_mtime_ns, about.st_size, about.st_ino

    def _check_columns(self) -> None:
        if others := labels_file.other_columns(self.path):
            raise UserError(
                f"{self.path} has the column {others[0]!r}, which would be lost: Calibre writes "
                f"{', '.join(labels_file.COLUMNS)} alone; take it away or rename the file"
            )


class LabelStore:
    """What is written of each image, by its place in ``images``."""

    def __init__(self, images: Sequence[Listed]) -> None:
        self._images = images
        self._places = [os.path.normpath(image.path) for image in images]
        self._files = {
            path: _File(path)
            for path in dict.fromkeys(image.labels_file for image in images)
            if path is not None
        }
        self._from_above = {  # a labels.csv of a folder above, which is only read
            i: Label(image.path, image.label, "")
            for i, image in enumerate(images)
            if image.labels_file and image.label and self._own(i) is None
        }

    def row(self, index: int) -> Label | None:
        """None: nobody has looked at it. A row without a label: somebody has, and was not sure."""
        image = self._images[index]
        if image.labels_file is None:
            return Label(image.path, image.label, "")
        return self._own(index) or self._from_above.get(index)

    def is_fixed(self, index: int) -> bool:
        """Whether its folder says what it is."""
        return self._images[index].labels_file is None

    def put(self, index: int, label: str | None, time: str) -> bool:
        """Write a label, or with None take away what was written; whether others wrote too."""
        image = self._images[index]
        assert image.labels_file is not None, "the folder of a class says what its images are"
        path = Path(os.path.relpath(image.path, image.labels_file.parent)).as_posix()
        row = None if label is None else Label(path, label, time)
        return self._files[image.labels_file].put(self._places[index], row)

    def refresh(self) -> list[Path]:
        """Read again what another program changed: the files."""
        return [path for path, file in self._files.items() if file.refresh()]

    def strangers(self) -> list[str]:
        """Paths that are written of, but are none of the images."""
        known = set(self._places)
        return [
            row.path
            for file in self._files.values()
            for place, row in file.rows.items()
            if place not in known
        ]

    def _own(self, index: int) -> Label | None:
        image = self._images[index]
        assert image.labels_file is not None
        return self._files[image.labels_file].rows.get(self._places[index])
