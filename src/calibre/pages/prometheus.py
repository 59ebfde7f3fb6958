"""Counts and durations in Prometheus's text form.

Labels hold words of our own only (a route, a status), so that no caller can make them many.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable

KIND = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Series = tuple[str, str]  # a metric's name, and its labels as they are written


class ServiceMetrics:
    """All that one server counts; used from its event loop alone."""

    def __init__(self) -> None:
        self._help: dict[str, tuple[str, str]] = {}  # kind and meaning by name
        self._counts: Counter[Series] = Counter()
        self._looked_up: dict[str, Callable[[], float]] = {}
        self._buckets: dict[Series, list[int]] = defaultdict(lambda: [0] * (len(SECONDS) + 1))
        self._sums: dict[Series, float] = defaultdict(float)

    def count(self, name: str, meaning: str, by: int = 1, **labels: str) -> None:
        self._help.setdefault(name, ("counter", meaning))
        self._counts[name, _labels(labels)] += by

    def look_up(
        self, name: str, meaning: str, value: Callable[[], float], kind: str = "gauge"
    ) -> None:
        """A value that is looked up whenever it is asked for."""
        self._help.setdefault(name, (kind, meaning))
        self._looked_up[name] = value

    def took(self, name: str, meaning: str, seconds: float, **labels: str) -> None:
        """One more duration of a histogram."""
        self._help.setdefault(name, ("histogram", meaning))
        series = name, _labels(labels)
        self._buckets[series][bisect_left(SECONDS, seconds)] += 1
        self._sums[series] += seconds

    def text(self) -> str:
        lines = []
        for name, (kind, meaning) in sorted(self._help.items()):
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            if name in self._looked_up:
                lines.append(f"{name} {self._looked_up[name]():g}")
            lines += [
                f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"
                for (own, labels), value in sorted(self._counts.items())
                if own == name
            ]
            for own, labels in sorted(self._buckets):
                if own == name:
                    lines += self._histogram(name, labels)
        return "\n".join(lines) + "\n"

    def _histogram(self, name: str, labels: str) -> list[str]:
        buckets = self._buckets[name, labels]
        before = f"{labels}," if labels else ""
        own = f"{{{labels}}}" if labels else ""
        bounds = [*(f"{bound:g}" for bound in SECONDS), "+Inf"]
        return [
            *(
                f'{name}_bucket{{{before}le="{bound}"}} {sum(buckets[: place + 1])}'
                for place, bound in enumerate(bounds)
            ),
            f"{name}_sum{own} {self._sums[name, labels]:g}",
            f"{name}_count{own} {sum(buckets)}",
        ]


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
