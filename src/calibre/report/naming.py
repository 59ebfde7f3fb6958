"""What clients are called: on axes, as folders, and by whoever types a name."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from calibre.errors import UserError
from calibre.report.metrics import ClientResult
from calibre.settings import nearest

SHORT = 18  # letters that an axis has room for
LONGEST = 60  # letters of a folder's name: 4 bytes each at most, which every file system takes
UNSAFE = re.compile(r"[^\w \-+.,=()@#%']")
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # on Windows


def short_name(client: int, name: str) -> str:
    """For an axis: the number of a client that was made up, the name of one that has its own."""
    if name in (f"client-{client}", f"novel-{client}"):
        return str(client)
    return name if len(name) <= SHORT else name[: SHORT - 1] + "…"


def folder_names(names: Sequence[str]) -> list[str]:
    """A folder's name for each client of a run: its own name, where that is safe and unlike others.

    Names come from other people's data. What could lead out of a folder, hide it, or fall together
    with another one where case is ignored, is replaced, and the client's number added.
    """
    given = [unicodedata.normalize("NFC", name) for name in names]
    safe = [_safe(name) for name in given]
    alike = Counter(name.casefold() for name in safe)
    taken = {
        name.casefold()
        for name, own in zip(safe, given, strict=True)
        if name == own and alike[name.casefold()] == 1
    }
    folders = []
    for number, (name, own) in enumerate(zip(safe, given, strict=True)):
        folder = name
        if name != own or name.casefold() not in taken:
            folder = f"{name}-{number}"
            while folder.casefold() in taken:
                folder += "+"
            taken.add(folder.casefold())
        folders.append(folder)
    return folders


def _safe(name: str) -> str:
    name = UNSAFE.sub("_", name)[:LONGEST].strip(". ")
    return f"_{name}" if not name or RESERVED.fullmatch(name) else name


def find_clients(clients: Sequence[ClientResult], wanted: Sequence[str]) -> list[int]:
    """The numbers of clients that are given by name or number; a name that is a number counts."""
    names = {row.name: row.id for row in clients}
    known = {str(row.id): row.id for row in clients} | names
    for name in wanted:
        if name not in known:
            raise UserError(f"the run has no client '{name}': {nearest(name, names)}")
    return list(dict.fromkeys(known[name] for name in wanted))


def find_listed(clients: Sequence[ClientResult], text: str) -> list[int]:
    """The same of a list such as ``north,0,5-8``, with ranges of numbers."""
    names = {row.name for row in clients}
    found: list[int] = []
    for part in [text] if text in names else text.split(","):
        name = part.strip()
        first, _, last = name.partition("-")
        if name not in names and first.isdecimal() and last.isdecimal():
            inside = [row.id for row in clients if int(first) <= row.id <= int(last)]
            if not inside:
                raise UserError(f"the run has no clients {name}: its {len(clients):,} begin at 0")
            found += inside
        else:
            found += find_clients(clients, [name])
    return list(dict.fromkeys(found))
