"""Damaged and hostile data files of every format: each ends in words, or in a sound pool.

A case is a sound source with one thing wrong: cut, flipped, swapped or emptied bytes, absurd
numbers, wrong types, wrong encodings. Reading it must end in a UserError, in a pool that names what
was left out, or in a sound pool; never in a traceback, a hang, or memory without bounds.

    python -m tests.attack.data_formats --seed 1 --count 2000
"""

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibre.data.federation import build
from calibre.data.sources import facts, left_out, load
from calibre.errors import UserError
from calibre.sections import DataSettings, FederationSettings
from tests.attack.damage import damaged
from tests.attack.sound import SOURCES
from tests.attack.wrong import WRONG

SECONDS = 60  # that a case may take
MEGABYTES = 700  # that it may add to the most that this process ever had


@dataclass(frozen=True)
class Case:
    """A source to be written into an empty folder; ``name`` and ``number`` tell which it is."""

    number: int
    name: str
    write: Callable[[Path], DataSettings]


class HangError(BaseException):
    """Not an Exception, so that no reader takes it for damage."""


def cases(seed: int, count: int) -> Iterator[Case]:
    """The same for the same seed; two of three are sound files damaged, one is written wrong."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        if number % 3 == 2:
            name = str(rng.choice(sorted(WRONG)))
            yield Case(number, name, _wrong(name, rng))
        else:
            name = str(rng.choice(sorted(SOURCES)))
            yield Case(number, name, _damaged(name, rng))


def attack(seed: int, count: int) -> Counter[str]:
    """Run the cases; how they ended. Whatever else happens is an error that names its case."""
    ended: Counter[str] = Counter()
    for case in cases(seed, count):
        with tempfile.TemporaryDirectory() as folder:
            try:
                ended[run(case, Path(folder))] += 1
            except (Exception, HangError) as error:
                raise AssertionError(
                    f"case {case.number} of seed {seed}, {case.name}: {type(error).__name__}: "
                    f"{error}"
                ) from error
    return ended


def run(case: Case, folder: Path) -> str:
    """How a case ends, in a word."""
    with _only_here(folder), _in_time():
        before = _peak()
        try:
            outcome = _read(case.write(folder))
        except UserError as error:
            outcome = "refused" if str(error).strip() else "refused without a word"
        grown = _peak() - before
        assert grown < MEGABYTES, f"{grown:.0f} MB more"
    return outcome


def _read(settings: DataSettings) -> str:
    facts(settings)
    pool = load(settings)
    count = len(pool.labels)
    assert pool.images.dtype == np.uint8
    assert pool.images.shape[0] == count == len(pool.train) + len(pool.test) + len(pool.unlabelled)
    known = pool.labels[: pool.test.stop]
    assert not len(known) or 0 <= known.min() <= known.max() < len(pool.classes)
    assert all(isinstance(note, str) and note for note in pool.report["notes"])
    left = left_out(settings)
    counted = pool.report["unreadable"]["count"] + pool.report["copies_of_test_images"]["count"]
    assert len(left) >= counted
    assert all(name and why for name, why in left), "left out without a name or a reason"
    str([left, pool.report, pool.classes, pool.owner_names]).encode()  # can be printed
    scheme = "natural" if pool.owners is not None else "iid"
    clients = None if pool.owners is not None else 1
    build(pool, FederationSettings(scheme=scheme, clients=clients, novel=0), 0)
    return "left out" if left else "read"


def _damaged(name: str, rng: np.random.Generator) -> Callable[[Path], DataSettings]:
    def write(folder: Path) -> DataSettings:
        settings = SOURCES[name](folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in rng.choice(np.array(files, object), size=min(len(files), 1), replace=False):
            path.write_bytes(damaged(path.read_bytes(), rng))
        return settings

    return write


def _wrong(name: str, rng: np.random.Generator) -> Callable[[Path], DataSettings]:
    return lambda folder: WRONG[name](folder, rng)


@contextmanager
def _only_here(folder: Path) -> Iterator[None]:
    """Cache and known data sets below the case's own folder."""
    changes = {"CALIBRE_CACHE": str(folder / ".pools"), "CALIBRE_DATA": str(folder)}
    before = {key: os.environ.get(key) for key in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


@contextmanager
def _in_time() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise HangError(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    asked = parser.parse_args()
    start = time.monotonic()
    ended = attack(asked.seed, asked.count)
    print(dict(ended), f"{time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
