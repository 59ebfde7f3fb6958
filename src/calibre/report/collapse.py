"""Did the encoder collapse? What the monitors of a run's rounds say, in words.

Self-supervised training collapses when it finds that one and the same output for all images is a
cheap way to a small loss. Accuracy tells so only in the end; what every client reports of its
training (``methods.self_supervised.collapse_monitors``, Calibre's terms) tells it at once.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calibre.report.events import Event, RoundDone

RECENT = 3  # rounds at the end, whose median client is judged
CHANCE = 0.02  # L_n so near to ln(clusters), relatively, is guessing
NAMED = 5  # clients that a message names

ADVICE = (
    "Try a smaller method.sgd.lr, a larger method.sgd.batch, or an objective that pushes unlike "
    "images apart, such as simclr; with Calibre also smaller method.prototypes.alpha_p and alpha_n."
)


@dataclass(frozen=True)
class Monitor:
    """A figure with a healthy and a collapsed end, and two marks between them."""

    name: str  # in a client's report
    meaning: str
    direction: int  # in which it goes bad: 1 up, -1 down
    risky: float
    collapsed: float

    def beyond(self, value: float, mark: float) -> bool:
        return self.direction * (value - mark) > 0


SPREAD = Monitor(
    "spread",
    "how far unit projections lie apart: 1 at best, 0 when all are one point",
    direction=-1,
    risky=0.15,  # projectors without a last batch norm (SwAV) do well at 0.25, others near 1
    collapsed=0.05,
)
SIMILARITY = Monitor(
    "similarity",
    "the mean cosine between encodings of unlike images: 1 when all are alike",
    direction=1,
    risky=0.95,
    collapsed=0.99,
)
MONITORS = (SPREAD, SIMILARITY)

Report = dict[str, float]  # of one client in one round


def warnings(log: Sequence[Event], name_of: Callable[[int], str] = "client-{}".format) -> list[str]:
    """What to worry about after these rounds, with figures and what to try.

    ``name_of`` says what a client is called. Events of other kinds, and methods without the
    monitors, give nothing to worry about.
    """
    rounds = [event for event in log if isinstance(event, RoundDone) and event.clients]
    if not rounds:
        return []
    first, last = _reports(rounds[:1]), _reports(rounds[-RECENT:])
    whole = _of_the_run(first, last)
    return [
        *whole,
        *([] if whole else _of_clients(rounds[-RECENT:], name_of)),
        *_of_prototypes(last),
    ]


def _of_the_run(first: list[Report], last: list[Report]) -> list[str]:
    """Of the median client: collapsed, or worse than at the start and close to it."""
    collapsed, risky = [], []
    for monitor in MONITORS:
        before, now = _median(first, monitor.name), _median(last, monitor.name)
        if before is None or now is None:
            continue
        said = f"{monitor.name} is {now:.3f}, it was {before:.3f} at first ({monitor.meaning})"
        if monitor.beyond(now, monitor.collapsed):
            collapsed.append(said)
        elif monitor.beyond(now, monitor.risky) and monitor.beyond(now, before):
            risky.append(said)
    if collapsed:
        return [f"the encoder has collapsed: {'; '.join(collapsed + risky)}. {ADVICE}"]
    if risky:
        return [f"the encoder is about to collapse: {'; '.join(risky)}. {ADVICE}"]
    return []


def _of_clients(recent: list[RoundDone], name_of: Callable[[int], str]) -> list[str]:
    """Single clients whose last report shows a collapse."""
    latest: dict[int, Report] = {}
    for event in recent:
        latest.update(event.clients)
    collapsed = []
    for client in sorted(latest):
        signs = [
            f"{monitor.name} {latest[client][monitor.name]:.3f}"
            for monitor in MONITORS
            if monitor.name in latest[client]
            and monitor.beyond(latest[client][monitor.name], monitor.collapsed)
        ]
        if signs:
            collapsed.append(f"{name_of(client)} ({', '.join(signs)})")
    if not collapsed:
        return []
    more = f" and {len(collapsed) - NAMED} more" if len(collapsed) > NAMED else ""
    return [
        f"{len(collapsed)} of the last {len(latest)} clients collapsed in training: "
        f"{', '.join(collapsed[:NAMED])}{more}. Do they hold very few images, or images that are "
        f"all alike? {ADVICE}"
    ]


def _of_prototypes(last: list[Report]) -> list[str]:
    """Calibre's own terms: at work only with two clusters, and only if those tell images apart."""
    clusters, l_n = _median(last, "clusters"), _median(last, "l_n")
    if clusters is None or l_n is None:
        return []
    if clusters < 2:
        return [
            f"Calibre's terms are idle: a batch has {clusters:.1f} clusters that both views "
            "share, and L_p and L_n need two. Encodings that are all alike cannot be clustered, "
            "and batches of fewer than 4 images are not: try a larger method.sgd.batch."
        ]
    guessing = math.log(clusters)
    if abs(l_n / guessing - 1) <= CHANCE:
        return [
            f"Calibre's prototypes tell nothing apart: L_n is {l_n:.3f}, and guessing among "
            f"{clusters:.1f} clusters costs ln({clusters:.1f}) = {guessing:.3f}. Encodings are "
            "all alike, or their clusters are: try a smaller method.prototypes.clusters or tau_n."
        ]
    return []


def _reports(rounds: list[RoundDone]) -> list[Report]:
    return [report for event in rounds for report in event.clients.values()]


def _median(reports: list[Report], name: str) -> float | None:
    values = [report[name] for report in reports if name in report]
    return statistics.median(values) if values else None
