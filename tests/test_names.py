"""A name means one thing: no two classes share one, and no two modules."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import calibre

ROOT = Path(calibre.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ENTRIES = ("__init__", "__main__")


def places(named: Iterator[tuple[str, Path]]) -> dict[str, list[str]]:
    """Where each name stands that stands in more than one place."""
    found = defaultdict(list)
    for name, file in named:
        found[name].append(str(file.relative_to(ROOT)))
    return {name: where for name, where in found.items() if len(where) > 1}


def test_there_are_files_to_look_at():
    assert len(FILES) > 100


def test_no_two_classes_share_a_name():
    assert not places(
        (node.name, file)
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )


def test_no_two_modules_or_packages_share_a_name():
    """``calibre`` is the package and the method that it is named for."""
    modules = ((file.stem, file) for file in FILES if file.stem not in ENTRIES)
    packages = ((file.parent.name, file) for file in FILES if file.stem == "__init__")
    both = [*modules, *((name, file) for name, file in packages if name != ROOT.name)]
    assert not places(iter(both))
