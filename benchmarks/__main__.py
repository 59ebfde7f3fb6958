"""Measure everything that the project promises about speed; print it and keep it."""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import (
    augmentation,
    flower,
    heads,
    importing,
    labelling,
    page,
    rounds,
    scale,
    serving,
    startup,
)
from benchmarks.origin import commit, machine
from benchmarks.regressions import regressions
from calibre.registry import OBJECTIVES

LATEST = page.LATEST


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--repeats", type=int, default=3, help="of the federated rounds")
    parser.add_argument("--only", default="", help="words in the benchmark's name")
    parser.add_argument(
        "--check",
        action="store_true",
        help="keep nothing; name what is more than 5 %% worse than what is kept, and exit with 1",
    )
    arguments = parser.parse_args()
    suite: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "startup": lambda: [startup.help_seconds(), startup.first_client_seconds()],
        "augmentation": lambda: [_augmentation()],
        "heads": lambda: [_heads(), _solved_heads()],
        "memory": lambda: [startup.memory()],
        "rounds cnn": lambda: rounds.spine("cnn", 32, arguments.repeats),
        "rounds resnet18": lambda: rounds.spine("resnet18", 16, arguments.repeats),
        **{
            f"objective {name}": partial(rounds.objective, name, arguments.repeats)
            for name in OBJECTIVES
            if name != "simclr"  # above
        },
        "supervised": lambda: rounds.supervised(arguments.repeats),
        "labels": lambda: rounds.labels(arguments.repeats),
        "scale": scale.measure,
        "importing": lambda: [importing.measure()],
        "flower": flower.measure,
        "serving": serving.measure,
        "labelling": labelling.measure,
    }
    results: list[dict[str, Any]] = []
    table = Table("benchmark", "measured", "target", "")
    for name, measure in suite.items():
        if all(word in name for word in arguments.only.split()):
            print(f"measuring {name} ...", flush=True)
            results += measure()
    for result in results:
        result["ratio"] = round(result["ratio"], 3)
        result |= {"met": _met(result), "commit": commit(), "machine": machine()}
        table.add_row(
            result["name"],
            f"{result['ratio']:g}",
            result["target"],
            "ok" if result["met"] else "NO",
        )
    console = Console()
    console.print(table)
    if arguments.check:
        worse = regressions(results, _kept())
        for regression in worse:
            console.print(f"[bold red]regressed:[/] {escape(str(regression))}", highlight=False)
        sys.exit(1 if worse else 0)
    _keep(results)


def _keep(results: list[dict[str, Any]]) -> None:
    """Renew what was measured; each result says of which commit it is."""
    merged = {result["name"]: result for result in [*_kept(), *results]}
    LATEST.write_text(json.dumps(list(merged.values()), indent=2) + "\n")
    page.write()


def _kept() -> list[dict[str, Any]]:
    known: list[dict[str, Any]] = json.loads(LATEST.read_text()) if LATEST.exists() else []
    return known


def _met(result: dict[str, Any]) -> bool:
    sign, bound = result["target"].split()
    measured: float = result["ratio"]
    return measured >= float(bound) if sign == ">=" else measured <= float(bound)


def _augmentation() -> dict[str, Any]:
    speeds = {threads: augmentation.measure(threads, 3.0) for threads in (1, 2)}
    return {
        "name": "SimCLR views of 32 x 32 colour images per second, 2 threads",
        "ratio": speeds[2],
        "target": ">= 20000",
        "settings": {"threads": {str(k): round(v) for k, v in speeds.items()}},
    }


def _heads() -> dict[str, Any]:
    measured = heads.measure()
    return {
        "name": "150 personal heads trained together against one by one",
        "ratio": measured["ratio"],
        "target": ">= 20",
        "settings": measured,
    }


def _solved_heads() -> dict[str, Any]:
    measured = heads.solve()
    return {
        "name": "seconds to cross-validate and solve the heads of 1,000 clients of 50 labels",
        "ratio": measured["seconds"],
        "target": "<= 20",
        "settings": measured,
    }


if __name__ == "__main__":
    main()
