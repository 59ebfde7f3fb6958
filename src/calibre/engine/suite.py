"""Several methods, over several seeds, on the same federations; the finished are not run again."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from calibre.engine import rounds
from calibre.engine.events import Emit
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.methods.method import Method
from calibre.report.figures import FLOORS
from calibre.settings import validate

COLUMNS = (("mean", 100, 2), ("variance", 1, 4), ("worst_tenth", 100, 1))  # key, scale, digits


def variants(base: Experiment, methods: Sequence[str], seeds: Sequence[int]) -> list[Experiment]:
    """The experiment with each method, written ``name`` or ``name/objective``, and each seed.

    The base experiment's own method keeps the settings it has there; others have their defaults.
    """
    chosen = []
    for method in methods:
        name, _, objective = method.partition("/")
        own = base.method.model_dump()
        table = own if own["name"] == name else {"name": name}
        if objective:
            table |= {"objective": objective}
        for seed in seeds:
            values = {**base.model_dump(), "method": table, "seed": seed}
            chosen.append(validate(Experiment, values))
    return chosen


def run(experiments: Sequence[Experiment], folder: Path, emit: Emit) -> list[dict[str, Any]]:
    """The metrics of every experiment, each in a folder of its own below ``folder``."""
    results = []
    for experiment in experiments:
        place = folder / experiment.folder_name
        file = place / "metrics.json"
        label = f"{cast(Method, experiment.method).label}, seed {experiment.seed}"
        emit({"event": "experiment", "text": label, "done": file.exists()})
        if not file.exists():
            rounds.run(experiment, place, emit)
        results.append(json.loads(file.read_text()))
    return results


def by_method(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Results of the same method together, the best mean over trained clients first.

    Floors that were measured along the way are methods of their own. Every method must have seen
    the same federations.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault(result["method"], []).append(result)
        for floor_name, floor in result["floors"].items():
            name = FLOORS[floor_name][0]
            known = {r["seed"] for r in groups.setdefault(name, [])}
            if result["seed"] not in known:  # the floors of a seed are the same in every run
                about = {key: result[key] for key in ("seed", "federation")}
                groups[name].append({**floor, **about})
    seen = {tuple(sorted({(r["seed"], r["federation"]) for r in g})) for g in groups.values()}
    if len(seen) > 1:
        raise UserError("these runs are not on the same federations: they cannot be compared")
    return dict(sorted(groups.items(), key=lambda item: -_mean(item[1], "train", "mean")))


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """One table: mean over clients, variance and worst tenth; mean ± sd over seeds."""
    lines = [
        "| method | seeds | trained: mean % | variance | worst 10th % "
        "| novel: mean % | variance | worst 10th % | seconds | failures |",
        "|" + "---|" * 10,
    ]
    for name, runs in by_method(results).items():
        cells = [
            _over_seeds([run[group][key] for run in runs], scale, digits)
            for group in ("train", "novel")
            for key, scale, digits in COLUMNS
        ]
        seconds = [run["seconds"] for run in runs if "seconds" in run]
        cells.append(f"{statistics.mean(seconds):.0f}" if seconds else "")
        cells.append(str(sum(run.get("failures", 0) for run in runs)))
        lines.append(f"| {name} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(runs: Sequence[Mapping[str, Any]], group: str, key: str) -> float:
    return statistics.mean([float(run[group][key]) for run in runs])


def _over_seeds(values: Sequence[float | None], scale: float, digits: int) -> str:
    known = [value * scale for value in values if value is not None]
    if not known:
        return ""
    spread = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.{digits}f}{spread}"
