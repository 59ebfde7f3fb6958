"""Does `run --data` pay off? Folders of eight sites with few labels, against what is simpler.

    python -m benchmarks.folders --ledger evidence

Each draw of each data set is written as folders (``examples/as_folders.py``), and scored on images
of the official test part, which decide nothing. Side by side, with the same heads: the personal
models as `run --data` chooses, FedAvg-FT on the same folders, and the best floor. Runs that the
ledger has, or that have finished, are not run again.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import calibre
from calibre.evidence.kept import Evidence, check_apart
from calibre.evidence.noted import note
from calibre.evidence.origin import Source
from calibre.experiment import Experiment
from calibre.recipes.folders import FOLDER, LABELS, RIVAL, SOURCES, Draw, conclude
from calibre.report.runs import Run
from calibre.run_files import RunFiles

SCRIPT = Path(__file__).parents[1] / "examples" / "as_folders.py"
RUNS = "runs"
FEW = ("--unlabelled", "20", "--test", "20")  # there are 1,797 digits in all
# on training images, with 60 labels, a point more than 100 rounds gave
ENOUGH = {"method": RIVAL, "training": {"rounds": 200, "epochs": 3}, "personal": {"floors": []}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.folders", description=__doc__)
    parser.add_argument("--source", nargs="+", default=list(SOURCES))
    parser.add_argument("--labels", nargs="+", type=int, default=list(LABELS))
    parser.add_argument("--draws", nargs="+", type=int, default=[0, 1, 2], help="seeds")
    parser.add_argument("--rehearsal", action="store_true", help="test on training images")
    parser.add_argument("--out", type=Path, default=Path(), help="where the folder 'folders' goes")
    parser.add_argument("--ledger", type=Path, help="keep what runs come to there")
    chosen = parser.parse_args()
    if chosen.rehearsal and chosen.ledger:
        parser.error("--rehearsal: what is published is tested on test images; leave --ledger out")
    kept = _ledger(chosen.ledger.resolve(), chosen.out) if chosen.ledger else None
    chosen.out.mkdir(parents=True, exist_ok=True)
    os.chdir(chosen.out)  # runs say where their images lie: from here, not on this machine
    runs = list(_runs(product(chosen.source, chosen.labels, chosen.draws), chosen.rehearsal, kept))
    print(conclude(runs) if runs else "no draw has enough images")


def _ledger(folder: Path, out: Path) -> Evidence:
    """The ledger, where nothing is written but entries."""
    for written in (FOLDER, RUNS):
        check_apart(folder, out / written)
    kept = Evidence(folder)
    kept.make()
    return kept


def _runs(
    draws: Iterable[tuple[str, int, int]], rehearsal: bool, kept: Evidence | None
) -> Iterator[Run]:
    """Both ways of every draw."""
    source = Source.here()
    for draw in draws:
        try:
            place = folders(*draw, rehearsal, Path(FOLDER))
        except subprocess.CalledProcessError:  # it has said what is missing
            continue
        for changes in ({}, ENOUGH):
            yield _reached(experiment_on(place, **changes), kept, source)


def folders(source: str, labels: int, draw: int, rehearsal: bool, out: Path) -> Path:
    """A draw of a data set, as the folders of eight sites; not every one has enough images."""
    place = out / Draw(f"{source}-rehearsal" if rehearsal else source, labels, draw).name
    if not place.exists():
        words = [source, place, "--seed", draw, "--labels", labels]
        words += [*(FEW if source == "digits" else ()), *(["--rehearsal"] if rehearsal else [])]
        subprocess.run([sys.executable, SCRIPT, *map(str, words)], check=True)
    return place


def experiment_on(place: Path, **changes: Any) -> Experiment:
    """As it is chosen for these folders, which it calls by the name they are given here."""
    experiment, _ = calibre.choose(place, **changes)
    return calibre.read_experiment(experiment, [f"data.source={place}"])


def _reached(experiment: Experiment, kept: Evidence | None, source: Source) -> Run:
    if kept and (entry := kept.find(experiment)):
        return entry.run
    place = Path(RUNS) / experiment.folder_name
    if not RunFiles(place).finished:
        note(place, source, enters=kept is not None)
        calibre.run(experiment, place)
    return kept.add(place).run if kept else calibre.read_run(place)


if __name__ == "__main__":
    main()
