"""Pages made from the ledger: whatever they say of runs stands between two markers.

    <!-- evidence: NAME -->
    ... made by  calibre-fl evidence build ...
    <!-- end -->

What is outside is typed by hand, and tells no number of a run. A picture's name ends in a hash of
the runs that it shows, so that a page with the right text has the right pictures.
"""

import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibre.errors import UserError
from calibre.evidence.kept import Evidence
from calibre.files import write_atomic
from calibre.recipes import all_recipes, folders, gathered, summary
from calibre.recipes.gathered import Passage, gather, state_of
from calibre.report.figures.style import drawn_as
from calibre.settings import nearest

PAGES = ("README.md", "docs/results.md")
IMAGES = "docs/images/evidence"
BLOCK = re.compile(
    r"(?P<head><!-- evidence: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(?P<tail><!-- end -->)", re.DOTALL
)
MARKER, END = re.compile(r"<!--\s*evidence"), "<!-- end -->"  # also where they are mistyped
BLOCKS: Mapping[str, Callable[[Evidence], Passage]] = {
    "summary": summary.passage, "folders": folders.passage,
}  # fmt: skip
DPI = 150
WIDTH = 100


@dataclass(frozen=True)
class Published:
    """Pages and pictures as the ledger has them, not yet written."""

    root: Path
    pages: Mapping[str, str]
    pictures: Mapping[str, Callable[[], Any]]  # by path
    unused: tuple[str, ...]  # entries that no page rests on

    def write(self) -> Iterator[Path]:
        """Write what has changed, and remove pictures of other runs; say which files these are.

        Everything is drawn before anything is written, and pages come after what they show.
        """
        drawn = {name: drawn_as("png", draw(), DPI) for name, draw in self.pictures.items()}
        texts = {name: text.encode() for name, text in self.pages.items()}
        (self.root / IMAGES).mkdir(parents=True, exist_ok=True)
        for name, content in {**drawn, **texts}.items():
            file = self.root / name
            if not file.is_file() or file.read_bytes() != content:
                write_atomic(file, content)
                yield file
        for name in sorted(held_pictures(self.root) - self.pictures.keys()):
            (self.root / name).unlink()
            yield self.root / name


def held_pictures(root: Path) -> set[str]:
    return {file.relative_to(root).as_posix() for file in (root / IMAGES).glob("*.png")}


def build(root: Path, evidence: Evidence) -> Published:
    """All pages anew, from the entries of this ledger."""
    evidence.check_code()
    if (root / IMAGES).exists() and not (root / IMAGES).is_dir():
        raise UserError(f"{root / IMAGES} is not a folder, and pictures belong there: take it away")
    pages: dict[str, str] = {}
    pictures: dict[str, Callable[[], Any]] = {}
    used: set[str] = set()

    def content(name: str, page: str) -> str:
        made = _made(name, page, evidence)
        used.update(entry.name for entry in made.held)

        def place(picture: str) -> str:
            path = f"{IMAGES}/{name}-{picture}-{state_of(made.shown)}.png"
            pictures[path] = made.conclusion.pictures[picture]
            return os.path.relpath(path, Path(page).parent.as_posix())

        return wrapped(made.conclusion.placed(place))

    for page in PAGES:
        pages[page] = _filled(root, page, content)
    unused = sorted(entry.name for entry in evidence.entries.values() if entry.name not in used)
    return Published(root, pages, pictures, tuple(unused))


def _made(name: str, page: str, evidence: Evidence) -> Passage:
    """A recipe's block, or one that rests on several or on none."""
    recipes = {n: recipe for n, recipe in all_recipes.recipes().items() if not recipe.models}
    if name in recipes:
        return gathered.passage(gather(recipes[name], evidence))
    if name in BLOCKS:
        return BLOCKS[name](evidence)
    known = nearest(name, [*recipes, *BLOCKS])
    raise UserError(f"{page}: there is no evidence '{name}': {known}")


def wrapped(text: str) -> str:
    """Lines of prose no longer than a page's; tables, headings and pictures as they are."""
    return "\n".join(
        line
        if line.startswith(("|", "#", "!")) or len(line) <= WIDTH
        else textwrap.fill(
            line,
            WIDTH,
            subsequent_indent="  " if line.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.splitlines()
    )


def _filled(root: Path, page: str, content: Callable[[str, str], str]) -> str:
    """The page with all its blocks made anew."""
    try:
        text = (root / page).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {root / page}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"cannot read {root / page}: it is not text in UTF-8") from None
    if not len(BLOCK.findall(text)) == len(MARKER.findall(text)) == text.count(END):
        raise UserError(
            f"{root / page}: a block of evidence has no  {END}, or does not begin with "
            " <!-- evidence: NAME -->  alone on its line"
        )
    return BLOCK.sub(
        lambda block: f"{block['head']}{content(block['name'], page)}\n{block['tail']}", text
    )
