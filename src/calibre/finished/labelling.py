"""Labelling as it goes on: what to look at next, what was said of what, and what it is good for.

Knows no browser. Labels are in ``labels.csv`` before a call returns; several people may call at
once, and every answer is the state after it.
"""

import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from calibre.calibration.typical import Suggestion
from calibre.data.formats.folder import Listed
from calibre.data.labels_file import LONGEST_LABEL
from calibre.errors import UserError
from calibre.finished.label_store import LabelStore
from calibre.finished.learner import GivenLabels, LearningEstimate
from calibre.finished.suggesting import in_words

AT_ONCE = 20  # images that are suggested together
LOW = 5  # left of them, and it is time for more
MOST_UNDONE = 1000
FEWEST = 5  # labels that an estimate of an earlier session is made from


class ConflictError(UserError):
    """What was to be done no longer fits what is there."""


class Learning(Protocol):
    """What labelling asks of a model; :class:`calibre.finished.learner.Learner` is one."""

    def suggest(self, seen: Sequence[int], count: int) -> list[Suggestion]: ...

    def estimate(self, labels: GivenLabels) -> LearningEstimate | None: ...

    def guess(self, labels: GivenLabels, image: int) -> list[tuple[str, float]]: ...


@dataclass(frozen=True)
class _Done:
    """A step that can be undone."""

    image: int
    before: str | None
    after: str


