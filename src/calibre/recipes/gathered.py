"""What of a recipe the ledger holds: the entries to conclude from, and what is still to be run."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calibre.evidence.entry import LedgerEntry
from calibre.evidence.kept import Evidence
from calibre.experiment import Experiment
from calibre.recipes.recipe import Conclusion, Recipe
from calibre.report.runs import Run
from calibre.wording import duration


@dataclass(frozen=True)
class Gathered:
    """Entries of the same seeds for everything that has begun; the rest is missing."""

    recipe: Recipe
    entries: tuple[LedgerEntry, ...]
    held: tuple[LedgerEntry, ...]  # these, and those that wait for others to be shown with
    seeds: int  # of which the entries are, from 0 on
    missing: int  # runs

    @property
    def runs(self) -> list[Run]:
        return [entry.run for entry in self.entries]

    @property
    def command(self) -> str:
        return f"calibre-fl reproduce {self.recipe.name} --seeds {self.recipe.seeds}"


def state_of(entries: Iterable[LedgerEntry]) -> str:
    """A hash of all that they say."""
    told = sorted(entry.origin.checksum for entry in entries)
    return hashlib.sha256(" ".join(told).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Passage:
    """What stands on a page between two markers."""

    conclusion: Conclusion
    shown: tuple[LedgerEntry, ...]  # pictures are named after these
    held: tuple[LedgerEntry, ...]  # that it rests on, or waits for others to


def gather(recipe: Recipe, evidence: Evidence) -> Gathered:
    """As many seeds, from 0 on, as every variant has of which there is a run at all.

    A campaign that runs seed by seed so shows all methods with few seeds first, then with more.
    """
    wanted = recipe.experiments("cpu", range(recipe.seeds))
    variants: dict[str, list[Experiment]] = {}
    for experiment in wanted:
        variants.setdefault(experiment.model_copy(update={"seed": 0}).hash(), []).append(experiment)
    begun = [variant for variant in variants.values() if evidence.find(variant[0]) is not None]
    seeds = min((_first(variant, evidence) for variant in begun), default=0)
    shown = {experiment.hash() for variant in begun for experiment in variant[:seeds]}
    entries = evidence.of([experiment for experiment in wanted if experiment.hash() in shown])
    held = evidence.of(wanted)
    return Gathered(recipe, tuple(entries), tuple(held), seeds, len(wanted) - len(held))


def _first(variant: Sequence[Experiment], evidence: Evidence) -> int:
    """How many seeds there are before the first that is missing."""
    for i, experiment in enumerate(variant):
        if evidence.find(experiment) is None:
            return i
    return len(variant)


def passage(found: Gathered) -> Passage:
    """What a recipe's runs come to so far, where they were run, and how to run what is missing."""
    if not found.entries:
        return Passage(
            Conclusion(f"Not run yet: `{found.command} --ledger evidence`"), (), found.held
        )
    conclusion = found.recipe.conclude(found.runs, "cpu")
    small = provenance(found.command, found.entries, *_missing(found))
    made = Conclusion(f"{conclusion.text}\n\n{small}", conclusion.pictures)
    return Passage(made, found.entries, found.held)


def provenance(command: str, entries: Sequence[LedgerEntry], *more: str) -> str:
    """In small print: the command, how many runs, by which code, on what, for how long."""
    origins = [entry.origin for entry in entries]
    commits = list(dict.fromkeys(origin.commit for origin in origins))
    machines = list(dict.fromkeys(origin.machine for origin in origins))
    spent = duration(sum(origin.seconds for origin in origins))
    states = len({origin.code for origin in origins})
    words = [
        f"`{command}`: {len(origins)} runs, {spent} in all on {' and '.join(machines)}",
        f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}",
        f"results of version {origins[0].results}"
        + f", by {states} states of the code that decides them" * (states > 1),
        *more,
    ]
    return f"<sub>{'; '.join(words)}.</sub>"


def _missing(found: Gathered) -> list[str]:
    if not found.missing:
        return []
    of = f"seeds 0 to {found.seeds - 1}" if found.seeds > 1 else "seed 0"
    are = "run is" if found.missing == 1 else "runs are"
    return [f"shown are runs of {of}; {found.missing} {are} still missing"]
