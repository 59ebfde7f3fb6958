"""Carry a recipe out: say what it takes, run what is missing, conclude."""

from collections.abc import Sequence
from pathlib import Path

from calibre import suite
from calibre.data.sources import locate
from calibre.errors import UserError
from calibre.estimate import seconds
from calibre.evidence.kept import Evidence, check_apart
from calibre.evidence.noted import note, ran_all
from calibre.evidence.origin import Source
from calibre.experiment import Experiment
from calibre.files import write_atomic
from calibre.finished.again import training_of
from calibre.recipes.recipe import Recipe
from calibre.recipes.scales import Scale
from calibre.report.events import Emit
from calibre.report.figures.style import save
from calibre.report.runs import read_all
from calibre.run_folder import RunFolder
from calibre.settings import nearest
from calibre.wording import duration


def announcement(
    recipe: Recipe, experiments: Sequence[Experiment], out: Path, evidence: Evidence | None = None
) -> str:
    """What will run and how long it should take here; a data set that is absent is named."""
    for data in {experiment.data for experiment in experiments}:
        locate(data)
    wanted = [e for e in experiments if evidence is None or evidence.find(e) is None]
    missing = [e for e in wanted if not RunFolder(out / e.folder_name).finished]
    lines = [f"{recipe.title}: {len(experiments)} runs, {len(wanted) - len(missing)} finished"]
    if evidence is not None:
        lines[0] += f", {len(experiments) - len(wanted)} in the ledger {evidence.folder}"
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
    """Seconds: one short trial for each kind of training, supervised or by its objective.

    What differs in personal models alone is trained once.
    """
    trials: dict[str, float] = {}
    total = 0.0
    for experiment in {training_of(e): e for e in experiments}.values():
        objective = experiment.method.model_dump().get("objective") or {"name": "supervised"}
        scale = experiment.network, experiment.training, experiment.federation
        kind = f"{objective['name']} on {experiment.data.source}, {scale}"
        if kind not in trials:
            trials[kind] = seconds(experiment)
        total += trials[kind]
    return total


def reproduce(
    recipe: Recipe,
    scale: Scale,
    experiments: Sequence[Experiment],
    out: Path,
    emit: Emit,
    evidence: Evidence | None = None,
) -> str:
    """The figure or table as Markdown, also kept beside the runs.

    What the ledger has is not run again; each run that ends enters it at once.
    """
    if evidence is not None:
        check_apart(evidence.folder, out)
        evidence.make()
    _run(experiments, out, emit, evidence)
    if evidence is not None:
        runs = [entry.run for entry in evidence.of(experiments)]
    else:
        runs = read_all([out / experiment.folder_name for experiment in experiments])
    place = out / f"{recipe.name}-{scale}"
    place.mkdir(parents=True, exist_ok=True)
    conclusion = recipe.conclude(runs, scale)
    for name, draw in conclusion.pictures.items():
        save(draw(), place / name)
    text = conclusion.placed(lambda name: str(place / f"{name}.png"))
    write_atomic(place / "result.md", text + "\n")
    return text


def open_ledger(recipe: Recipe, folder: Path, out: Path) -> Evidence:
    """The ledger that a recipe's runs enter, while they are in another folder."""
    if recipe.models:
        raise UserError(
            f"--ledger: {recipe.name} is made from the models of its runs, and the ledger holds "
            "only their figures; leave the option out"
        )
    check_apart(folder, out)
    return Evidence(folder)


def _run(
    experiments: Sequence[Experiment], out: Path, emit: Emit, evidence: Evidence | None
) -> None:
    """Those that the ledger lacks. Whoever runs them is noted, so that they may enter one later."""
    source = Source.here()

    def begin(place: Path) -> None:
        note(place, source, enters=evidence is not None)

    def end(place: Path) -> None:
        if evidence is not None:
            evidence.add(place)

    def lends(place: Path) -> bool:
        return ran_all(source, place)

    missing = [e for e in experiments if evidence is None or evidence.find(e) is None]
    suite.run(missing, out, emit, begin, end, lends)
