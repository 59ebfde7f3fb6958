"""Several methods, over several seeds, on the same federations; the finished are not run again."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from calibre import engines
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.finished.again import copy_training, training_of
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


def run(
    experiments: Sequence[Experiment],
    folder: Path,
    emit: Emit,
    before: Callable[[Path], None] = lambda place: None,
    after: Callable[[Path], None] = lambda place: None,
    lends: Callable[[Path], bool] = lambda place: True,
) -> list[Metrics]:
    """The metrics of every experiment, each in a folder of its own below ``folder``.

    Experiments that differ in personal models alone are trained once, by a run whose folder
    ``lends`` its training. ``before`` is called with the folder of each that is not finished, ahead
    of running it, ``after`` with that of each that is.
    """
    trained = _trained(folder, lends)
    results = []
    for experiment in experiments:
        place = RunFolder(folder / experiment.folder_name)
        label = f"{experiment.method.label}, seed {experiment.seed}"
        emit(NextExperiment(text=label, done=place.finished))
        if not place.finished:
            like = trained.get(training_of(experiment))
            if like is not None and not place.begun:
                copy_training(like, place, experiment)
            before(place.path)
            engines.run(experiment, place.path, emit)
        if lends(place.path):
            trained.setdefault(training_of(experiment), place)
        after(place.path)
        results.append(runs.read_metrics(place.path))
    return results


def _trained(folder: Path, lends: Callable[[Path], bool]) -> dict[str, RunFolder]:
    """The finished runs of a folder, by what they trained; those that cannot be read are left."""
    found: dict[str, RunFolder] = {}
    for place in map(RunFolder, sorted(folder.glob("*"))):
        if not place.finished:
            continue
        with contextlib.suppress(UserError):
            experiment = place.read_experiment()
            whole = experiment.engine.runtime != "flower" and place.checkpoints.is_dir()
            if whole and lends(place.path):
                found.setdefault(training_of(experiment), place)
    return found
