"""What every section of an experiment is made of: frozen, typed, and strict about its keys."""

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from calibre.errors import UserError


class Settings(BaseModel):
    """A frozen set of values; unknown keys are mistakes, and so are NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """A table given in part changes only its keys: the others keep this class's defaults.

        ``sgd = {batch = 16}`` leaves a method its own learning rate, not that of SGD at large.
        """
        if not isinstance(values, Mapping):
            return values
        completed = dict(values)
        for name, field in cls.model_fields.items():
            if isinstance(field.default, Settings) and isinstance(values.get(name), Mapping):
                completed[name] = field.default.changed_by(values[name])
        return completed

    def changed_by(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """These values where ``changes`` says nothing else; not yet checked."""
        return {**self.model_dump(), **changes}


LISTED = 60  # names that a message has room for
LONGEST_VALUE = 200  # characters that it has room for


def nearest(word: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` and the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return f"{hint}known: {', '.join(names[:LISTED])}{more}"


def look_up(what: str, name: str, table: Mapping[str, str]) -> Any:
    """The object that ``table`` (or a ``module:attribute`` of the user's own) names.

    A module of the user's own may lie in the folder that a command is called in.
    """
    target = table.get(name, name)
    if ":" not in target:
        raise UserError(f"there is no {what} called '{name}': {nearest(name, table)}")
    module, _, attribute = target.partition(":")
    try:
        if name not in table and (here := os.getcwd()) not in sys.path:
            sys.path.append(here)  # at the end, so that no file there stands for a library
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # of the user's own code, anything
        raise UserError(
            f"{what} '{name}' cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def import_name(thing: Any) -> str:
    """``module:attribute``, by which other processes find a class or function of the user's."""
    module, name = thing.__module__, thing.__qualname__
    if module == "__main__":  # a script; its workers import it by the name of its file
        script = getattr(sys.modules["__main__"], "__file__", None)
        if script is None or Path(script).resolve().parent not in map(_place, sys.path):
            raise UserError(
                f"{name} is defined where worker processes cannot import it from: put it into a "
                "file of its own and import it (in a notebook: %%writefile my_module.py)"
            )
        module = Path(script).stem
    if "." in name or "<" in name:
        raise UserError(
            f"{name} is defined inside another function or class, where worker processes cannot "
            "import it from: move it to the top of its file and give it a name"
        )
    return f"{module}:{name}"


def _place(entry: str) -> Path:
    return Path(entry).resolve()


def _by_name(value: Any) -> Any:
    return import_name(value) if callable(value) else value


Importable = Annotated[str, BeforeValidator(_by_name)]  # a name; a function stands for its own


def named(
    what: str,
    base: type[Settings],
    table: Mapping[str, str],
    default: str,
    presets: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Callable[[Any], Any]:
    """A validator: ``"x"`` or ``{name = "x", ...}`` becomes settings of the class in ``table``.

    A name may stand for a class with some of its fields set: ``presets`` has those. In Python, a
    class or its settings may stand for themselves. The classes carry the algorithm beside its
    hyper-parameters, so one section of an experiment both chooses a method and sets it.
    """

    def resolve(value: Any) -> Any:
        if isinstance(value, type) and issubclass(value, base):
            value = validate(value, {}, path=f"{what}.")
        if isinstance(value, base):
            return _findable(value, table)
        if not isinstance(value, str | Mapping):
            raise UserError(f"{what} = {value!r}: give a name; {nearest(str(value), table)}")
        fields = {"name": value} if isinstance(value, str) else {"name": default, **value}
        if not isinstance(fields["name"], str):
            raise UserError(f"{what}.name = {fields['name']!r}: give a name in quotes")
        kind = look_up(what, fields["name"], table)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise UserError(f"{what} '{fields['name']}' must be a class of {base.__name__}")
        return validate(kind, {**presets.get(fields["name"], {}), **fields}, path=f"{what}.")

    return resolve


def _findable(value: Settings, table: Mapping[str, str]) -> Settings:
    """These settings, called by a name under which other processes find their class."""
    kind = type(value)
    own = f"{kind.__module__}:{kind.__qualname__}"
    if table.get(getattr(value, "name", ""), "") == own:
        return value
    return value.model_copy(update={"name": import_name(kind)})


def validate(model: type[Settings], values: Mapping[str, Any], path: str = "") -> Any:
    """``model`` from plain values; what is wrong comes back in the user's words."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_explain(model, dict(problem), path) for problem in error.errors()]
        raise UserError("\n".join(dict.fromkeys(lines))) from None


def first_of(error: Exception) -> str:
    """What is wrong, in one line; of all that pydantic found, the first."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))[:200]
    said = str(first["msg"])[:200]
    return f"{where}: {said}" if where else said


def _explain(model: type[BaseModel], problem: dict[str, Any], path: str) -> str:
    cause = problem.get("ctx", {}).get("error")
    where = [part for part in problem["loc"] if isinstance(part, str)]
    key = path + ".".join(where)
    if isinstance(cause, UserError):
        return str(cause)  # a section of its own, already explained
    if problem["type"] == "extra_forbidden":
        section = _section(model, where[:-1])
        if not path and (inside := _sections_with(section, where[-1])):
            told = " or ".join(f"'{key.removesuffix(where[-1])}{name}'" for name in inside)
            return f"unknown key '{key}': did you mean {told}?"
        return f"unknown key '{key}': {nearest(where[-1], section.model_fields)}"
    said = problem["msg"][0].lower() + problem["msg"][1:]
    if problem["type"] == "missing":
        return f"{key}: {said}"
    return f"{key} = {_shown(problem['input'])}: {said}"


def _shown(value: Any) -> str:
    """A value as a message has room for it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # of endless digits, or of tables within tables
        return "..."
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _sections_with(model: type[BaseModel], key: str) -> list[str]:
    """Where a key belongs that was written without its section."""
    sections = {name: _section(model, [name]) for name in model.model_fields}
    return [
        f"{name}.{key}"
        for name, section in sections.items()
        if section is not model and key in section.model_fields
    ]


def _section(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for name in path:
        annotation = model.model_fields[name].annotation
        for kind in (annotation, *get_args(annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                model = kind
                break
    return model
