"""docs/speed.md: its tables, made from what the benchmarks kept.

python -m benchmarks.page
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

from benchmarks import peers

LATEST = Path(__file__).parent / "latest.json"
PAGE = LATEST.parents[1] / "docs" / "speed.md"
BLOCK = re.compile(r"(<!-- benchmarks: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
SIGNS = {">=": "at least", "<=": "at most"}


def promises() -> str:
    """Each promise, and what was measured; in bold what misses it."""
    kept = json.loads(LATEST.read_text())
    lines = ["| | measured | promise | commit |", "|---|---:|---:|---|"]
    for result in sorted(kept, key=lambda result: result["name"].lower()):
        sign, bound = result["target"].split()
        figure = _figure(result["ratio"])
        measured = figure if result["met"] else f"**{figure}**"
        promise = f"{SIGNS[sign]} {_figure(float(bound))}"
        lines.append(f"| {result['name']} | {measured} | {promise} | {result['commit']} |")
    return "\n".join(lines)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


def beside_peers() -> str:
    return peers.table(json.loads(peers.KEPT.read_text())["peers"])


TABLES: dict[str, Callable[[], str]] = {"promises": promises, "peers": beside_peers}


def filled(text: str) -> str:
    """The page with its tables as the kept figures have them."""
    return BLOCK.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def write() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
