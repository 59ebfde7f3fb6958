"""Wrong and extreme experiments, seeded: each is refused in words, or it runs.

python -m tests.attack settings [--seed 0] [--count 6000]
"""

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from calibre.engine import rounds
from calibre.errors import UserError
from calibre.experiment import Experiment, read
from calibre.registry import METHODS
from calibre.settings import validate
from tests.attack.odd import VALUES, altered, check_words, places
from tests.conftest import TINY

RUN_EVERY = 30  # cases; running takes a second, reading a millisecond
CHEAP = (  # sections whose odd values cost a small run no more time than usual
    "seed", "name", "federation", "views", "personal", "privacy", "robust", "method", "training",
    "network",
)  # fmt: skip
MOST = {
    "clients": 12, "novel": 6, "samples": 60, "test_samples": 30, "unlabelled": 60, "rounds": 1,
    "epochs": 2, "clients_per_round": 4, "width": 8, "components": 60,
}  # fmt: skip
NUMBERS = (0, 1, 2, 3, 0.5, 0.999999, 1e-300, 1e-9, 1e9, 1e30, 1e308, -1, True, False, None)
SMALL = [*(c for c in TINY if not c.startswith("method.")), "training.rounds=1"]
METHOD_NAMES = sorted(METHODS)


def attack(seed: int, count: int) -> Counter[str]:
    """How many cases ended in which way; a bad one raises."""
    ended: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        for number in range(count):
            try:
                ended[_one(seed, number, Path(place) / str(number))] += 1
            except Exception as error:
                case = made(seed, number)
                raise AssertionError(f"seed {seed}, case {number}: {error!r}\n{case}") from error
    return ended


def made(seed: int, number: int) -> dict[str, Any] | list[str]:
    """Tables, or changes as on the command line; the same for the same numbers."""
    rng = random.Random(f"settings {seed} {number}")
    if number % 3 == 1:
        known = _keys(rng.choice(METHOD_NAMES))
        return [
            f"{rng.choice(known)}{rng.choice(('=', '=', '=', '', '=='))}{rng.choice(VALUES)}"
            for _ in range(rng.choice((1, 2, 4)))
        ]
    base = read(None, [f"method.name={rng.choice(METHOD_NAMES)}", *SMALL])
    table = base.model_dump(mode="json")
    if number % RUN_EVERY == 0:
        for _ in range(rng.choice((1, 2, 4))):
            *way, last = rng.choice([p for p in places(table) if p[0] in CHEAP and len(p) > 1])
            held = _at(table, tuple(way))
            if isinstance(held[last], int | float):
                held[last] = rng.choice(NUMBERS)
        return table
    return altered(rng, table, rng.choice((1, 1, 2, 5)))


def _keys(method: str) -> list[str]:
    table = read(method=method).model_dump(mode="json")
    return [".".join(map(str, place)) for place in places(table)]


def _one(seed: int, number: int, folder: Path) -> str:
    case = made(seed, number)
    try:
        experiment = _read(case)
    except UserError as refused:
        check_words(refused)
        return "refused"
    assert _read_again(experiment).hash() == experiment.hash()
    assert Path(experiment.folder_name).name == experiment.folder_name
    if number % RUN_EVERY or not _small(experiment):
        return "read"
    try:
        rounds.run(experiment, folder)
    except UserError as refused:
        check_words(refused)
        return "stopped"
    return "ran"


def _read(case: Any) -> Experiment:
    if isinstance(case, list) and all(isinstance(change, str) for change in case):
        return read(None, case)
    if not isinstance(case, dict):
        raise UserError("not a table")
    experiment: Experiment = validate(Experiment, case)
    return experiment


def _read_again(experiment: Experiment) -> Experiment:
    import tomllib

    again: Experiment = validate(Experiment, tomllib.loads(experiment.to_toml()))
    return again


def _small(experiment: Experiment) -> bool:
    """Whether it runs in a moment: what is large on purpose is only read."""
    table = experiment.model_dump()
    for section in ("federation", "training", "network", "personal"):
        for key, most in MOST.items():
            value = table[section].get(key)
            if isinstance(value, int | float) and value > most:
                return False
    return experiment.network.encoder == "cnn"


def _at(table: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        table = table[step]
    return table
