"""Figures 3 and 4: mean and variance of every method, over training and novel clients.

And one comparison that the paper does not make, of what it is for: clients with few labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from calibre.experiment import Experiment
from calibre.recipes.claims import Claim
from calibre.recipes.recipe import Conclusion, Recipe
from calibre.recipes.scales import Scale, Scheme, experiment, method
from calibre.report import comparison_tables, figures
from calibre.report.compare import compare
from calibre.report.metrics import Metrics
from calibre.report.runs import Run

MAIN = (
    "calibre/simclr", "pfl-ssl/simclr", "local", "fedavg-ft", "fedrep", "fedbabu", "fedema",
)  # fmt: skip
METHODS = (
    *MAIN, "fedavg", "scaffold", "scaffold-ft", "lg-fedavg", "fedper", "perfedavg", "apfl", "ditto",
    "local-convergent", "calibre/byol", "calibre/simsiam", "calibre/moco",
)  # fmt: skip
BEYOND_THE_PAPER = (
    "untrained", "fedprox-ft", "fedbn-ft", "qffl-ft", "fedproto", "perfedavg-hf", "fedu",
)  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """One panel: a data set, how it is spread, and what the paper says of it."""

    name: str
    title: str
    source: str
    scheme: Scheme
    claims: tuple[Claim, ...]
    methods: tuple[str, ...] = (*METHODS, *BEYOND_THE_PAPER)
    labels: int | None = None  # per class and client; None: all

    def recipe(self) -> Recipe:
        return Recipe(self.name, self.title, self.experiments, self.conclude)

    def experiments(self, scale: Scale, seeds: Sequence[int]) -> list[Experiment]:
        return [
            experiment(self.source, self.scheme, scale, method(name, scale), seed, self.labels)
            for seed, name in product(seeds, self.methods)
        ]

    def conclude(self, runs: Sequence[Run], scale: Scale) -> Conclusion:
        """The comparison as table and picture, and a verdict on every claim."""
        by_method: dict[str, list[Metrics]] = {}
        for run in runs:
            by_method.setdefault(run.label, []).append(run.metrics)
        lines = [comparison_tables.markdown(compare(runs))]
        lines += ["![mean against variance](picture:mean-variance)", ""]
        for claim in self.claims:
            verdict, said = claim.judge(by_method)
            lines.append(f"- {claim.text}: **{verdict}** ({said})")
        return Conclusion(
            "\n".join(lines), {"mean-variance": lambda: figures.compose("mean-variance", runs)}
        )


# the introduction says so without a figure
NO_BETTER_THAN_ALONE = Claim("q6", "local only", "train", "mean", None, of="pFL-SimCLR", below=True)
COMPARISONS = (
    Panel(
        "figure-3-cifar10",
        "Figure 3: mean and variance, CIFAR-10 under Q-non-iid (2 classes)",
        "cifar10",
        "quantity",
        (
            Claim("C1, q4", None, "train", "mean", 1.71),
            Claim("C7", "APFL", "train", "variance", 0.0031),
            NO_BETTER_THAN_ALONE,
        ),
    ),
    Panel(
        "figure-3-cifar100",
        "Figure 3: mean and variance, CIFAR-100 under Q-non-iid (5 classes)",
        "cifar100",
        "quantity",
        (
            Claim("C2, q4", None, "train", "mean", 1.51),
            Claim("C8", "FedBABU", "train", "variance", 0.0048),
        ),
    ),
    Panel(
        "figure-3-stl10",
        "Figure 3: mean and variance, STL-10 under Q-non-iid (2 classes)",
        "stl10",
        "quantity",
        (
            Claim("C3, q4", None, "train", "mean", 6.03),
            Claim("C9", "FedEMA", "train", "variance", -31.1, relative=True),
        ),
    ),
    Panel(
        "figure-3-stl10-d",
        "Section V-B: mean, STL-10 under D-non-iid (0.3)",
        "stl10",
        "dirichlet",
        (Claim("C4", "FedBABU", "train", "mean", 15.18),),
    ),
    Panel(
        "figure-4-cifar10",
        "Figure 4: training and novel clients, CIFAR-10 under D-non-iid (0.3)",
        "cifar10",
        "dirichlet",
        (
            Claim("C5", "FedAvg-FT", "train", "mean", 2.97),
            Claim("C10, q5", "FedAvg-FT", "train", "variance", -23.8, relative=True),
            Claim("C11, q7", "FedBABU", "novel", "mean", 2.2),
            Claim("C13", "FedBABU", "novel", "variance", -0.01),
            NO_BETTER_THAN_ALONE,
        ),
    ),
    Panel(
        "figure-4-cifar100",
        "Figure 4: training and novel clients, CIFAR-100 under D-non-iid (0.3)",
        "cifar100",
        "dirichlet",
        (
            Claim("C6", "FedAvg-FT", "train", "mean", 7.11),
            Claim("C12, q7", "FedBABU", "novel", "mean", 9.6),
            Claim("C14", "FedBABU", "novel", "variance", 0.0045),
        ),
    ),
    Panel(
        "few-labels-cifar10",
        "Beyond the paper: CIFAR-10 under D-non-iid (0.3), 5 labels per class and client",
        "cifar10",
        "dirichlet",
        (),
        ("untrained", *MAIN),
        labels=5,
    ),
)
RECIPES = tuple(comparison.recipe() for comparison in COMPARISONS)
