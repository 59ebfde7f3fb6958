"""Tables within tables, as experiments are written: laid over each other, flattened, changed."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from calibre.errors import UserError
from calibre.files import parse_toml, read_toml
from calibre.registry import DEFAULT_METHOD, DEFAULT_OBJECTIVE


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, by dotted keys: ``{"method.sgd.lr": 0.05, ...}``."""
    table: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            table |= flat(value, f"{prefix}{key}.")
        else:
            table[prefix + key] = value
    return table


def overlay(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The new over the old, table by table."""
    merged = dict(old)
    for key, given in new.items():
        held = merged.get(key)
        if isinstance(held, Mapping) and isinstance(given, Mapping):
            # what was set for another method is not meant for this one
            another = given.get("name", held.get("name")) != held.get("name")
            given = dict(given) if another else overlay(held, given)
        merged[key] = given
    return merged


def drop(values: Mapping[str, Any], key: str, value: Any) -> None:
    """Take the dotted ``key`` out, in place, where it has this value."""
    *path, last = key.split(".")
    table: Any = values
    for name in path:
        table = table.get(name) if isinstance(table, Mapping) else None
    if isinstance(table, dict) and table.get(last) == value:
        del table[last]


def changed(values: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """A table with changes written ``section.key=value``; choices by name are made first."""
    table = dict(values)
    for change in sorted(changes, key=_order):
        _apply(table, change)
    return table


def gather(file: Path | str | None = None, changes: Iterable[str] = ()) -> dict[str, Any]:
    """The values of an experiment's file, changed, but not yet checked."""
    return changed(read_toml(Path(file)) if file is not None else {}, changes)


# what is chosen by name, in the order in which choices are made, and what an absent name means
CHOICES = ("method", "method.name", "method.objective", "method.objective.name")
DEFAULTS = {"method.name": DEFAULT_METHOD, "method.objective.name": DEFAULT_OBJECTIVE}


def _order(change: str) -> int:
    """Which method, then which objective, then the rest, in whatever order they were typed."""
    key = change.partition("=")[0].strip()
    return CHOICES.index(key) if key in CHOICES else len(CHOICES)


def _apply(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UserError(f"--set {change}: write section.key=value, e.g. --set training.rounds=10")
    for name in path[:-1]:
        inner = values.get(name, {})
        # method = "fedavg" and method = {name = "fedavg"} say the same; so does an objective
        values[name] = dict(inner) if isinstance(inner, Mapping) else {"name": inner}
        values = values[name]
    old = values.get(path[-1])
    value = _parse(key.strip(), text.strip())
    if isinstance(old, Mapping) and isinstance(value, str):
        value = {"name": value}
    if (default := DEFAULTS.get(".".join(path))) and value != (old or default):
        values.clear()  # what was set for another method is not meant for this one
    values[path[-1]] = value


def _parse(key: str, text: str) -> Any:
    """A TOML value; a bare word is a string, so that ``--set method.name=fedavg`` just works."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise UserError(f"--set {key}={text[:60]}...: {error}") from None
