"""The folder of a bundle: a personal model's files, which can be taken anywhere.

    model.safetensors   the tensors of a Predictor: images in, probabilities and distances out
    card.json           what it is, for programs; with the SHA-256 of everything
    card.md             the same for people
    mistakes.png        its surest mistakes on images of the client's own; may be taken away

Nothing is unpickled, and the network is rebuilt from its settings. Reading checks every hash.
"""

import hashlib
import itertools
import json
import os
import tempfile
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Literal, NamedTuple

from calibre.errors import UserError
from calibre.files import open_regular, sync_folder, write_atomic
from calibre.personal.card import Card
from calibre.personal.card_text import markdown
from calibre.run_files import CARD, MODEL, RunFiles
from calibre.settings import validate
from calibre.wording import quoted

LARGEST_CARD = 2**26  # bytes; a hundred thousand classes have a quarter of it
LARGEST_MODEL = 2**33
LARGEST_PICTURES = 2**23
VERSION = 3
TEXT = "card.md"
PICTURES = "mistakes.png"

# an older bundle is replaced, kept beside the new one (always, or if it is another), or stays
Existing = Literal["replace", "keep", "keep another", "refuse"]


class BundleThereError(UserError):
    """There is a bundle already where one is to be written."""


class BundleContent(NamedTuple):
    card: Card
    model: bytes
    pictures: bytes | None


def write_folder(
    folder: Path, card: Card, model: bytes, pictures: bytes | None, existing: Existing
) -> Card:
    """Write a bundle whole or not at all; its card, with the hashes of the files."""
    check_place(folder, existing)
    text = markdown(card)
    contents: dict[str, bytes] = {MODEL: model, TEXT: text.encode()}
    if pictures is not None:
        contents[PICTURES] = pictures
    hashes = {name: _sha(content) for name, content in contents.items()}
    card = card.model_copy(update={"files": hashes})
    card = card.model_copy(update={"hash": card.digest()})
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as aside:
            made = Path(aside, "new")
            made.mkdir()
            for name, content in contents.items():
                write_atomic(made / name, content)
            write_atomic(made / CARD, _json(card))
            with suppress(FileNotFoundError):
                another = existing == "keep another" and _hash(folder) != card.hash
                kept = (existing == "keep" or another) and _is_bundle(folder)
                os.rename(folder, older_name(folder) if kept else Path(aside, "old"))
            os.rename(made, folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise UserError(f"cannot write the bundle {folder}: {error.strerror}") from None
    return card


def check_place(folder: Path, existing: Existing = "replace") -> None:
    """Whether a bundle may be written there: ask before the work, not after it."""
    if not folder.exists() or _is_empty(folder):
        return
    if not _is_bundle(folder):
        raise UserError(f"{folder} is there and is no bundle: choose another place with --out")
    if existing == "refuse":
        raise BundleThereError(
            f"there is a bundle in {folder} already: choose another place with --out, or say "
            "--replace, and the older one is kept beside it"
        )


def older_name(folder: Path) -> Path:
    """Where the bundle of a folder is kept when a newer one takes its place."""
    numbers = itertools.count(1)
    return next(
        place for n in numbers if not (place := folder.with_name(f"{folder.name}-old-{n}")).exists()
    )


def read_folder(folder: Path) -> BundleContent:
    """What a bundle's folder holds, whole and unchanged since it was made."""
    card = read_card(folder)
    model = _checked(folder, MODEL, card, LARGEST_MODEL)
    _checked(folder, TEXT, card, LARGEST_CARD)
    there = PICTURES in card.files and (folder / PICTURES).exists()
    pictures = _checked(folder, PICTURES, card, LARGEST_PICTURES) if there else None
    return BundleContent(card, model, pictures)


def read_card(folder: Path) -> Card:
    """The card alone, checked against its own hash."""
    path = folder / CARD
    if not path.is_file():
        inside = sorted([*folder.glob(f"*/{CARD}"), *folder.glob(f"bundles/*/{CARD}")])
        hint = ""
        if inside:
            hint = f"; there are bundles inside it, such as {inside[0].parent}"
        elif RunFiles(folder).begun:
            hint = f"; it is a run, whose bundles are made by  calibre-fl bundle {quoted(folder)}"
        raise UserError(f"{folder} is not a bundle: it has no {CARD}{hint}")
    try:
        values = json.loads(_read(path, LARGEST_CARD))
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    if not isinstance(values, dict) or values.get("format") != "calibre-bundle":
        raise UserError(f"{path} is not the card of a bundle")
    if values.get("version") != VERSION:
        raise UserError(
            f"{path} has version {values.get('version')}, this Calibre reads {VERSION}: "
            "make the bundle again, or use the Calibre that made it"
        )
    try:
        card: Card = validate(Card, values)
    except UserError as error:
        raise damaged(path, error) from None
    if card.digest() != card.hash:
        raise damaged(path, "its content does not match its hash")
    return card


def _checked(folder: Path, name: str, card: Card, most: int) -> bytes:
    """A file's content, once its hash is seen to be the card's; before that it gets no memory."""
    with _opened(folder / name, most) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != card.files.get(name):
            raise damaged(folder / name, "its content does not match the card's hash")
        file.seek(0)
        return file.read(most)


def _read(path: Path, most: int) -> bytes:
    with _opened(path, most) as file:
        return file.read(most)


def _opened(path: Path, most: int) -> BufferedReader:
    """A file that may come from anybody: a link could lead anywhere, a pipe might never end."""
    try:
        if path.is_symlink():
            raise UserError(f"{path} is a link: a bundle holds its files itself; fetch it again")
        file = open_regular(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if os.fstat(file.fileno()).st_size > most:
        file.close()
        raise UserError(f"{path} has more than {most:,} bytes: no bundle has such a file")
    return file


def _json(card: Card) -> str:
    return json.dumps(card.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def _hash(folder: Path) -> str | None:
    """Of the bundle that is there; None: it is damaged, or there is none."""
    try:
        return read_card(folder).hash
    except UserError:
        return None


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_bundle(folder: Path) -> bool:
    there = {path.name for path in folder.glob("*")}
    return there - {PICTURES} == {MODEL, TEXT, CARD}


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def damaged(path: Path, cause: object) -> UserError:
    return UserError(f"{path} is damaged or was changed ({cause}); make or fetch the bundle again")
