"""The federation as its coordinator knows it: counts that sites told, never an image.

Sites that are there at the start train, in order of their names; those that come later, or say so,
are novel and only get a personal model. Once training has begun the list stands in ``sites.json``
of the run folder, and only grows at its end.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibre.data.augment import Normalization, normalization
from calibre.data.federation import Federation
from calibre.data.formats.known import KNOWN
from calibre.data.parts import Parts
from calibre.data.pool import Pool
from calibre.deploy.records import FederationFacts, SiteReport
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import write_atomic
from calibre.models.preprocessing import chosen_normalization
from calibre.run_folder import RunFolder

MOST_TOGETHER = 2**31 - 1  # images of all sites: they are numbered by int32


@dataclass(frozen=True)
class Roster:
    """Who takes part, in order of client numbers, and what all of them must agree on."""

    facts: FederationFacts
    members: tuple[SiteReport, ...]

    def number(self, name: str) -> int | None:
        """The client number of a site."""
        return next((i for i, member in enumerate(self.members) if member.name == name), None)

    def joined_by(self, report: SiteReport) -> "Roster":
        """With one more site, which only personalises."""
        check_fits(report, self.facts)
        return replace(self, members=(*self.members, report))

    def save(self, folder: Path) -> None:
        content = {
            "facts": self.facts.model_dump(mode="json"),
            "members": [member.model_dump(mode="json") for member in self.members],
        }
        write_atomic(RunFolder(folder).sites, json.dumps(content, indent=2) + "\n")


def load(folder: Path) -> Roster | None:
    """The roster of a run that has begun."""
    file = RunFolder(folder).sites
    if not file.exists():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    members = tuple(SiteReport.model_validate(member) for member in content["members"])
    return Roster(FederationFacts.model_validate(content["facts"]), members)


def begin(reports: Sequence[SiteReport], experiment: Experiment) -> Roster:
    """The roster at the start of training."""
    training = sorted((r for r in reports if not r.novel), key=lambda report: report.name)
    novel = sorted((r for r in reports if r.novel), key=lambda report: report.name)
    if not training:
        raise UserError("no site trains: all that have joined say novel = true")
    source = experiment.data.source
    norm = chosen_normalization(experiment.network, training[0].shape[2]) or _common(reports)
    facts = FederationFacts(
        name=source if source in KNOWN else Path(source).stem or "sites",
        shape=training[0].shape,
        classes=_in_order({name for report in reports for name in report.classes}),
        mean=norm.mean,
        std=norm.std,
        training=len(training),
    )
    for report in reports:
        check_fits(report, facts)
    return Roster(facts, (*training, *novel))


def check_fits(report: SiteReport, facts: FederationFacts) -> None:
    """Raise UserError where a site's images or classes are not those of the federation."""
    if report.shape != facts.shape:
        raise UserError(
            f"site '{report.name}' has images of {list(report.shape)}, the others of "
            f"{list(facts.shape)}; set data.size in the sites' files"
        )
    if strange := sorted(set(report.classes) - set(facts.classes)):
        raise UserError(
            f"site '{report.name}' has a class '{strange[0]}' that the federation does not know: "
            f"{', '.join(facts.classes)}"
        )
    by_class, by_channel = (report.labelled, report.test), (report.total, report.squares)
    if {len(counts) for counts in by_class} != {len(report.classes)} or {
        len(sums) for sums in by_channel
    } != {report.shape[2]}:
        raise UserError(f"site '{report.name}' tells counts that do not fit its classes")
    if sum(report.labelled) < 2 or sum(report.test) < 1:
        raise UserError(
            f"site '{report.name}' has {sum(report.labelled)} labelled and {sum(report.test)} test "
            "images: 2 and 1 are needed"
        )


def federation_of(roster: Roster) -> Federation:
    """The federation's counts, as if all images lay in one pool that nobody holds."""
    facts, members = roster.facts, roster.members

    def table(kind: str) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        cells = np.zeros((len(members), len(facts.classes)), np.int64)
        for row, member in zip(cells, members, strict=True):
            row[[facts.classes.index(name) for name in member.classes]] = getattr(member, kind)
        return cells

    train, test = table("labelled"), table("test")
    labelled = _numbered(train.sum(1).tolist(), 0)
    unlabelled = _numbered([m.unlabelled for m in members], len(labelled.indices))
    first_test = len(labelled.indices) + len(unlabelled.indices)
    told = json.dumps([member.model_dump(mode="json") for member in members], sort_keys=True)
    return Federation(
        fingerprint=hashlib.sha256(told.encode()).hexdigest()[:16],
        classes=facts.classes,
        training=facts.training,
        names=tuple(member.name for member in members),
        labelled=labelled,
        unlabelled=unlabelled,
        test=_numbered(test.sum(1).tolist(), first_test),
        train_table=train,
        test_table=test,
        datasheet={
            "description": (
                f"{len(members)} sites: {facts.training} train, {len(members) - facts.training} "
                f"are novel and only personalise. Each holds its own images; together "
                f"{train.sum()} labelled, {len(unlabelled.indices)} unlabelled and {test.sum()} "
                f"test images of {len(facts.classes)} classes."
            ),
            "clients": {"training": facts.training, "novel": len(members) - facts.training},
            "classes": list(facts.classes),
            "sites": [member.name for member in members],
        },
    )


def empty_pool(facts: FederationFacts) -> Pool:
    """What the coordinator holds of the images: their shape and classes."""
    return Pool(
        name=facts.name,
        images=np.empty((0, *facts.shape), np.uint8),
        labels=np.empty(0, np.int64),
        classes=facts.classes,
        train=range(0),
        test=range(0),
        unlabelled=range(0),
        fingerprint="",
    )


def _numbered(sizes: list[int], first: int) -> Parts:
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    if first + offsets[-1] > MOST_TOGETHER:
        raise UserError(f"the sites tell of more than {MOST_TOGETHER:,} images together")
    return Parts(np.arange(first, first + offsets[-1], dtype=np.int32), offsets)


def _common(reports: Sequence[SiteReport]) -> Normalization:
    """Of all sites' training images together; sums of whole numbers, so exact in any order."""
    if len({len(report.total) for report in reports}) > 1:
        raise UserError(
            "some sites have gray images and others colour: "
            + ", ".join(f"{report.name} {report.shape[2]} channels" for report in reports)
        )
    total = np.sum([report.total for report in reports], axis=0)
    squares = np.sum([report.squares for report in reports], axis=0)
    return normalization(total, squares, sum(report.values for report in reports))


def _in_order(classes: set[str]) -> tuple[str, ...]:
    """Numbers by value, names by alphabet: as a reader of the whole would number them."""
    numbers = all(_is_number(name) for name in classes)
    return tuple(sorted(classes, key=int) if numbers else sorted(classes))


def _is_number(name: str) -> bool:
    digits = name.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18
