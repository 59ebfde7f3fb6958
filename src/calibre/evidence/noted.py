"""Who ran a run: noted in its folder before it begins, and whenever it goes on.

Whoever enters it into the ledger later may be of other code.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from calibre.errors import UserError
from calibre.evidence.origin import Source
from calibre.files import write_atomic
from calibre.report.events import Started, parse
from calibre.run_files import RunFiles
from calibre.run_folder import RunFolder
from calibre.settings import Settings, first_of


class Note(Settings):
    """Of the first attempt, and of every one that went on."""

    sources: Annotated[tuple[Source, ...], Field(min_length=1)]


def note(folder: Path, source: Source, enters: bool = False) -> None:
    """Note who is about to run it.

    A run that was begun without a note stays without: nobody knows of which code it is. One that
    ``enters`` the ledger is refused now if it would be refused there.
    """
    source.check_unchanged()
    place = RunFolder(folder)
    with place.claimed():
        earlier = _sources(folder)
        begun = bool(earlier) or place.begun or place.checkpoints.exists()
        if enters and begun and who_ran(folder).code != source.code:
            raise _unfit(folder, "was begun by other code")
        if earlier or not begun:
            told = Note(sources=(*earlier, source))
            write_atomic(place.source, told.model_dump_json(indent=2) + "\n")


def who_ran(folder: Path) -> Source:
    """The one whose code ran all of it, as it was when it went on for the last time."""
    sources = _sources(folder)
    if not sources:
        raise _unfit(folder, f"does not say which code ran it ({RunFiles(folder).source.name})")
    if len(sources) < _starts(folder):
        raise _unfit(folder, "went on without a note of which code did")
    if len(codes := sorted({source.code for source in sources})) > 1:
        raise _unfit(folder, f"was run by unlike code ({', '.join(codes)})")
    return sources[-1]


def ran_all(source: Source, folder: Path) -> bool:
    """Whether nothing but this code ran it."""
    try:
        return who_ran(folder).code == source.code
    except UserError:
        return False


def _sources(folder: Path) -> tuple[Source, ...]:
    path = RunFiles(folder).source
    try:
        return Note.model_validate_json(path.read_bytes()).sources
    except FileNotFoundError:
        return ()
    except (OSError, ValidationError) as error:
        raise _unfit(
            folder, f"has a note that is damaged ({path.name}: {first_of(error)})"
        ) from None


def _starts(folder: Path) -> int:
    """How often it began or went on, by its log."""
    path = RunFiles(folder).events
    if not path.is_file():
        return 0
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return sum(isinstance(parse(line), Started) for line in lines if '"start"' in line)


def _unfit(folder: Path, cause: str) -> UserError:
    return UserError(
        f"{folder} {cause}, and an entry of the ledger is of one code that is known: remove the "
        "folder, or give another one with --out, and run it again"
    )
