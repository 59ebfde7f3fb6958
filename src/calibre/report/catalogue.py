"""Every method and objective by name: what it is called, where it comes from, what it sends."""

from typing import Any

from calibre.experiment import Experiment
from calibre.methods.method import Method
from calibre.models.network import Problem
from calibre.registry import METHODS, OBJECTIVES
from calibre.sections import NetworkSettings
from calibre.settings import look_up
from calibre.ssl.objective import ObjectiveSettings
from calibre.tensors import belongs

SMALLEST = Problem(size=8, channels=1, classes=2, network=NetworkSettings(width=1), seed=0)


def catalogue() -> list[dict[str, Any]]:
    rows = []
    for name in METHODS:
        kind = look_up("method", name, METHODS)
        field = kind.model_fields.get("objective")
        with_objective = field is not None and field.annotation is ObjectiveSettings
        for objective in OBJECTIVES if with_objective else [None]:
            chosen = {"objective": objective} if objective else {}
            method = Experiment(method={"name": name, **chosen}).method
            rows.append(
                {
                    "method": name,
                    "objective": objective,
                    "label": method.label,
                    "sends": sends(method),
                    "paper": method.paper,
                }
            )
    return rows


def sends(method: Method) -> list[str]:
    """What leaves a client in a round: parts of the network, and other groups by their names."""
    if not method.federated:
        return []
    network = method.build(SMALLEST)
    groups = method.expected_update(method.init(network))
    sent = []
    for part in dict.fromkeys(name.partition(".")[0] for name in groups.get("model", {})):
        whole = {name for name in network.state_dict() if belongs(name, [part])}
        sent.append(part if whole <= groups["model"].keys() else f"{part} (in part)")
    return sent + [group for group in groups if group != "model"]
