"""Runs put in order for a comparison: which of them are one method, and may they be compared?

Runs that are alike but for the seed are one method measured several times. Runs on unlike
federations are refused: their clients cannot be paired, nor their means compared.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.report.floors import title_of
from calibre.report.inference import half_interval
from calibre.report.metrics import Group, summary
from calibre.report.runs import Run
from calibre.tables import flat

KINDS: dict[Group, str] = {"train": "trained", "novel": "novel"}  # as tables call them

Identity = dict[str, Any]  # the settings that make a method what it is, by dotted key
OF_ROUNDS = ("training.rounds", "training.clients_per_round", "training.epochs")


class Estimate(NamedTuple):
    """A mean, and half the width of its confidence interval where there is one."""

    value: float
    half: float | None


@dataclass(frozen=True)
class Entry:
    """A method on one federation: a run, or the floor that a run measured along the way."""

    run: Run
    floor: str | None = None

    @property
    def label(self) -> str:
        return self.run.label if self.floor is None else title_of(self.floor)

    def scores(self) -> list[float]:
        """The accuracy of every client, in their order."""
        if self.floor is None:
            return [client.accuracy for client in self.run.clients]
        return [client.floors[self.floor] for client in self.run.clients]

    def accuracies(self, group: Group) -> list[float]:
        pairs = zip(self.run.clients, self.scores(), strict=True)
        return [score for client, score in pairs if client.novel == (group == "novel")]


@dataclass(frozen=True)
class Row:
    """A method over all seeds, in their order."""

    label: str  # unlike those of the other rows
    identity: Identity
    entries: tuple[Entry, ...]

    @property
    def measured(self) -> bool:
        """Whether these are runs of their own; a floor has no costs."""
        return all(entry.floor is None for entry in self.entries)

    def estimate(self, group: Group, measure: str) -> Estimate | None:
        """The mean over seeds, with Student's interval over them; None without such clients.

        Of a single seed only the mean accuracy has an interval: over its clients.
        """
        groups = [entry.accuracies(group) for entry in self.entries]
        if not all(groups):
            return None
        values = [summary(accuracies).measure(measure) for accuracies in groups]
        over = groups[0] if len(values) == 1 and measure == "mean" else values
        return Estimate(sum(values) / len(values), half_interval(over))

    def cost(self, key: str) -> float | None:
        """The mean over seeds of a figure of metrics.json; None where it was not kept."""
        known = [getattr(entry.run.metrics, key) for entry in self.entries]
        if not self.measured or not all(isinstance(value, int | float) for value in known):
            return None
        return sum(cast(list[float], known)) / len(known)


def arrange(runs: Sequence[Run], floors: bool = True, comparable: bool = True) -> list[Row]:
    """One row per method, the best mean of trained clients first.

    ``floors`` adds what the runs' clients reach without a federation, where it was measured for
    every seed. Unless they need not be ``comparable``, runs on unlike federations are refused.
    """
    methods: dict[str, dict[int, Entry]] = {}  # by identity and seed
    for run in runs:
        known = methods.setdefault(_key(run.experiment), {}).setdefault(run.seed, Entry(run))
        if known.run is not run:
            raise UserError(
                f"{known.run.folder} and {run.folder} hold the same experiment: give one of them"
            )
    if comparable:
        _check_federations(list(methods.values()))
    plain = {key: _called(held) for key, held in methods.items()}
    own = list(methods.values())
    for key, held in _floors(runs).items() if floors else ():
        namesakes = [other for other in own if _called(other) == _called(held)]
        if not any(_alike(held, other) for other in namesakes):  # else it has a run of its own
            methods[key] = held
            plain[key] = _called(held) + (" (floor)" if namesakes else "")
    identities = {key: json.loads(key) for key in methods}
    rows = [
        Row(
            _label(plain, key, identities),
            identities[key],
            tuple(entry for _, entry in sorted(held.items())),
        )
        for key, held in methods.items()
    ]
    return sorted(rows, key=lambda row: (-mean_of(row, "train"), row.label))


def mean_of(row: Row, group: Group) -> float:
    """What rows are ranked by."""
    estimate = row.estimate(group, "mean")
    return 0.0 if estimate is None else estimate.value


def identity_of(experiment: Experiment) -> Identity:
    """All settings that decide what a method gives on a federation, but for the seed."""
    idle = ["name", "seed", "data.root", "personal.floors"]
    if not experiment.method.federated:
        idle += OF_ROUNDS
    return {
        key: value
        for key, value in flat(experiment.model_dump(mode="json")).items()
        if key not in idle and not key.startswith("engine.")
    }


def differing(identities: Iterable[Identity]) -> list[str]:
    """The keys that not all agree on, in order; to lack a key is to disagree."""
    tables = list(identities)
    keys = {key for table in tables for key in table}
    return sorted(k for k in keys if len({json.dumps(t.get(k, "absent")) for t in tables}) > 1)


def _key(experiment: Experiment) -> str:
    return json.dumps(identity_of(experiment), sort_keys=True)


def floor_identity(run: Run, name: str) -> Identity:
    """What a floor depends on; how it was trained then is not for today's defaults to say."""
    table = identity_of(run.experiment)
    beyond = {k: v for k, v in table.items() if not k.startswith("method.") and k not in OF_ROUNDS}
    return {**beyond, "floor": name}


