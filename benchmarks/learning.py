"""Does it learn? pFL-SimCLR, Calibre (SimCLR) and FedAvg-FT on real CIFAR-10, over seeds.

``python -m benchmarks.learning`` runs what is not finished yet (about an hour on two cores for
three seeds), then prints the table of docs/results.md. Every method sees the same federations, the
same clients in every round and the same first encoder. Nothing is chosen by test accuracy.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from calibre.engine import events, rounds
from calibre.experiment import read
from calibre.screen import LiveView

EXPERIMENT = Path(__file__).parents[1] / "examples" / "cifar10_cpu.toml"
METHODS = {
    "pFL-SimCLR": [
        'method={name = "pfl-ssl", objective = "simclr"}', "method.sgd.lr=0.05",
        "method.sgd.batch=64",
    ],
    "Calibre (SimCLR)": [],
    "FedAvg-FT": ['method={name = "fedavg-ft"}'],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    arguments = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    for seed in arguments.seeds:
        for name in METHODS:
            results[name].append(finished(name, seed, arguments.out))
    print(table(results, arguments.seeds))


def finished(name: str, seed: int, out: Path) -> dict[str, Any]:
    """The metrics of one run, carried out first where it is not done."""
    folder = out / f"{name}-{seed}"
    if not (folder / "metrics.json").exists():
        # the floors depend on the federation alone: once per seed is enough
        floors = '["untrained", "local"]' if name.startswith("Calibre") else "[]"
        changes = [f"seed={seed}", f"personal.floors={floors}", *METHODS[name]]
        print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
        with LiveView(Console(stderr=True)) as view:
            rounds.run(read(EXPERIMENT, changes), folder, view)
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    metrics["seconds"] = events.read(folder / "events.jsonl")[-1]["seconds"]
    return metrics


def table(results: dict[str, list[dict[str, Any]]], seeds: list[int]) -> str:
    """Mean over clients, averaged over seeds with its standard deviation over seeds."""
    calibre = results["Calibre (SimCLR)"]
    rows = {
        "untrained encoder": [run["floors"]["untrained"] for run in calibre],
        "local only": [run["floors"]["local"] for run in calibre],
        **results,
    }
    lines = [
        f"CIFAR-10, D-non-iid (0.3), seeds {', '.join(map(str, seeds))}; mean ± sd over seeds",
        "",
        "| model | trained: mean % | variance | worst 10th % | novel: mean % | variance "
        "| worst 10th % | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in rows.items():
        cells = [
            _over_seeds([run[group][key] * scale for run in runs], digits)
            for group in ("train", "novel")
            for key, scale, digits in (
                ("mean", 100, 2),
                ("variance", 1, 4),
                ("worst_tenth", 100, 1),
            )
        ]
        seconds = [run["seconds"] for run in runs if "seconds" in run]
        cells.append(f"{statistics.mean(seconds):.0f}" if seconds else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "Calibre against pFL-SimCLR, mean of trained / novel clients in points, by seed: ",
    ]
    lines[-1] += "; ".join(
        " / ".join(f"{(c[g]['mean'] - p[g]['mean']) * 100:+.2f}" for g in ("train", "novel"))
        for c, p in zip(calibre, results["pFL-SimCLR"], strict=True)
    )
    return "\n".join(lines)


def _over_seeds(values: list[float], digits: int) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}"


if __name__ == "__main__":
    main()