class Labelling:
    def __init__(
        self, client: str, images: Sequence[Listed], learner: Learning, classes: Sequence[str] = ()
    ) -> None:
        self.client, self.images = client, images
        self._store, self._learner = LabelStore(images), learner
        self._said = self._read()
        self._classes = list(dict.fromkeys(classes))  # keys 1 to 9 stay where they are
        self._queue: list[Suggestion] = []
        self._done: list[_Done] = []
        self._growth: list[LearningEstimate] = []
        self._estimated: GivenLabels | None = None
        self._note = ""
        self._asked: set[int] | None = None  # what was known when more were asked for
        self._revision = 0
        self._lock, self._learning = threading.RLock(), threading.Lock()
        self._take_over()
        self.refill()

    # what is there

    def state(self) -> dict[str, Any]:
        """All that a page shows, but the contact sheet."""
        with self._lock:
            self._notice()
            labels = self._labels()
            counts = Counter(labels.values())
            last = self._growth[-1] if self._growth else None
            return {
                "revision": self._revision,
                "client": self.client,
                "images": len(self.images),
                "labelled": len(labels),
                "unsure": sum(said == "" for said in self._said.values()),
                "classes": [{"name": name, "labels": counts[name]} for name in self._classes],
                "queue": [self._told(found) for found in self._queue],
                "undo": bool(self._done),
                "estimate": None if last is None else _figures(last),
                "growth": [_figures(estimate) for estimate in self._growth],
                "looking": self.low,
                "pending": self._estimated != labels,
                "note": self._note,
            }

    def sheet(self) -> list[dict[str, Any]]:
        """Every image that was looked at, the latest first; those of class folders come last."""
        with self._lock:
            self._notice()
            rows = [(i, row) for i in range(len(self.images)) if (row := self._store.row(i))]
        rows.sort(key=lambda pair: pair[1].time, reverse=True)
        return [
            {"index": i, "name": self.name(i), "label": row.label, "fixed": self._store.is_fixed(i)}
            for i, row in rows
        ]

    def name(self, index: int) -> str:
        return os.path.basename(self.images[index].path)

    # what people do

    def label(self, index: int, label: str, was: str | None) -> None:
        """Give an image a class, or "" for "not sure"; ``was`` is what the caller saw there."""
        label = " ".join(label.split())
        with self._lock:
            self._check(index, label)
            if self._store.is_fixed(index):
                raise UserError(
                    f"{self.name(index)} lies in the folder of its class: move the file to "
                    "change it"
                )
            self._notice()
            before = self._said.get(index)
            if before != was:
                said = "has no label any more" if before is None else f"is {before or 'not sure'!r}"
                raise ConflictError(f"{self.name(index)} {said} by now: somebody was quicker")
            if not os.path.isfile(self.images[index].path):
                self._drop(index)
                raise ConflictError(
                    f"{self.images[index].path} is no longer there; it was not labelled"
                )
            self._write(index, label)
            self._done.append(_Done(index, before, label))
            del self._done[:-MOST_UNDONE]
            self._drop(index)

    def skip(self, index: int) -> None:
        """Later, perhaps: it comes again when all others of its turn are through."""
        with self._lock:
            found = [row for row in self._queue if row.index == index]
            self._queue = [row for row in self._queue if row.index != index] + found
            self._revision += 1

    def undo(self) -> int:
        """Take back the last label of this session; the image is the next one to look at."""
        with self._lock:
            self._notice()
            if not self._done:
                raise ConflictError("there is nothing to undo")
            last = self._done[-1]
            if self._said.get(last.image) != last.after:
                self._done.pop()
                raise ConflictError(
                    f"another program has changed the label of {self.name(last.image)} since; it "
                    "stays as it is"
                )
            self._write(last.image, last.before)
            self._done.pop()
            if last.before is None:
                self._queue.insert(0, Suggestion(last.image, 0, 0, 0.0))
            return last.image

    def guess(self, index: int) -> list[tuple[str, float]]:
        """What the model says of it, on request only: it would bias."""
        with self._lock:
            self._check(index, "")
            labels = self._labels()
        with self._learning:
            return self._learner.guess(labels, index)

    # what follows by itself, in a thread of its own

    @property
    def low(self) -> bool:
        """Whether it is time for more, and asking could bring any."""
        with self._lock:
            return len(self._queue) <= LOW and self._known() != self._asked

    def refill(self) -> None:
        """Suggest more, by all that was looked at so far."""
        with self._lock:
            known = self._asked = self._known()
        more = self._learner.suggest(sorted(known), AT_ONCE)
        with self._lock:
            there = {row.index for row in self._queue}
            self._queue += [
                row for row in more if row.index not in there and row.index not in self._said
            ]
            self._revision += bool(more)

    def learn(self) -> None:
        """Estimate the accuracy by all labels, if that is not done yet."""
        with self._learning:
            with self._lock:
                labels = self._labels()
                earlier = self._earlier(labels) if self._estimated is None else []
            if labels == self._estimated:
                return
            for known in (*earlier, labels):
                found = self._learner.estimate(known) if known else None
                with self._lock:
                    self._growth = [e for e in self._growth if found and e.labels < found.labels]
                    self._growth += [found] if found else []
                    self._estimated = known
                    self._revision += 1

    def _earlier(self, labels: GivenLabels) -> list[GivenLabels]:
        """Half of the labels, a quarter, ...: as they were given before this session, few first."""
        times = {i: row.time for i in labels if (row := self._store.row(i))}
        order = sorted(labels, key=times.__getitem__)
        found: list[GivenLabels] = []
        while len(order := order[: len(order) // 2]) >= FEWEST:
            found.insert(0, {i: labels[i] for i in order})
        return found

    def _read(self) -> dict[int, str]:
        """What is written of every image that was looked at."""
        rows = ((i, self._store.row(i)) for i in range(len(self.images)))
        return {i: row.label for i, row in rows if row is not None}

    def _known(self) -> set[int]:
        """Images that need not be suggested: looked at, or waiting."""
        return {*self._said, *(row.index for row in self._queue)}

    def _labels(self) -> dict[int, str]:
        return {i: said for i, said in self._said.items() if said}

    def _told(self, found: Suggestion) -> dict[str, Any]:
        why = in_words(found, len(self.images)) if found.size else "taken back"
        return {"index": found.index, "name": self.name(found.index), "reason": why}

    def _check(self, index: int, label: str) -> None:
        if not 0 <= index < len(self.images):
            raise UserError(f"there is no image {index}: they go from 0 to {len(self.images) - 1}")
        if len(label) > LONGEST_LABEL:
            raise UserError(f"a class has a name of at most {LONGEST_LABEL} characters")

    def _write(self, index: int, label: str | None) -> None:
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self._store.put(index, label, time):
            self._said = self._read()
        elif (row := self._store.row(index)) is not None:
            self._said[index] = row.label
        else:
            self._said.pop(index, None)
        self._revision += 1
        self._take_over()

    def _drop(self, index: int) -> None:
        self._queue = [row for row in self._queue if row.index != index]

    def _notice(self) -> None:
        """Take over what another program wrote."""
        changed = self._store.refresh()
        if not changed:
            return
        before, self._said = self._said, self._read()
        count = sum(before.get(i) != self._said.get(i) for i in {*before, *self._said})
        self._queue = [row for row in self._queue if row.index not in self._said]
        self._revision += 1
        what = "changed" if os.path.exists(changed[0]) else "deleted"
        self._note = f"Another program {what} {changed[0]}: {_many(count, 'label')} changed by it."
        self._note += self._strangers()
        self._take_over()

    def _strangers(self) -> str:
        """What is written of images that are not here."""
        found = self._store.strangers()
        if not found:
            return ""
        rows = "rows name" if len(found) > 1 else "row names"
        return f" {len(found)} {rows} no image that can be read here, such as {found[0]!r}."

    def _take_over(self) -> None:
        """Every class that somebody used can be chosen."""
        used = sorted(set(self._labels().values()) - set(self._classes))
        self._classes += used


def _many(count: int, what: str) -> str:
    return f"{count:,} {what} was" if count == 1 else f"{count:,} {what}s were"


def _figures(estimate: LearningEstimate) -> dict[str, Any]:
    low, high = estimate.interval
    return {
        "labels": estimate.labels,
        "images": estimate.images,
        "correct": estimate.correct,
        "value": estimate.correct / estimate.images,
        "low": low,
        "high": high,
    }
