"""Central differential privacy: what a client adds to a round is bounded, and noise hides it.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, Learning Differentially Private Recurrent Language
Models, ICLR 2018, arXiv:1710.06963, with rounds of a fixed size and clients of equal weight. For m
clients with models w_i, and the server's w,

    d_i = w_i - w,    d_i <- d_i min(1, C / |d_i|),    mean = w + (sum_i d_i + N(0, (z C)^2)) / m

The protected unit is a client with all its images; two runs are adjacent when one of them has zero
in place of all that one client sent. The server is trusted to add the noise. What the method's
server then does with the mean is post-processing. Deviation: no credit is taken for clients being
drawn by lot, because whoever knows the experiment knows its seed and so who was drawn. A client is
charged for every noised model of the rounds that it was drawn for, also of those that had to be
made again, at the price of the Gaussian mechanism.
"""

import math
import secrets
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec

import torch

from calibre.engine.selection import select
from calibre.errors import UserError
from calibre.experiment import Experiment, method_named
from calibre.methods.method import Method, ServerState, Update
from calibre.registry import METHODS
from calibre.report.metrics import Promise
from calibre.sections import PrivacySettings
from calibre.tensors import EmptyMeanError, Tensors, WeightedMean

NOBODY = -1  # the client whose update is the noised mean of all


@dataclass
class Mechanism:
    """One round's noised mean."""

    settings: PrivacySettings
    norms: list[float] = field(default_factory=list)  # before clipping, of the round's changes

    def mean(self, server: ServerState, updates: Iterable[Update]) -> Update:
        """The one update that a method's server gets to see."""
        assert self.settings.clip is not None
        clipped = WeightedMean()
        for update in updates:
            change, norm = clip(update.shared["model"], server.model, self.settings.clip)
            self.norms.append(norm)
            clipped.add(change, 1.0)
        if not self.norms:
            raise EmptyMeanError("no client's update arrived")
        sigma = self.settings.noise * self.settings.clip / len(self.norms)
        model = _noised(server.model, clipped.result(), sigma)
        return Update(NOBODY, samples=1, shared={"model": model})

    def report(self) -> dict[str, float]:
        """To choose ``privacy.clip`` by. Not private itself: it stays with the coordinator."""
        assert self.settings.clip is not None
        return {
            "median_norm": statistics.median(self.norms),
            "clipped": sum(norm > self.settings.clip for norm in self.norms) / len(self.norms),
        }


def clip(model: Tensors, start: Tensors, most: float) -> tuple[Tensors, float]:
    """What a client changed of the server's model, no longer than ``most``; how long it was.

    Counters of batch norm, the only integers, say how many batches a client had: they are left out.
    """
    change = change_of(model, start)
    norm = length(change)
    scale = min(1.0, most / norm) if norm > 0 else 1.0
    return {name: part * scale for name, part in change.items()}, norm


def change_of(model: Tensors, start: Tensors) -> Tensors:
    """What a client changed of the server's model, without counters."""
    return {
        name: tensor.double() - start[name].double()
        for name, tensor in model.items()
        if tensor.is_floating_point()
    }


def length(change: Tensors) -> float:
    """Of all tensors together."""
    return float(torch.stack([part.square().sum() for part in change.values()]).sum().sqrt())


def _noised(start: Tensors, change: Tensors, sigma: float) -> Tensors:
    # seeded by the system, not by the experiment: who can repeat the noise can take it away
    generator = torch.Generator().manual_seed(secrets.randbits(63))
    model = {}
    for name, part in change.items():
        noise = torch.randn(part.shape, generator=generator, dtype=torch.float64)
        value = start[name].double() + part + sigma * noise
        if name.endswith("running_var"):
            value = value.clamp(min=0)  # noise knows nothing of variances
        model[name] = value.to(start[name].dtype)
    counters = {n: t for n, t in start.items() if n not in change and not t.is_floating_point()}
    return dict(sorted({**model, **counters}.items()))


def check(experiment: Experiment) -> None:
    """Refuse what would only look private, and what cannot be accounted for."""
    if experiment.privacy.clip is None:
        return
    check_one_mean(experiment.method, "privacy.clip", "which is all that noise protects")
    if experiment.engine.checkpoint_every != 1:
        raise UserError(
            "engine.checkpoint_every must be 1 with privacy.clip: a run that is killed would send "
            "rounds out twice, with noise that was paid for once"
        )
    if find_spec("dp_accounting") is None:
        raise UserError(
            "privacy.clip needs the accountant of dp-accounting: pip install 'calibre-fl[privacy]'"
        )


def check_one_mean(method: Method, key: str, why: str) -> None:
    """Refuse a setting that guards the mean of clients' models, and nothing else they send."""
    if method.one_mean and method.federated:
        return
    others = {name: method_named(name) for name in METHODS}
    able = [name for name, other in others.items() if other.one_mean and other.federated]
    raise UserError(
        f"{key}: the server of {method.label} needs more of its clients than the mean of their "
        f"models, {why}; take one of {', '.join(able)}, or leave {key} out"
    )


def most_rounds(
    experiment: Experiment, clients: int, sent: Mapping[int, int] | None = None, done: int = 0
) -> int:
    """How many noised models the client that is drawn most often has taken part in, at the end.

    ``sent`` says how many models of each round were sent already (:mod:`calibre.engine.ledger`);
    rounds after ``done`` are still to be made, perhaps once more.
    """
    per_round = min(experiment.training.clients_per_round, clients)
    drawn: Counter[int] = Counter()
    for round_ in range(experiment.training.rounds):
        already = (sent or {}).get(round_ + 1, 0)
        models = already + 1 if round_ >= done else max(already, 1)
        drawn.update(dict.fromkeys(select(experiment.seed, round_, clients, per_round), models))
    return max(drawn.values(), default=0)


def spent(
    experiment: Experiment, clients: int, sent: Mapping[int, int] | None = None, done: int = 0
) -> Promise:
    """What is promised of the whole run to the client that takes part most often."""
    settings = experiment.privacy
    rounds = most_rounds(experiment, clients, sent, done)
    price = epsilon(settings.noise, rounds, settings.delta)
    known = price if math.isfinite(price) else None  # JSON knows no infinity
    return Promise(epsilon=known, delta=settings.delta, rounds=rounds)


@cache
def epsilon(noise: float, rounds: int, delta: float) -> float:
    """Of so many rounds, by Google's accountant; infinite without noise."""
    if noise == 0 and rounds:
        return float("inf")
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    if rounds:
        accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise), rounds))
    return float(accountant.get_epsilon(delta))
