"""Robust aggregation: what one client, or a few, can do to the server's model is limited.

``bound`` cuts a client's change d_i = w_i - w of the server's model to a multiple of the round's
median,

    d_i <- d_i min(1, bound m / |d_i|),    m = median_j |d_j|

and brings back numbers that clients send beside it, such as Calibre's divergence, to within that
multiple of theirs. ``mean`` replaces the server's weighted mean by a coordinate-wise one in which
all clients weigh the same (D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, Byzantine-Robust
Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, arXiv:1803.01498):

    trimmed   of n values the k = ceil(trim n) largest and smallest are left out
    median    as many as can be: one value is left, or the mean of two

A row of a head that is learned only from clients with labels of its class
(:mod:`calibre.methods.pfl_ssl`) is taken over those, and a second network over those with any.
Cost: all updates of a round are held in memory, a model for each client, where a plain mean holds
one.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from calibre.engine.privacy import NOBODY, change_of, check_one_mean, length
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.methods.method import ServerState, Update
from calibre.methods.pfl_ssl import is_row
from calibre.report.events import Bounded
from calibre.sections import RobustSettings
from calibre.tensors import EmptyMeanError, Tensors, belongs


@dataclass
class Robust:
    """One round's updates as a method's server gets to see them."""

    settings: RobustSettings
    median: float = 0.0  # length of the round's changes
    bounded: dict[int, float] = field(default_factory=dict)  # client -> length before it was cut

    def defend(self, server: ServerState, updates: Iterable[Update]) -> Iterator[Update]:
        held = list(updates)
        if not held:
            raise EmptyMeanError("no client's update arrived")
        if self.settings.bound is not None:
            held = self._bound(server.model, held, self.settings.bound)
        if self.settings.mean != "mean":
            held = [combined(held, self._trim(len(held)))]
        return iter(held)

    def report(self) -> Bounded | None:
        """Whose update was cut, for people to look at."""
        if self.settings.bound is None:
            return None
        return Bounded(median_norm=self.median, bounded=self.bounded)

    def _trim(self, count: int) -> int:
        most = (count - 1) // 2
        if self.settings.mean == "median":
            return most
        return min(most, math.ceil(self.settings.trim * count))

    def _bound(self, start: Tensors, updates: list[Update], bound: float) -> list[Update]:
        lengths = [length(change_of(update.shared["model"], start)) for update in updates]
        self.median = statistics.median(lengths)
        most = bound * self.median
        counters = _counters(updates)
        numbers = _typical(updates)
        found = []
        for update, long in zip(updates, lengths, strict=True):
            model = update.shared["model"]
            if long > most:
                self.bounded[update.client] = long
                model = {
                    **model,
                    **{
                        name: (start[name].double() + part * (most / long)).to(model[name].dtype)
                        for name, part in change_of(model, start).items()
                    },
                }
            within = {
                name: min(max(value, numbers[name] / bound), numbers[name] * bound)
                if name in numbers and not math.isnan(value)
                else value
                for name, value in update.numbers.items()
            }
            shared = {**update.shared, "model": {**model, **counters}}
            found.append(replace(update, shared=shared, numbers=within))
        return found


def combined(updates: Sequence[Update], trim: int) -> Update:
    """One update in place of all: coordinate by coordinate, without the ``trim`` most extreme."""
    models = [update.shared["model"] for update in updates]
    model = {
        name: _trimmed([each[name] for each in models], trim)
        for name, tensor in models[0].items()
        if tensor.is_floating_point()
    }
    shared = {"model": dict(sorted({**model, **_counters(updates)}.items()))}
    if "held" in updates[0].shared:
        holds = torch.stack([update.shared["held"]["classes"] for update in updates]) != 0
        shared["held"] = {"classes": holds.any(0).to(torch.int64)}
        _by_holders(shared["model"], models, holds, trim / len(models))
        holders = [update for update, mine in zip(updates, holds.any(1), strict=True) if mine]
        if holders:
            shared["model"] |= _second(holders, trim / len(models))
    return Update(NOBODY, samples=1, shared=shared)


def _by_holders(
    model: Tensors, models: Sequence[Tensors], holds: torch.Tensor, part: float
) -> None:
    """Rows of a head over the clients that hold their class, as large a part of them left out."""
    for k in range(holds.shape[1]):
        holders = [each for each, mine in zip(models, holds[:, k], strict=True) if mine]
        if holders:
            trim = _trim_of(len(holders), part)
            for name in filter(is_row, model):
                model[name][k] = _trimmed([each[name][k] for each in holders], trim)


def _second(holders: Sequence[Update], part: float) -> Tensors:
    """A second network over the clients that have labels, as large a part of them left out."""
    trim = _trim_of(len(holders), part)
    models = [update.shared["model"] for update in holders]
    counters = _counters(holders)
    return {
        name: counters[name] if name in counters else _trimmed([m[name] for m in models], trim)
        for name in models[0]
        if belongs(name, ("second",))
    }


def _trim_of(count: int, part: float) -> int:
    return min((count - 1) // 2, math.ceil(part * count))


def _trimmed(tensors: Sequence[torch.Tensor], trim: int) -> torch.Tensor:
    values = torch.stack([tensor.double() for tensor in tensors]).sort(dim=0).values
    return values[trim : len(tensors) - trim].mean(dim=0).to(tensors[0].dtype)


def _counters(updates: Sequence[Update]) -> Tensors:
    """Batch norm's counters, the only integers: the (lower) median of each."""
    first = updates[0].shared["model"]
    return {
        name: torch.stack([update.shared["model"][name] for update in updates]).median(0).values
        for name, tensor in first.items()
        if not tensor.is_floating_point()
    }


def _typical(updates: Sequence[Update]) -> dict[str, float]:
    """The median of every number that clients know."""
    known: dict[str, list[float]] = {}
    for update in updates:
        for name, value in update.numbers.items():
            if not math.isnan(value):
                known.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in known.items()}


def check(experiment: Experiment) -> None:
    """Refuse where it would not protect, or would break another promise."""
    if not experiment.robust.on:
        return
    key = "robust.bound" if experiment.robust.bound is not None else "robust.mean"
    check_one_mean(experiment.method, key, "and the rest would stay open")
    if experiment.privacy.clip is not None:
        raise UserError(
            f"{key} and privacy.clip: the price of privacy is that of a plain mean of changes that "
            "were cut to a fixed length, which bounds every client too; leave one of them out"
        )
