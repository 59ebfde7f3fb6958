"""Damage to any file of a finished run, seeded: refused in words, or the same result.

    python -m tests.attack run_folders [--seed 0] [--count 400]

After the damage somebody resumes the run, compares it, makes a bundle of it, or looks where it can
be taken back to. None may end in a traceback, and none in other numbers without a word.
"""

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibre.engine import rounds
from calibre.engine.rewind import possible_rounds
from calibre.errors import UserError
from calibre.experiment import read
from calibre.finished.run import FinishedRun
from calibre.report.compare import compare
from calibre.report.metrics import GROUPS
from calibre.report.runs import read_all
from calibre.run_folder import RunFolder
from calibre.tensors import digest, take
from tests.attack.odd import check_words, damaged
from tests.conftest import TINY
from tests.methods.helpers import results

SMALL = (
    "method.name=fedrep", *TINY, "federation.clients=3", "federation.novel=1", "training.rounds=2",
    "personal.epochs=1",
)  # fmt: skip


def attack(seed: int, count: int) -> Counter[str]:
    ended: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        rounds.run(read(None, SMALL), whole)
        used = shutil.copytree(whole, Path(place) / "used")  # a bundle keeps what it held out
        expected = {name: use(used) for name, use in USES.items() if name != "resume"}
        expected["resume"] = results(whole)
        for number in range(count):
            folder = Path(place) / "damaged"
            shutil.copytree(whole, folder)
            use, told = harm(seed, number, folder)
            try:
                ended[_one(use, folder, expected[use])] += 1
            except Exception as error:
                said = f"seed {seed}, case {number}: {use} after {told}: {error!r}"
                raise AssertionError(said) from error
            shutil.rmtree(folder)
    return ended


def harm(seed: int, number: int, folder: Path) -> tuple[str, str]:
    """Damage a copy of a run; who comes next, and what was done."""
    rng = random.Random(f"run folders {seed} {number}")
    use = rng.choice(list(USES))
    files = sorted(f for f in folder.rglob("*") if f.is_file() and f.suffix not in (".png", ".svg"))
    file = rng.choice(files)
    match rng.randrange(8):
        case 0:
            file.unlink()
            what = "removing"
        case 1:
            file.unlink()
            file.mkdir()
            what = "making a folder of"
        case 2:
            other = rng.choice(files)
            file.write_bytes(other.read_bytes())
            what = f"writing {other.relative_to(folder)} over"
        case 3:
            shutil.rmtree(file.parent) if file.parent != folder else file.unlink()
            what = "removing the folder of"
        case _:
            file.write_bytes(damaged(rng, file.read_bytes()))
            what = "changing"
    return use, f"{what} {file.relative_to(folder)}"


def _one(use: str, folder: Path, expected: Any) -> str:
    try:
        found = USES[use](folder)
    except UserError as refused:
        check_words(refused)
        return f"{use}: refused"
    assert found == expected, "another result, without a word"
    return f"{use}: the same"


def _resume(folder: Path) -> Any:
    experiment = RunFolder(folder).read_experiment()
    rounds.run(experiment, folder)
    return results(folder)


def _compare(folder: Path) -> Any:
    rows = compare(read_all([folder])).rows
    return [(row.label, [str(row.estimate(group, "mean")) for group in GROUPS]) for row in rows]


def _bundle(folder: Path) -> Any:
    bundle = FinishedRun(folder).bundle(0)
    return digest(take(bundle.predictor)), bundle.card.classes


def _model(folder: Path) -> Any:
    return digest(FinishedRun(folder).model)


def _rewind(folder: Path) -> Any:
    rounds_ = possible_rounds(RunFolder(folder))
    assert set(rounds_) <= {0, 1, 2}
    return None


USES: dict[str, Callable[[Path], Any]] = {
    "resume": _resume, "compare": _compare, "bundle": _bundle, "model": _model, "rewind": _rewind
}  # fmt: skip
