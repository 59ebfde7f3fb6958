"""Do methods on labels alone need no more than to look at as many images, or a second network?

Calibre on two networks looks at all images in its rounds and again at those with labels, and its
heads stand on two encoders. Here FedAvg-FT gets as many rounds as look at as many images, and so do
two networks that both learn from labels alone.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from calibre.experiment import Experiment
from calibre.recipes.campaign import NONE, TWO_NETWORKS
from calibre.recipes.claims import TWO
from calibre.recipes.label_budget import Lead, build, leads, looks, table_of
from calibre.recipes.recipe import Conclusion, Recipe, by_name
from calibre.recipes.scales import Scale, method
from calibre.report.metrics import Group
from calibre.report.rows import Entry, Row
from calibre.report.runs import Run

LABELS = {"40": 40, "all": None}  # of a client
MEASURES = ("mean", "worst_tenth")
GROUPS: tuple[Group, ...] = ("train", "novel")


class Contender(NamedTuple):
    method: str
    changes: Mapping[str, Any] = NONE
    alone: int = 0  # networks that train on labels alone, on as many images as ours; 0: as usual

    def experiment(self, scale: Scale, seed: int, labels: int | None) -> Experiment:
        changes, training = dict(self.changes), {}
        if self.alone:
            training["rounds"] = rounds_on_labels(scale, labels, self.alone)
        if "labels" in changes:
            changes["labels"] = {**changes["labels"], "last_rounds": training.get("rounds", 0)}
        return _with_labels(labels, method(self.method, scale, **changes), scale, seed, training)


def rounds_on_labels(scale: Scale, labels: int | None, networks: int) -> int:
    """In which so many networks look at as many images as Calibre's two do.

    Its first looks at all, and at labelled ones beside each batch; its second at those with labels.
    """
    ours = _with_labels(labels, method("calibre/simclr", scale, **TWO_NETWORKS), scale, 0)
    values = ours.model_dump()
    term, held = values["method"]["labels"], values["federation"]["samples"]
    steps = math.ceil(held / values["method"]["sgd"]["batch"])
    own = labels or held
    in_an_epoch: int = held + steps * min(own, term["batch"]) + own * term["second"]
    return round(ours.training.rounds * in_an_epoch / (own * networks))


def _with_labels(
    labels: int | None,
    table: Mapping[str, Any],
    scale: Scale,
    seed: int,
    training: Mapping[str, int] = NONE,
) -> Experiment:
    federation = {"label_count": labels} if labels else {}
    return build(table, scale, seed, {"federation": federation, "training": training})


EQUAL = ", as many images"
TWO_ALONE = f"two networks on labels alone{EQUAL}"
CONTENDERS = {
    TWO: Contender("calibre/simclr", TWO_NETWORKS),
    "FedAvg-FT": Contender("fedavg-ft"),
    f"FedAvg-FT{EQUAL}": Contender("fedavg-ft", alone=1),
    TWO_ALONE: Contender("pfl-ssl/simclr", TWO_NETWORKS, alone=2),
}
PAIRS = [
    *((TWO, name) for name in CONTENDERS if name.endswith(EQUAL)),
    (f"FedAvg-FT{EQUAL}", "FedAvg-FT"),
    (TWO_ALONE, f"FedAvg-FT{EQUAL}"),
]


def experiments(scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
    return [
        contender.experiment(scale, seed, labels)
        for seed, labels, contender in product(seeds, LABELS.values(), CONTENDERS.values())
    ]


def conclude(runs: Sequence[Run], scale: Scale) -> Conclusion:
    """What each comes to with how many labels, and who is ahead."""
    series = series_of(runs, scale)
    tables = [table_of(series, group, measure) for group, measure in product(GROUPS, MEASURES)]
    said = [f"- {lead.sentence}." for lead in leads(series, PAIRS, GROUPS)]
    return Conclusion("\n\n".join([*tables, looks(series), "\n".join(said)]))


def leads_of_ours(runs: Sequence[Run]) -> list[Lead]:
    """Where those that look at as many images come to in comparison with ours."""
    found = leads(series_of(runs, "cpu"), PAIRS, GROUPS)
    return [lead for lead in found if lead.one == TWO]


def series_of(runs: Sequence[Run], scale: Scale) -> dict[str, dict[int, Row]]:
    """By contender: what each number of labels comes to, over seeds."""
    seeds = sorted({run.seed for run in runs})
    series: dict[str, dict[int, Row]] = {}
    for name, contender in CONTENDERS.items():
        wanted = {
            key: [contender.experiment(scale, seed, labels) for seed in seeds]
            for key, labels in LABELS.items()
        }
        series[name] = {
            LABELS[key] or max(client.samples for client in own[0].clients): Row(
                name, {}, tuple(map(Entry, own))
            )
            for key, own in by_name(runs, wanted).items()
        }
    return {name: by_budget for name, by_budget in series.items() if by_budget}


RECIPES = (
    Recipe(
        "equal-images",
        "Methods on labels alone that look at as many images; CIFAR-10 under Dir(0.3)",
        experiments,
        conclude,
    ),
)
