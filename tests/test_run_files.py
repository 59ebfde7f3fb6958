"""The names of a run's files stand in one place."""

import ast
from pathlib import Path

import calibre
from calibre.run_files import RunFiles

ROOT = Path(calibre.__file__).parent


def spelt(file: Path) -> set[str]:
    """The last part of every string of a module that could be a path."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    strings = (node.value for node in nodes if isinstance(node, ast.Constant))
    return {text.rpartition("/")[2] for text in strings if isinstance(text, str)}


def test_no_other_module_spells_the_name_of_a_file_of_runs():
    """Names without an ending are words of other meanings too, and are not looked for."""
    places = [place for place in vars(RunFiles(Path("run"))).values() if place.suffix]
    names = {place.name for place in places}
    assert len(names) > 10
    assert names <= spelt(ROOT / "run_files.py")
    elsewhere = {
        (str(file.relative_to(ROOT)), name)
        for file in sorted(ROOT.rglob("*.py"))
        for name in spelt(file) & names
    }
    assert {file for file, _ in elsewhere} == {"run_files.py"}


def test_all_files_of_a_run_lie_in_its_folder():
    folder = Path("runs/first")
    places = [place for name, place in vars(RunFiles(folder)).items() if name != "path"]
    assert all(folder in place.parents for place in places)
    assert len(set(places)) == len(places)
