"""What holds of every page: its lines are short, its links lead somewhere, the code knows it."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").glob("*.md"))]
WIDTH = 100
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> list[str]:
    """The lines of a page that are neither of code nor of a table nor made by a program."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^<!-- evidence:.*?^<!-- end -->$", "", text, flags=re.M | re.S)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return [line for line in text.splitlines() if not line.startswith("|")]


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = [line.lstrip("# ") for line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def problem(page: Path, target: str) -> str | None:
    path, _, anchor = target.partition("#")
    other = (page.parent / path).resolve() if path else page
    if not other.exists():
        return f"{target}: there is no such file"
    if anchor and anchor not in anchors(other):
        return f"{target}: there is no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_prose_are_short(page):
    assert [line for line in prose(page) if len(line) > WIDTH and " " in line.strip()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    own = [target for target in targets if not target.startswith("http")]
    assert [said for target in own if (said := problem(page, target))] == []


def test_every_page_is_listed_in_the_readme():
    listed = {Path(target).name for target in LINK.findall(PAGES[0].read_text(encoding="utf-8"))}
    assert [page.name for page in PAGES[1:] if page.name not in listed] == []


def test_the_plan_of_the_house_is_the_one_that_is_held():
    """All layers of the imports, from the ground up."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contract["contracts"][0]["layers"]
    height = {name: -i for i, layer in enumerate(layers) for name in layer.split(" | ")}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| package |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [sorted(re.findall(r"`(\w+)`", row.split("|")[1]), key=height.get) for row in table]
    shown = [name for row in rows for name in row]
    assert sorted(shown) == sorted(height.keys() - {"__main__"})
    assert [height[name] for name in shown] == sorted(height[name] for name in shown)


def test_code_names_only_documents_that_are_here():
    named = {
        (str(file.relative_to(ROOT)), name)
        for folder in ("src", "tests", "benchmarks", "examples")
        for file in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"\bdocs/[\w/.-]+\.md\b", file.read_text(encoding="utf-8"))
    }
    assert named  # there are some
    assert [(file, name) for file, name in sorted(named) if not (ROOT / name).exists()] == []
