"""Where a number comes from: which code, which commit, which machine."""

import ast
import hashlib
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

import calibre
from calibre.cores import usable_cores
from calibre.errors import UserError
from calibre.settings import Settings

ROOT = Path(calibre.__file__).parent
# what decides the bits of a result; the rest reads, shows and carries them
DECIDING = (
    "calibration", "data", "engine", "local", "methods", "models", "personal", "ssl", "rng.py",
    "tensors.py",
)  # fmt: skip


LONGEST = 200  # characters of a fact


def _in_one_line(text: str) -> str:
    if not text.isprintable() or set("<|>") & {*text}:
        raise ValueError("it is not plain text in one line")
    return text


# what pages can show as it is
PlainText = Annotated[str, Field(min_length=1, max_length=LONGEST), AfterValidator(_in_one_line)]


class Source(Settings):
    """Who carries a run out."""

    code: PlainText  # hash of what decides results
    commit: PlainText
    machine: PlainText

    @staticmethod
    def here() -> "Source":
        return Source(code=code_hash(), commit=commit(), machine=machine())

    def check_unchanged(self) -> None:
        """Workers load the source as it is now, this process holds it as it was."""
        if code_hash() != self.code:
            raise UserError(
                "the source of Calibre has changed since this command began, so its workers would "
                "run other code than it does itself: give the same command again, best in a "
                "checkout that nobody edits"
            )


def code_hash(root: Path = ROOT) -> str:
    """Of the code that decides results, as the interpreter sees it: words for people do not count.

    Comments, docstrings, blank lines and the order of files on a disk change nothing.
    """
    digest = hashlib.sha256()
    for name in DECIDING:
        place = root / name
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            digest.update(f"{file.relative_to(root).as_posix()}\n".encode())
            digest.update(ast.dump(_without_docstrings(tree)).encode())
    return digest.hexdigest()[:16]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return tree


def commit(root: Path = ROOT) -> str:
    """Of the source, with a plus where files differ from it; "unknown" outside a repository."""
    head = _git(root, "rev-parse", "--short=10", "HEAD")
    if not head:
        return "unknown"
    return head + ("+" if _git(root, "status", "--porcelain", "--", ".") else "")


def _git(root: Path, *words: str) -> str:
    program = shutil.which("git")
    if program is None:
        return ""
    done = subprocess.run(  # noqa: S603
        [program, "-C", str(root), *words], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def machine() -> str:
    """What the seconds of a run were measured on."""
    cores = usable_cores()
    named = _processor() or platform.machine()
    said = f"{cores} core{'s' * (cores > 1)} of {named}, {platform.system()}"
    return "".join(c for c in said if c.isprintable() and c not in "<|>")[:LONGEST]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