def _floors(runs: Sequence[Run]) -> dict[str, dict[int, Entry]]:
    """What runs measured along the way, as methods; for each seed as its first run has it."""
    found: dict[str, dict[int, Entry]] = {}
    for run in runs:
        for name in run.clients[0].floors:
            key = json.dumps(floor_identity(run, name), sort_keys=True)
            found.setdefault(key, {}).setdefault(run.seed, Entry(run, name))
    seeds = {run.seed for run in runs}
    return {key: held for key, held in found.items() if held.keys() == seeds}


def _called(held: dict[int, Entry]) -> str:
    return next(iter(held.values())).label


def _alike(one: dict[int, Entry], other: dict[int, Entry]) -> bool:
    """Whether every client of every seed fares the same."""
    return one.keys() == other.keys() and all(one[s].scores() == other[s].scores() for s in one)


def _label(plain: dict[str, str], key: str, identities: dict[str, Identity]) -> str:
    """Methods of the same name are told apart by the settings in which they differ."""
    own = identities[key]
    namesakes = [identities[other] for other in plain if plain[other] == plain[key]]
    settings = [
        f"{name.removeprefix('method.')}={own[name]}"
        for name in differing(namesakes)
        if name in own
    ]
    return ", ".join([plain[key], *settings])


def _check_federations(methods: Sequence[dict[int, Entry]]) -> None:
    """Every method must have seen the same federations: one for each seed, none missing."""
    first: dict[int, Run] = {}
    for run in (entry.run for held in methods for entry in held.values()):
        other = first.setdefault(run.seed, run)
        if other.federation != run.federation:
            raise UserError(
                f"{other.folder} and {run.folder} cannot be compared: with seed {run.seed} they "
                f"are not on the same federation ({_why(other.experiment, run.experiment)})"
            )
    for held in methods:
        for seed in sorted(first.keys() - held.keys()):
            lacking = next(iter(held.values())).run
            raise UserError(
                f"{first[seed].folder} and {lacking.folder} cannot be compared: there is a run of "
                f"{first[seed].label} with seed {seed}, but none of {lacking.label}, so they are "
                "not on the same federations; run it too, or leave that seed out"
            )


def _why(one: Experiment, other: Experiment) -> str:
    """What makes two federations unlike."""
    tables = identity_of(one), identity_of(other)
    reasons = [
        f"{key} is {tables[0].get(key)!r} and {tables[1].get(key)!r}"
        for key in differing(tables)
        if key.startswith(("data.", "federation."))
    ]
    return ", ".join(reasons) or "their settings are the same: the images have changed in between"
