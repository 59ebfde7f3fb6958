"""Does `run --data` pay off? Folders of eight sites with few labels, against what is simpler.

    python -m benchmarks.folders --labels 30 60 --draws 0 1 2 --out folders

Each draw of each data set is written as folders (``examples/as_folders.py``), and scored on images
of the official test part, which decide nothing. Side by side, with the same heads: the personal
models as `run --data` chooses, FedAvg-FT on the same folders, and the best floor. Runs that are
there are not run again.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

import calibre

SCRIPT = Path(__file__).parents[1] / "examples" / "as_folders.py"
SOURCES = ("cifar10", "fashion-mnist", "digits")
FEW = ("--unlabelled", "20", "--test", "20")  # there are 1,797 digits in all
WIDTH = 100  # of the table, in characters
# of FedAvg-FT: on training images, with 60 labels, a point more than 100 rounds gave
ENOUGH = {"rounds": 200, "epochs": 3}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.folders", description=__doc__)
    parser.add_argument("--source", nargs="+", default=list(SOURCES))
    parser.add_argument("--labels", nargs="+", type=int, default=[30, 60])
    parser.add_argument("--draws", nargs="+", type=int, default=[0, 1, 2], help="seeds")
    parser.add_argument("--rehearsal", action="store_true", help="test on training images")
    parser.add_argument("--out", type=Path, default=Path("folders"))
    chosen = parser.parse_args()
    table = Table(
        "folders", "chosen %", "worst", "FedAvg-FT %", "worst", "floor %", "worst", "floor"
    )
    for source in chosen.source:
        for labels in chosen.labels:
            found = []
            for draw in chosen.draws:
                try:
                    place = folders(source, labels, draw, chosen.rehearsal, chosen.out)
                except subprocess.CalledProcessError:  # it has said what is missing
                    continue
                figures, floor = compare(place)
                found.append(figures)
                table.add_row(place.name, *_cells(figures), floor)
            if found:
                mean = [sum(column) / len(found) for column in zip(*found, strict=True)]
                table.add_row(f"{source}-{labels}, mean", *_cells(mean), end_section=True)
            Console(width=WIDTH).print(table)


def folders(source: str, labels: int, draw: int, rehearsal: bool, out: Path) -> Path:
    """A draw of a data set, as the folders of eight sites; not every one has enough images."""
    place = out / f"{source}-{labels}-{'rehearsal-' if rehearsal else ''}{draw}"
    if not place.exists():
        words = [source, place, "--seed", draw, "--labels", labels]
        words += [*(FEW if source == "digits" else ()), *(["--rehearsal"] if rehearsal else [])]
        subprocess.run([sys.executable, SCRIPT, *map(str, words)], check=True)
    return place


def compare(place: Path) -> tuple[list[float], str]:
    """Mean and worst client as chosen, by FedAvg-FT and by the best floor; which floor that is."""
    experiment, _ = calibre.choose(place)
    ours = calibre.run(experiment, place.with_name(f"{place.name}.chosen")).metrics
    experiment, _ = calibre.choose(
        place, method="fedavg-ft", training=ENOUGH, personal={"floors": []}
    )
    fedavg = calibre.run(experiment, place.with_name(f"{place.name}.fedavg-ft")).metrics
    name, best = max(ours.floors.items(), key=lambda floor: floor[1].train.measure("mean"))
    clients = [ours.train, fedavg.train, best.train]
    return [100 * each.measure(what) for each in clients for what in ("mean", "min")], name


def _cells(figures: Sequence[float]) -> list[str]:
    return [f"{figure:.1f}" for figure in figures]


if __name__ == "__main__":
    main()
