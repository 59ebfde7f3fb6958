"""What the labels.csv files of a folder say of its images, held against what the folder says."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from calibre.data import labels_file
from calibre.data.class_names import one_spelling
from calibre.errors import UserError


@dataclass
class Given:
    """Labels by path; what a person should know of them gathers here as they are taken."""

    beside: frozenset[tuple[str, ...]]  # folders that such a file is in
    labels: dict[str, str]
    rows: dict[str, str]  # where each of the paths was read: a file and its row
    odd: list[tuple[str, str]]  # a file or row, and what is wrong with it
    taken: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    against: list[str] = field(default_factory=list)

    def take(self, path: str) -> str:
        """The label of an image in an unlabelled folder; empty: none."""
        place = os.path.normpath(path)
        self.known.add(place)
        if label := self.labels.get(place, ""):
            self.taken.add(place)
        return label

    def compare(self, path: str, label: str) -> None:
        """An image in the folder of a class: that counts, whatever labels.csv says."""
        place = os.path.normpath(path)
        self.known.add(place)
        if (said := self.labels.get(place, label) or label) != label:
            self.against.append(f"{path} stays {label!r}, {self.rows[place]} calls it {said!r}")

    def left_out(self) -> Iterator[tuple[str, str]]:
        """Rows and files that were not used, and why."""
        yield from self.odd
        for place, row in self.rows.items():
            if place not in self.known:
                yield row, f"names {place}, which is no image here"

    def notes(self, below: str = "") -> Iterator[str]:
        """What a person should know, of files whose names begin like this."""
        against = [text for text in self.against if text.startswith(below)]
        if against:
            yield (
                f"images that {labels_file.NAME} calls otherwise than their folder: "
                f"{len(against):,}; {against[0]}"
            )
        left = [row for row in self.left_out() if row[0].startswith(below)]
        if left:
            yield (
                f"rows of {labels_file.NAME} that were not used: {len(left):,}; {' '.join(left[0])}"
            )


def given_labels(files: Sequence[tuple[tuple[str, ...], str]]) -> Given:
    """``files`` come with the folders they are in, those above first: a nearer one counts more."""
    beside: set[tuple[str, ...]] = set()
    labels: dict[str, str] = {}
    where: dict[str, str] = {}
    odd: list[tuple[str, str]] = []
    for folders, path in files:
        try:
            rows, unusable = labels_file.scan(Path(path))
        except UserError as error:
            odd.append((path, str(error).replace(path, "it")))
            continue
        beside.add(folders)
        odd += [(f"{path} row {row.number}", row.why) for row in unusable]
        for number, row in rows:
            place = os.path.normpath(os.path.join(os.path.dirname(path), row.path))
            labels[place] = one_spelling(row.label)
            where[place] = f"{path} row {number}"
    return Given(frozenset(beside), labels, where, odd)
