"""What the page's scripts draw: columns of clients, curves of rounds, classes by clients.

Everything is plain, finite and rounded, so that it is small, valid JSON, and always the same.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibre.data.federation import Federation
from calibre.methods.method import IMAGES
from calibre.report.collapse import MONITORS
from calibre.report.events import ClientFailed, RoundDone
from calibre.report.figures.holdings import (
    COLUMNS,
    IN_ORDER,
    by_main_class,
    columns,
    means_in_order,
    totals,
)
from calibre.report.metrics import ClientResult
from calibre.report.naming import short_name
from calibre.report.runs import Run

MOST = 10_000  # clients on a page, of 2 MB or less; a run's clients.csv has all of them
FEWEST = 100  # of novel clients, or of those that trained
DIGITS = 6  # of a share: more than a million test images could tell
MEANINGS = {
    "loss": "what the clients minimise",
    "l_s": "the self-supervised objective",
    "l_p": "the prototypes of one view against those of the other",
    "l_n": "images of one view told apart by the prototypes of the other",
    "l_c": "labelled images: how wrong the classes are that the network gives them",
    "l_second": "the same by the second network, which learns from labels alone",
    "clusters": "groups of images that both views have, and that become prototypes",
    "dropped": "images whose group is in one view alone, and that no prototype speaks for",
    "divergence": "how far images lie from their prototypes: weights the client's update",
    "agreement": "images whose two views fall into the same cluster",
    "seconds": "one client's training in a round",
    **{monitor.name: monitor.meaning for monitor in MONITORS},
}
MARKS = {monitor.name: monitor.collapsed for monitor in MONITORS}
HIDDEN = {"began", IMAGES}  # a clock, and what is the same in most rounds


def shown_clients(clients: Sequence[ClientResult]) -> Sequence[ClientResult]:
    """All of them; of more than ``MOST``, about so many from the worst to the best, evenly spread.

    They have the distribution of all, with both its ends, and the page stays small and quick.
    """
    if len(clients) <= MOST:
        return clients
    shown = []
    for novel in (False, True):
        alike = [client for client in clients if client.novel == novel]
        ranked = sorted(alike, key=lambda client: (client.accuracy, client.id))
        room = min(len(ranked), max(FEWEST, MOST * len(ranked) // len(clients)))
        places = np.linspace(0, len(ranked) - 1, room).round().astype(int)
        shown += [ranked[place] for place in places]
    return sorted(shown, key=lambda client: client.id)


def client_columns(run: Run) -> dict[str, list[Any]]:
    """One list per column of the table of clients."""
    trained = Counter(client for event in run.rounds for client in event.clients)
    failed = Counter(e.client for e in run.events if isinstance(e, ClientFailed))
    clients = shown_clients(run.clients)
    return {
        "id": [client.id for client in clients],
        "name": [client.name for client in clients],
        "short": [short_name(client.id, client.name) for client in clients],
        "novel": [int(client.novel) for client in clients],
        "samples": [client.samples for client in clients],
        "unlabelled": [client.unlabelled for client in clients],
        "test_samples": [client.test_samples for client in clients],
        "classes": [client.classes for client in clients],
        "rounds": [trained[client.id] for client in clients],
        "failures": [failed[client.id] for client in clients],
        "accuracy": [round(client.accuracy, DIGITS) for client in clients],
        **{
            floor: [round(client.floors[floor], DIGITS) for client in clients]
            for floor in (clients[0].floors if clients else ())
        },
    }


def curves(rounds: Sequence[RoundDone]) -> list[dict[str, Any]]:
    """Every term that clients report: its mean and its tenth to ninetieth percentile by round.

    A term that is the same for all clients at all times tells nothing and is left out.
    """
    terms: dict[str, dict[int, list[float]]] = defaultdict(dict)  # by term and place in rounds
    for place, event in enumerate(rounds):
        for report in event.clients.values():
            for name, value in report.items():
                if name not in HIDDEN and math.isfinite(value):
                    terms[name].setdefault(place, []).append(value)
    numbers = [event.round for event in rounds]
    known = list(MEANINGS)
    by_interest = sorted(terms, key=lambda name: known.index(name) if name in known else len(known))
    return [
        {
            "name": name,
            "meaning": MEANINGS.get(name, ""),
            "mark": MARKS.get(name),
            "rounds": numbers,
            **_spread([terms[name].get(place, []) for place in range(len(rounds))]),
        }
        for name in by_interest
        if len({value for values in terms[name].values() for value in values}) > 1
    ]


def _spread(by_round: Sequence[list[float]]) -> dict[str, list[float | None]]:
    spread: dict[str, list[float | None]] = {"mean": [], "low": [], "high": []}
    for values in by_round:
        low, high = np.quantile(values, (0.1, 0.9)) if values else (math.nan, math.nan)
        mean = math.fsum(values) / len(values) if values else math.nan
        for name, figure in (("mean", mean), ("low", low), ("high", high)):
            spread[name].append(float(f"{figure:.5g}") if math.isfinite(figure) else None)
    return spread


def class_map(federation: Federation) -> dict[str, Any]:
    """Images by class and in all, of every client or, of many, by groups of alike ones."""
    in_order = len(federation) <= IN_ORDER
    per_column = -(-len(federation) // COLUMNS)
    heads: list[dict[str, Any]] = []
    values: list[list[float]] = []
    for ids, novel in ((federation.train_ids, 0), (federation.novel_ids, 1)):
        if not ids:
            continue
        counts = federation.counts()[ids.start : ids.stop]
        order = np.arange(len(ids)) if in_order else by_main_class(counts)
        table = columns(counts, in_order, per_column)
        in_all = means_in_order(totals(federation)[ids.start : ids.stop], order, per_column)
        starts = range(0, len(ids), per_column)
        for start, row, sums in zip(starts, table, in_all, strict=True):
            members = order[start : start + per_column] + ids.start
            one = federation.client(int(members[0]))
            main = federation.classes[int(row.argmax())]
            name = one.name if len(members) == 1 else f"{len(members)} clients, mostly of {main}"
            heads.append(
                {
                    "name": name,
                    "short": short_name(one.id, one.name),
                    "novel": novel,
                    "clients": len(members),
                    "totals": [round(float(value), 2) for value in sums],
                }
            )
            values.append([round(float(value), 2) for value in row])
    return {"classes": list(federation.classes), "columns": heads, "values": values}
