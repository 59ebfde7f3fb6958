"""The t-SNE figures: representations of some clients' test images under several methods.

"Clearer clusters" is judged by numbers on the representations themselves, not on the picture.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from calibre.experiment import Experiment
from calibre.finished.encodings import encode_clients
from calibre.recipes.recipe import Conclusion, Recipe, Verdict
from calibre.recipes.scales import Scale, Scheme, experiment, method
from calibre.report.figures.tsne import View, tsne, views
from calibre.report.representations import Separation
from calibre.report.runs import Run
from calibre.wording import percent

MEASURES = {"silhouette": "silhouette", "nmi": "NMI", "neighbours": "k-NN accuracy"}
SIX = (
    "fedavg", "fedrep", "fedper", "fedbabu", "lg-fedavg", "calibre/simclr",
)  # fmt: skip


@dataclass(frozen=True)
class Embedding:
    """A figure: which methods, how many clients, whose clusters should be clearer than whose."""

    name: str
    title: str
    methods: tuple[str, ...]
    clients: int
    clearer: tuple[tuple[str, str], ...] = ()  # labels: the first should be clearer than the second
    alone: bool = False  # one picture per client
    source: str = "cifar10"
    scheme: Scheme = "dirichlet"

    def recipe(self) -> Recipe:
        return Recipe(self.name, self.title, self.experiments, self.conclude, models=True)

    def experiments(self, scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
        return [
            experiment(self.source, self.scheme, scale, method(name, scale), seed)
            for seed, name in product(seeds, self.methods)
        ]

    def conclude(self, runs: Sequence[Run], scale: Scale) -> Conclusion:
        """The pictures of the first seed, the measures of all, and whether clusters are clearer."""
        measured: dict[str, list[Separation]] = {}
        shown: list[View] = []
        for seed in sorted({run.seed for run in runs}):
            drawn = self._views([run for run in runs if run.seed == seed])
            for view in drawn:
                measured.setdefault(view.method.label, []).append(view.clusters)
            shown = shown or drawn
        lines = [
            "| method | " + " | ".join(MEASURES.values()) + " |",
            "|" + "---|" * (1 + len(MEASURES)),
            *(f"| {name} | {' | '.join(_means(found))} |" for name, found in measured.items()),
            "",
            "Of representations, by class; means over seeds.",
            "",
            "![representations of the first seed](picture:tsne)",
            "",
        ]
        for clear, vague in self.clearer:
            lines.append(_judge(clear, vague, measured))
        return Conclusion("\n".join(lines), {"tsne": lambda: tsne(shown)})

    def _views(self, runs: Sequence[Run]) -> list[View]:
        clients = list(range(self.clients))
        if not self.alone:
            return views([encode_clients(run, clients) for run in runs], ["class"])
        each = []
        for run, client in product(runs, clients):
            score = run.clients[client].accuracy
            label = f"{run.label}, client {client} ({percent(score, 0)})"
            each.append(replace(encode_clients(run, [client]), label=label))
        return views(each, ["class"])


def _means(found: Sequence[Separation]) -> list[str]:
    cells = []
    for measure in MEASURES:
        known = [value for one in found if (value := getattr(one, measure)) is not None]
        cells.append(f"{statistics.mean(known):.3f}" if known else "")
    return cells


def _judge(clear: str, vague: str, measured: Mapping[str, Sequence[Separation]]) -> str:
    """q8: by how many of the three measures, on average over seeds, the clusters are clearer."""
    higher = [
        float(ours) > float(theirs)
        for ours, theirs in zip(_means(measured[clear]), _means(measured[vague]), strict=True)
        if ours and theirs
    ]
    verdict: Verdict = "reproduced" if higher and all(higher) else "not reproduced"
    said = f"{sum(higher)} of {len(higher)} measures are higher"
    return (
        f"- q8: the clusters of {clear} are clearer than those of {vague}: **{verdict}** ({said})"
    )


EMBEDDINGS = (
    Embedding(
        "figure-1",
        "Figure 1: representations of 10 clients, CIFAR-10 under D-non-iid, without calibration",
        ("pfl-ssl/simclr", "pfl-ssl/byol"),
        clients=10,
    ),
    Embedding(
        "figure-2",
        "Figure 2: representations of single clients, CIFAR-10 under D-non-iid",
        ("pfl-ssl/simclr", "pfl-ssl/byol"),
        clients=3,
        alone=True,
    ),
    Embedding(
        "figure-5",
        "Figure 5: SimSiam and MoCo v2 without and with calibration, 6 clients, CIFAR-10",
        ("pfl-ssl/simsiam", "pfl-ssl/moco", "calibre/simsiam", "calibre/moco"),
        clients=6,
        clearer=(
            ("Calibre (SimSiam)", "pFL-SimSiam"),
            ("Calibre (MoCoV2)", "pFL-MoCoV2"),
        ),
    ),
    Embedding(
        "figure-6",
        "Figure 6: SimCLR and BYOL with calibration, and without, 6 clients, CIFAR-10",
        ("calibre/simclr", "calibre/byol", "pfl-ssl/simclr", "pfl-ssl/byol"),
        clients=6,
        clearer=(("Calibre (SimCLR)", "pFL-SimCLR"), ("Calibre (BYOL)", "pFL-BYOL")),
    ),
    Embedding(
        "figure-7",
        "Figure 7: six methods, CIFAR-10 under D-non-iid",
        SIX,
        clients=6,
        clearer=tuple(
            ("Calibre (SimCLR)", other)
            for other in ("FedAvg", "FedRep", "FedPer", "FedBABU", "LG-FedAvg")
        ),
    ),
    Embedding(
        "figure-8",
        "Figure 8: six methods, STL-10 under Q-non-iid",
        SIX,
        clients=6,
        clearer=tuple(
            ("Calibre (SimCLR)", other)
            for other in ("FedAvg", "FedRep", "FedPer", "FedBABU", "LG-FedAvg")
        ),
        source="stl10",
        scheme="quantity",
    ),
)
RECIPES = tuple(embedding.recipe() for embedding in EMBEDDINGS)
