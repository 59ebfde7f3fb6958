"""What a finished run leaves behind: the model, one row per client, the figures, the metrics."""

import json
from collections.abc import Mapping
from typing import Any

from calibre import __version__
from calibre.experiment import Experiment
from calibre.files import write_atomic
from calibre.methods.method import Method, ServerState
from calibre.personal.pooling import HeadChoice
from calibre.report import payoff
from calibre.report.figures.accuracies import accuracy_figure
from calibre.report.metrics import ClientResult, interval, summary, write_clients_csv
from calibre.run_folder import RunFolder
from calibre.tensors import Tensors, to_file


def write_results(
    experiment: Experiment,
    method: Method,
    state: ServerState,
    folder: RunFolder,
    federation_hash: str,
    rows: list[ClientResult],
    failures: int,
    warnings: list[str],
    seconds: float,
    promise: Mapping[str, Any],
    choice: HeadChoice | None,
) -> dict[str, Any]:
    write_atomic(folder.model, to_file(state.groups.get("model", {})))
    write_clients_csv(rows, folder.table)
    reached = groups(rows, lambda row: row.accuracy)
    floors = {
        name: groups(rows, lambda row, name=name: row.floors[name])
        for name in (rows[0].floors if rows else {})
    }
    paid_off = payoff.warnings(method, experiment.personal, reached, floors)
    metrics = {
        "method": method.label,
        "objective": getattr(getattr(method, "objective", None), "name", None),
        "rounds": state.round,
        "seed": experiment.seed,
        "federation": federation_hash,
        "experiment": experiment.hash(),
        "version": __version__,
        "failures": failures,
        "warnings": [*warnings, *paid_off],
        "seconds": seconds,
        **promise,  # of privacy, where there is any
        "personal": {
            "head": experiment.personal.head,
            "choice": choice.model_dump(mode="json") if choice else None,
        },
        # of one client in a round, as the last state would have it
        "bytes_up": _bytes(method.expected_update(state)) if method.federated else 0,
        "bytes_down": _bytes(state.groups) if method.federated else 0,
        **reached,
        "floors": floors,
    }
    accuracy_figure(rows, folder.figures, title=f"{method.label} on {experiment.data.source}")
    write_atomic(folder.metrics, json.dumps(metrics, indent=2) + "\n")
    return metrics


def _bytes(sent: Mapping[str, Tensors]) -> int:
    return sum(t.numel() * t.element_size() for group in sent.values() for t in group.values())


def groups(rows: list[ClientResult], value: Any) -> dict[str, Any]:
    """The summary of one figure over the clients that trained and over the novel ones."""
    found = {}
    for name, novel in (("train", False), ("novel", True)):
        own = [(value(row), row.test_samples) for row in rows if row.novel == novel]
        found[name] = {**summary([score for score, _ in own]), "interval": interval(own)}
    return found
