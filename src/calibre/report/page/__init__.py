"""The report page: runs as one HTML file that needs no network, no server and no other file.

Names of clients, classes and folders come from other people. They are escaped where they stand in
the page, put into it as text by its scripts, and the page's policy allows no script but its own.
"""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from calibre.data.federation import load as load_federation
from calibre.errors import UserError
from calibre.files import write_atomic
from calibre.report.compare import compare
from calibre.report.comparison_tables import OF_CLIENTS, OF_RUNS
from calibre.report.events import Started
from calibre.report.floors import title_of
from calibre.report.metrics import summary
from calibre.report.page import plotted, story
from calibre.report.page.wrong_answers import where_to_find, wrong_answers
from calibre.report.rows import KINDS, Estimate
from calibre.report.runs import Run

SCRIPTS = ("stage.js", "plots.js", "charts.js", "table.js", "wrong.js", "page.js")


def write_page(runs: Sequence[Run], path: Path) -> None:
    """Write the page of one run, or of several and how they compare."""
    page = render(runs)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, page)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def render(runs: Sequence[Run]) -> str:
    """The page as text: the same runs give the same bytes."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.policies["json.dumps_kwargs"] = {
        "separators": (",", ":"), "allow_nan": False, "ensure_ascii": False,
    }  # fmt: skip
    style = _asset("page.css")
    script = '"use strict";\n{\n' + "\n".join(map(_asset, SCRIPTS)) + "}\n"
    comparison = _comparison(runs) if len(runs) > 1 else None
    labels = comparison["labels"] if comparison else {}
    sections = [_section(run, labels.get(run.folder, run.label)) for run in runs]
    return environment.from_string(_asset("page.html")).render(
        title=sections[0]["title"] if len(runs) == 1 else f"{len(runs)} runs compared",
        runs=sections,
        comparison=comparison,
        data={"runs": [section.pop("data") for section in sections]},
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _section(run: Run, label: str) -> dict[str, Any]:
    """One run: the words and tables of its part of the page, and the data of its scripts."""
    warnings = story.warnings(run)
    try:
        federation = load_federation(run.folder)
        heat, about = plotted.class_map(federation), federation.datasheet["description"]
        warnings += story.left_out(federation.datasheet.get("left_out", {}))
    except UserError as error:
        heat, about = None, ""
        warnings.append(f"who holds what is not shown: {error}")
    shown = plotted.shown_clients(run.clients)
    if len(shown) < len(run.clients):
        warnings.append(
            f"of {len(run.clients):,} clients, charts and table show {len(shown):,}, evenly spread "
            "from the worst to the best; clients.csv has all of them"
        )
    name = run.folder.resolve().name.encode(errors="replace").decode()
    wrong = wrong_answers(run)
    return {
        "title": f"{run.label} on {run.experiment.data.title}",
        "name": name,
        "heading": f"{label}, seed {run.seed} · {name}",
        "verdict": story.verdict(run.clients),
        "warnings": warnings,
        "table": _figures(run),
        "about": about,
        "wrong": bool(wrong),
        "where": where_to_find(run),
        "trained": bool(run.rounds),
        "mixed": len({client.novel for client in run.clients}) > 1,
        "toml": _settings(run),
        "facts": _facts(run),
        "commands": _commands(run),
        "data": {
            "name": f"{label}, seed {run.seed}",
            "method": label,
            "floors": {name: title_of(name) for name in run.clients[0].floors},
            "clients": plotted.client_columns(run),
            "curves": plotted.curves(run.rounds),
            "heat": heat,
            "wrong": wrong,
        },
    }


def _figures(run: Run) -> list[dict[str, Any]]:
    """Rows of the table of figures: the method, then the floors, for each kind of client."""
    rows = []
    for novel, group in ((False, "trained"), (True, "novel")):
        clients = [client for client in run.clients if client.novel == novel]
        scores = {run.label: [client.accuracy for client in clients]}
        for floor in clients[0].floors if clients else ():
            scores[title_of(floor)] = [client.floors[floor] for client in clients]
        rows += [
            {"group": group, "model": model, "own": model == run.label, **_measures(values)}
            for model, values in scores.items()
            if values
        ]
    return rows


def _measures(values: Sequence[float]) -> dict[str, float | int]:
    return summary(values).model_dump(exclude={"interval"})


def _facts(run: Run) -> dict[str, str]:
    """What one must know to trust or to repeat the run, beyond its settings."""
    metrics = run.metrics
    starts = [event for event in run.events if isinstance(event, Started)]
    versions = starts[-1].versions if starts else {}
    facts = {
        "seed": str(run.seed),
        "rounds": f"{metrics.rounds:,}",
        "time": f"{metrics.seconds:,.0f} s",
        "failed client updates": f"{metrics.failures:,}",
        "federation (hash)": run.federation,
        "experiment (hash)": metrics.experiment,
        "calibre-fl": metrics.version,
        **versions,
    }
    return {name: value for name, value in facts.items() if value}


def _settings(run: Run) -> str:
    """The experiment as TOML, without the place of the data on one machine."""
    data = run.experiment.data.model_copy(update={"root": None})
    return run.experiment.model_copy(update={"data": data}).to_toml()


def _commands(run: Run) -> str:
    """What to type to get the same numbers from the settings, saved as experiment.toml."""
    from calibre.data.formats.known import KNOWN

    source = run.experiment.data.source
    get = source in KNOWN and source != "digits"  # digits come with scikit-learn
    lines = [
        f"pip install calibre-fl=={run.metrics.version}",
        *([f"calibre-fl data download {source}"] if get else []),
        f"calibre-fl data show experiment.toml    # must print the hash {run.federation}",
        "calibre-fl run experiment.toml --out again",
        "calibre-fl report again",
    ]
    return "\n".join(lines)


def _comparison(runs: Sequence[Run]) -> dict[str, Any]:
    """The methods beside each other; runs that cannot be compared are still shown, with the why."""
    try:
        found = compare(runs)
    except UserError as error:
        return {"refused": str(error), "labels": {}}
    return {
        "refused": "",
        "labels": {
            e.run.folder: row.label for row in found.rows for e in row.entries if not e.floor
        },
        "header": [title for _, title, _, _ in (*OF_CLIENTS, *OF_RUNS)],
        "rows": [
            {
                "label": row.label,
                "group": KINDS[group],
                "cells": [
                    *((row.estimate(group, key), *form) for key, _, *form in OF_CLIENTS),
                    *((_exact(row.cost(key)), *form) for key, _, *form in OF_RUNS),
                ],
            }
            for group in found.groups
            for row in found.rows
        ],
        "tests": [(KINDS[test.group], test) for test in found.tests],
        "notes": found.notes,
    }


def _exact(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(value, None)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
