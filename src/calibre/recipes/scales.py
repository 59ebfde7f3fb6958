"""The two scales at which the paper's experiments are stated: its own, and two CPU cores."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from calibre.experiment import Experiment
from calibre.recipes.rates import RATES
from calibre.registry import METHODS
from calibre.settings import look_up, validate

Scale = Literal["cpu", "paper"]
Scheme = Literal["quantity", "dirichlet"]

CLASSES = {"cifar10": 2, "cifar100": 5, "stl10": 2}  # S of Q-non-iid

# Section V-A: 100 clients train and 50 are novel, 10 a round for 200 rounds of 3 local epochs,
# ResNet-18, batches of 256 (self-supervised) and 32, heads of 10 epochs at 0.05.
PAPER: dict[str, Any] = {
    "federation": {"clients": 100, "novel": 50, "alpha": 0.3},
    "network": {"encoder": "resnet18", "width": 64, "stem": "auto"},
    "training": {"rounds": 200, "clients_per_round": 10, "epochs": 3},
    "personal": {"head": "paper", "epochs": 10, "lr": 0.05, "batch": 32, "floors": ()},
}
# (2, 500) is the paper's: a hundred clients share out all of CIFAR-10 and none is left for novel
# ones, which the paper shows under D-non-iid alone. There it writes (0.3, #): what 150 clients
# can have without two of them sharing an image. STL-10 has 5,000 labels.
PAPER_CLIENTS: dict[tuple[str, str], dict[str, int]] = {
    ("cifar10", "quantity"): {"novel": 0, "samples": 500, "test_samples": 100},
    ("cifar100", "quantity"): {"novel": 0, "samples": 500, "test_samples": 100},
    ("stl10", "quantity"): {"novel": 0, "samples": 50, "test_samples": 80},
    ("cifar10", "dirichlet"): {"samples": 333, "test_samples": 200},
    ("cifar100", "dirichlet"): {"samples": 333, "test_samples": 200},
    ("stl10", "dirichlet"): {"samples": 33, "test_samples": 100},
}

# What two cores do in a minute or two.
CPU: dict[str, Any] = {
    "federation": {"clients": 20, "novel": 10, "alpha": 0.3, "samples": 200, "test_samples": 100},
    "network": {"encoder": "cnn", "width": 16},
    "training": {"rounds": 30, "clients_per_round": 5, "epochs": 3},
    "personal": PAPER["personal"],
}
CPU_STL10 = {"samples": 150, "test_samples": 100, "unlabelled": 150}  # at 32 pixels

# Beyond the paper's own settings: more images and rounds for two cores, and heads that are solved.
LONGER: dict[Scale, dict[str, Any]] = {
    "cpu": {
        "federation": {"samples": 400},
        "training": {"rounds": 40},
        "personal": {"head": "solved"},
    },
    "paper": {"personal": {"head": "solved"}},
}
SOLVED: dict[str, Any] = {"personal": {"head": "solved"}}

# Of personal training: on few labels, 10 epochs are 20 steps, which left the head of an untrained
# encoder at chance.
FEW_LABELS_EPOCHS = 50

# Of self-supervised training at the paper's scale, which the paper leaves open. SimSiam's and
# MoCo's are those of their papers; SimCLR's, BYOL's, SwAV's and SMoG's papers use LARS, whose place
# SGD takes, with the weight decay of SwAV and SMoG as they have it.
PAPER_SGD: dict[str, dict[str, float]] = {
    "simclr": {"lr": 0.05, "weight_decay": 5e-4},
    "byol": {"lr": 0.05, "weight_decay": 5e-4},
    "simsiam": {"lr": 0.03, "weight_decay": 5e-4},
    "moco": {"lr": 0.03, "weight_decay": 1e-4},
    "swav": {"lr": 0.05, "weight_decay": 1e-6},
    "smog": {"lr": 0.05, "weight_decay": 1e-6},
}

BATCHES = {"paper": 256, "cpu": 64}  # of self-supervised training
CLUSTERS = {"paper": 10, "cpu": 5}  # prototypes per batch: K <= N / 4


def experiment(
    source: str,
    scheme: Scheme,
    scale: Scale,
    method: Mapping[str, Any],
    seed: int,
    labels: int | None = None,
    changes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),  # by section
) -> Experiment:
    """One run of the paper: where, on what, with which method; or of few ``labels`` per class."""
    values = PAPER if scale == "paper" else CPU
    federation = {**values["federation"], "scheme": scheme, "classes": CLASSES[source]}
    federation["labels"] = labels
    data: dict[str, Any] = {"source": source}
    if scale == "paper":
        federation |= PAPER_CLIENTS[source, scheme]
    elif source == "stl10":
        federation |= CPU_STL10
        data["size"] = 32
    chosen = {"data": data, "federation": federation, "method": method, "seed": seed}
    if labels is not None:
        chosen["personal"] = {**values["personal"], "epochs": FEW_LABELS_EPOCHS}
    built: Experiment = validate(Experiment, _merged({**values, **chosen}, changes))
    return built


def method(name: str, scale: Scale, **changes: Any) -> dict[str, Any]:
    """The table of a method, written ``name`` or ``name/objective``, with its learning rate."""
    name, _, objective = name.partition("/")
    table: dict[str, Any] = {"name": name}
    if objective:
        table["objective"] = objective
    fields = look_up("method", name, METHODS).model_fields
    if "objective" in fields:
        table["sgd"] = {"batch": BATCHES[scale]}
        if scale == "paper":
            table["sgd"] |= PAPER_SGD[objective or fields["objective"].default.name]
    if "prototypes" in fields:
        table["prototypes"] = {"clusters": CLUSTERS[scale]}
    if "labels" in fields:
        table["labels"] = {"weight": 0}  # the paper's comparisons train encoders without labels
    if scale == "cpu" and (chosen := RATES.get(name, RATES.get(objective))):
        table = _merged(table, rate(name, chosen))
    return _merged(table, changes)


def rate(name: str, value: float) -> dict[str, Any]:
    """A learning rate as the method ``name`` calls it."""
    kind = look_up("method", name.partition("/")[0], METHODS)
    table: dict[str, Any] = kind.at_rate(value)
    return table


def _merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(table)
    for key, value in changes.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, Mapping) else value
    return merged
