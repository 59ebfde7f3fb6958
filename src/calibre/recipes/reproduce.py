"""Carry a recipe out: say what it takes, run what is missing, conclude."""

from collections.abc import Sequence
from pathlib import Path

from calibre import suite
from calibre.data.sources import locate
from calibre.errors import UserError
from calibre.estimate import seconds
from calibre.experiment import Experiment
from calibre.files import write_atomic
from calibre.recipes.recipe import Recipe
from calibre.recipes.scales import Scale
from calibre.report.events import Emit
from calibre.report.runs import read_all
from calibre.run_folder import RunFolder
from calibre.settings import nearest
from calibre.wording import duration


def announcement(recipe: Recipe, experiments: Sequence[Experiment], out: Path) -> str:
    """What will run and how long it should take here; a data set that is absent is named."""
    for data in {experiment.data for experiment in experiments}:
        locate(data)
    missing = [e for e in experiments if not RunFolder(out / e.folder_name).finished]
    lines = [f"{recipe.title}: {len(experiments)} runs, {len(experiments) - len(missing)} finished"]
    if missing:
        lines.append(f"the others should take about {duration(_expected(missing))} here")
    return "\n".join(lines)


def only(methods: Sequence[str], experiments: Sequence[Experiment]) -> list[Experiment]:
    """Those of the methods named ``name`` or ``name/objective``; all where none is named."""
    names = [{"/".join(e.choice), e.choice[0]} for e in experiments]
    known = set().union(*names)
    for name in methods:
        if name not in known:
            raise UserError(f"it has no method '{name}': {nearest(name, known)}")
    return [e for e, own in zip(experiments, names, strict=True) if not methods or own & {*methods}]


def _expected(experiments: Sequence[Experiment]) -> float:
    """Seconds: one short trial for each kind of training, supervised or by its objective."""
    trials: dict[str, float] = {}
    total = 0.0
    for experiment in experiments:
        objective = experiment.method.model_dump().get("objective") or {"name": "supervised"}
        kind = f"{objective['name']} on {experiment.data.source}"
        if kind not in trials:
            trials[kind] = seconds(experiment)
        total += trials[kind]
    return total


def reproduce(
    recipe: Recipe, scale: Scale, experiments: Sequence[Experiment], out: Path, emit: Emit
) -> str:
    """The figure or table as Markdown, also kept beside the runs."""
    suite.run(experiments, out, emit)
    runs = read_all([out / experiment.folder_name for experiment in experiments])
    place = out / f"{recipe.name}-{scale}"
    place.mkdir(parents=True, exist_ok=True)
    text = recipe.conclude(runs, place, scale)
    write_atomic(place / "result.md", text + "\n")
    return text
