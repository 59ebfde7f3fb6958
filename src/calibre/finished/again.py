"""Personal models made anew on a finished run, without training again."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibre import experiment as experiments
from calibre.engine.client_store import PERSONAL
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.run_folder import RunFolder
from calibre.sections import PersonalSettings
from calibre.tables import flat
from calibre.wording import quoted

SECTION = "personal."  # of the settings that may change


def anew(source: Path, changes: Sequence[str], out: Path | None) -> tuple[Experiment, Path]:
    """A run folder that holds all training of ``source`` and other settings of personal models.

    Running it makes the personal models, their scores and floors, and nothing else.
    """
    held = RunFolder(source)
    before = held.read_experiment()
    if not held.finished:
        raise UserError(f"the run in {source} is not finished: calibre-fl resume {quoted(source)}")
    experiment = experiments.read(held.experiment, changes)
    one, other = (_values(e) for e in (before, experiment))
    unlike = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    if strange := [key for key in unlike if not key.startswith((SECTION, "engine.", "name"))]:
        raise UserError(
            f"--set {strange[0]}: only settings of personal models (personal.*) can change on a "
            "finished run; with others, train a run of its own"
        )
    place = out or source.with_name(f"{source.name}-{experiment.hash()[:8]}")
    if RunFolder(place).begun and RunFolder(place).read_experiment().hash() != experiment.hash():
        raise UserError(f"{place} holds another run: give a folder of its own with --out")
    if not RunFolder(place).begun:
        copy_training(held, RunFolder(place), experiment)
    return experiment, place


def training_of(experiment: Experiment) -> str:
    """A hash that experiments share when they train alike and differ in personal models alone."""
    return experiment.model_copy(update={"personal": PersonalSettings()}).hash()


def copy_training(held: RunFolder, place: RunFolder, experiment: Experiment) -> None:
    """Everything that training left; the experiment last, for it makes the folder a run's."""
    place.path.mkdir(parents=True, exist_ok=True)
    if held.source.exists():  # who trained it is noted before anything of it is there
        shutil.copy2(held.source, place.source)
    else:
        place.source.unlink(missing_ok=True)
    shutil.copytree(held.checkpoints, place.checkpoints, dirs_exist_ok=True)
    if held.clients.is_dir():
        personal = shutil.ignore_patterns(PERSONAL)
        shutil.copytree(held.clients, place.clients, dirs_exist_ok=True, ignore=personal)
    for file in (held.federation, held.federation_arrays):
        shutil.copy2(file, place.path / file.name)
    if held.purposes.exists():
        shutil.copy2(held.purposes, place.purposes)
    shutil.copy2(held.events, place.events)
    place.write_experiment(experiment)


def _values(experiment: Experiment) -> dict[str, Any]:
    return flat(experiment.model_dump(mode="json"))
