"""Every method and objective by name: what it is called, where it comes from, what it sends."""

from typing import Any, cast

from calibre.experiment import Experiment, NetworkSettings
from calibre.methods.method import Method
from calibre.models.network import Problem
from calibre.registry import METHODS, OBJECTIVES
from calibre.settings import look_up

SMALLEST = Problem(size=8, channels=1, classes=2, network=NetworkSettings(width=1), seed=0)


def catalogue() -> list[dict[str, Any]]:
    rows = []
    for name in METHODS:
        kind = look_up("method", name, METHODS)
        with_objective = "objective" in kind.model_fields
        for objective in OBJECTIVES if with_objective else [None]:
            chosen = {"objective": objective} if objective else {}
            method = cast(Method, Experiment(method={"name": name, **chosen}).method)
            sent = method.shared_parts(method.build(SMALLEST)) if method.federated else ()
            rows.append(
                {
                    "method": name,
                    "objective": objective,
                    "label": method.label,
                    "sends": list(sent),
                    "paper": method.paper,
                }
            )
    return rows
