"""Several methods, over several seeds, on the same federations; the finished are not run again."""

from collections.abc import Sequence
from pathlib import Path

from calibre import engines
from calibre.experiment import Experiment
from calibre.report import runs
from calibre.report.events import Emit, NextExperiment
from calibre.report.metrics import Metrics
from calibre.run_folder import RunFolder
from calibre.settings import validate


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


def run(experiments: Sequence[Experiment], folder: Path, emit: Emit) -> list[Metrics]:
    """The metrics of every experiment, each in a folder of its own below ``folder``."""
    results = []
    for experiment in experiments:
        place = folder / experiment.folder_name
        file = RunFolder(place).metrics
        label = f"{experiment.method.label}, seed {experiment.seed}"
        emit(NextExperiment(text=label, done=file.exists()))
        if not file.exists():
            engines.run(experiment, place, emit)
        results.append(runs.read_metrics(place))
    return results
