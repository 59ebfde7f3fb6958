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


TESTS = Path(__file__).parent
BEYOND_MODULES = {  # what these test is no single module's doing
    "attack": "seeded cases against the whole",
    "benchmarks": "the benchmarks' own modules",
    "golden": "the bits of whole runs",
    "deploy/test_bits.py": "the same bits on a grid",
    "deploy/test_deployment.py": "the walk-through, with real processes",
    "deploy/test_faults.py": "what fails between real processes",
    "engine/test_bits.py": "the same bits after any kill",
    "engine/test_foreign_files.py": "files of a run that are another's, or changed",
    "engine/test_full_disk.py": "what a machine may lack",
    "engine/test_stl10.py": "every objective on large images",
    "finished/test_going_on.py": "an updated run, tested on nothing that was trained on",
    "test_as_folders.py": "an example",
    "test_documents.py": "documents",
    "test_extending.py": "documents",
    "test_install.py": "how it comes to a machine",
    "test_names.py": "this",
    "test_practitioner.py": "a person's whole way",
}


def test_tests_lie_where_their_module_does():
    """``tests/data/test_cache.py`` tests ``calibre/data/cache.py``, or a package of that name."""
    astray = []
    for file in sorted(TESTS.rglob("test_*.py")):
        place = file.relative_to(TESTS)
        if {str(place), place.parts[0]} & BEYOND_MODULES.keys():
            continue
        if place.stem.endswith("_in_browser"):  # a page is made of several modules
            continue
        name = place.stem.removeprefix("test_")
        package = ROOT / place.parent
        known = (package / f"{name}.py", package / name / "__init__.py")
        if not any(path.exists() for path in known) and name != package.name:
            astray.append(str(place))
    assert astray == []


def test_what_is_beyond_modules_is_there():
    assert [name for name in BEYOND_MODULES if not (TESTS / name).exists()] == []


def test_every_test_asserts_something():
    """Itself, or by a helper that it calls, of its own file or of another one of the tests."""
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in TESTS.rglob("*.py")}
    helpers = {_module(file): _telling(tree, set()) for file, tree in trees.items()}
    silent = []
    for file, tree in sorted(trees.items()):
        imported = {
            name.asname or name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for name in node.names
            if name.name in helpers.get(node.module or "", ())
        }
        silent += [
            f"{file.relative_to(TESTS)}: {function.name}"
            for function in _functions(tree)
            if function.name.startswith("test_") and function.name not in _telling(tree, imported)
        ]
    assert silent == []


def _module(file: Path) -> str:
    return ".".join(["tests", *file.relative_to(TESTS).with_suffix("").parts])


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _telling(tree: ast.Module, helpers: set[str]) -> set[str]:
    """The functions of a file that assert, or call one that does."""
    telling = {"raises", "fail", "until", *helpers}  # until: a browser's wait, which fails
    while True:
        more = {f.name for f in _functions(tree) if _asserts(f, telling)} - telling
        if not more:
            return telling
        telling |= more


def _asserts(function: ast.FunctionDef, telling: set[str]) -> bool:
    """Whether it has an assertion, calls what is ``telling``, or a program that must succeed."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in telling or name.startswith("assert_"):
                return True
            if any(keyword.arg == "check" for keyword in node.keywords):
                return True
    return False
