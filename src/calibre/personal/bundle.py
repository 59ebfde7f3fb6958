"""A bundle: a client's personal model as a folder that can be taken anywhere.

    model.safetensors   the tensors of a Predictor: images in, probabilities and distances out
    card.json           what it is, for programs; with the SHA-256 of everything
    card.md             the same for people
    mistakes.png        its surest mistakes on images of the client's own; may be taken away

Nothing is unpickled, and the network is rebuilt from its settings. Loading checks every hash.
"""

import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.torch as st
import torch

from calibre.data.formats import Pixels
from calibre.data.formats.decoders import decode
from calibre.errors import UserError
from calibre.files import sync_folder, write_atomic
from calibre.models.network import Problem, is_own_code, to_fast_layout
from calibre.personal.card import Card
from calibre.personal.card_text import markdown
from calibre.personal.feature_parts import build_part
from calibre.personal.judge import Problems, as_trained, problems
from calibre.personal.pictures import Picture, as_encoded, is_one
from calibre.personal.predictor import Predictor
from calibre.run_files import MODEL
from calibre.settings import validate
from calibre.tensors import Tensors, check_like, take

LARGEST_CARD = 2**26  # bytes; a hundred thousand classes have a quarter of it
LARGEST_MODEL = 2**33
LARGEST_PICTURES = 2**23
VERSION = 3
FILES = (MODEL, "card.md")
PICTURES = "mistakes.png"
NONE = "none of your classes"

Floats = npt.NDArray[np.float32]
Existing = Literal["replace", "keep", "refuse"]


class BundleThereError(UserError):
    """There is a bundle already where one is to be written."""


@dataclass(frozen=True)
class Prediction:
    """What a bundle says of one image."""

    image: str  # which
    label: str | None  # its class; None: none of the client's, or it could not be read
    nearest: str | None  # the most probable class, refused or not
    probability: float | None  # of ``nearest``
    distance: float | None  # to the nearest class mean; beyond the card's limit it is refused
    probabilities: dict[str, float]
    error: str | None = None  # why it could not be read
    reasons: Problems = ()  # why its pixels say that it is none of the client's

    @property
    def answer(self) -> str:
        """The class, or ``none of your classes``."""
        if self.error is not None:
            return "unreadable"
        return NONE if self.label is None else self.label


class Bundle:
    """A personal model, ready to predict."""

    def __init__(
        self,
        card: Card,
        predictor: Predictor,
        limit: float | None = None,
        pictures: bytes | None = None,
    ) -> None:
        self.card = card
        self.pictures = pictures  # of the client's own images: its surest mistakes, as PNG
        self.predictor = predictor.eval()
        self.limit = card.outside.limit if limit is None else limit  # beyond it: none of yours

    @property
    def classes(self) -> tuple[str, ...]:
        return self.card.names

    def refuse(self, rate: float) -> "Bundle":
        """The same model with another limit of the distance, of those in the card's table."""
        limits = {row.rate: row.limit for row in self.card.outside.tradeoff}
        if rate not in limits:
            known = ", ".join(f"{known:g}" for known in limits) or "none"
            raise UserError(f"--refuse {rate:g}: the bundle's card has limits for {known}")
        return Bundle(self.card, self.predictor, limits[rate], self.pictures)

    def predict(self, images: Picture | Iterable[Picture]) -> list[Prediction]:
        """One prediction per image: files, encoded bytes, Pillow images or uint8 arrays."""
        pictures: list[Picture] = [images] if is_one(images) else [*cast(Iterable[Picture], images)]
        return list(self.stream(pictures))

    def stream(self, pictures: Sequence[Picture]) -> Iterator[Prediction]:
        """Predictions as they come, a block of images in memory at a time."""
        height, width, channels = self.card.preprocessing.shape
        usual = self.card.usual
        encoded = [as_encoded(picture, i) for i, picture in enumerate(pictures)]
        names = iter(image.name for image in encoded)
        # in colour, or nobody would see that an image for a model of gray ones is
        for block in decode(encoded, (height, width, 3 if usual else channels)):
            reasons = problems(block.pixels, usual) if usual else [()] * len(block.pixels)
            answers = zip(*self.answers(as_trained(block.pixels, channels)), reasons, strict=True)
            for place, (probabilities, distance, reason) in enumerate(answers):
                problem = block.problems.get(place)
                name = next(names)
                yield (
                    Prediction(name, None, None, None, None, {}, problem)
                    if problem
                    else self._prediction(name, probabilities, float(distance), reason)
                )

    def pixels(self, pictures: Sequence[Picture]) -> Pixels:
        """Images as the model gets them, [n, H, W, C]; one that cannot be read is a mistake."""
        encoded = [as_encoded(picture, i) for i, picture in enumerate(pictures)]
        blocks: list[Pixels] = []
        for block in decode(encoded, self.card.preprocessing.shape):
            if block.problems:
                place, problem = next(iter(block.problems.items()))
                raise UserError(
                    f"{encoded[sum(len(done) for done in blocks) + place].name} {problem}"
                )
            blocks.append(block.pixels)
        return np.concatenate(blocks)

    def answers(self, images: Pixels) -> tuple[Floats, Floats]:
        """Probabilities [n, K] and distances [n] of images [n, H, W, C] of the bundle's shape."""
        if images.dtype != np.uint8 or images.shape[1:] != self.card.preprocessing.shape:
            raise UserError(
                f"the images are {images.dtype} {list(images.shape)}: this bundle takes uint8 "
                f"{['n', *self.card.preprocessing.shape]}; predict() takes images of any size"
            )
        writable = np.require(images, requirements=["C", "W"])  # torch takes no other
        probabilities, distances = self.predictor.answers(torch.from_numpy(writable))
        return probabilities.numpy(), distances.numpy()

    def _prediction(
        self, name: str, probabilities: Floats, distance: float, reasons: Problems
    ) -> Prediction:
        best = int(probabilities.argmax())
        inside = not reasons and (self.limit is None or distance <= self.limit)
        return Prediction(
            image=name,
            label=self.classes[best] if inside else None,
            nearest=self.classes[best],
            probability=float(probabilities[best]),
            distance=distance if self.limit is not None else None,
            probabilities=dict(zip(self.classes, map(float, probabilities), strict=True)),
            reasons=reasons,
        )

    def save(self, folder: Path | str, existing: Existing = "replace") -> "Bundle":
        """Write the bundle whole or not at all.

        ``existing`` says what becomes of an older bundle in its place: it is replaced, or kept
        under another name (:func:`older_name`), or the new one is refused.
        """
        folder = Path(folder)
        check_place(folder, existing)
        model = st.save(take(self.predictor))
        text = markdown(self.card)
        hashes = {MODEL: _sha(model), "card.md": _sha(text.encode())}
        if self.pictures is not None:
            hashes[PICTURES] = _sha(self.pictures)
        card = self.card.model_copy(update={"files": hashes})
        card = card.model_copy(update={"hash": card.digest()})
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as aside:
                made = Path(aside, "new")
                made.mkdir()
                write_atomic(made / MODEL, model)
                write_atomic(made / "card.md", text)
                if self.pictures is not None:
                    write_atomic(made / PICTURES, self.pictures)
                write_atomic(made / "card.json", _json(card))
                with suppress(FileNotFoundError):
                    kept = existing == "keep" and _is_bundle(folder)
                    os.rename(folder, older_name(folder) if kept else Path(aside, "old"))
                os.rename(made, folder)
            sync_folder(folder.parent)
        except OSError as error:
            raise UserError(f"cannot write the bundle {folder}: {error.strerror}") from None
        return Bundle(card, self.predictor, pictures=self.pictures)


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


def load(folder: Path | str, own_code: bool = False) -> Bundle:
    """The bundle of a folder, whole and unchanged since it was made.

    A bundle whose encoder is a function of somebody's own module is loaded only with ``own_code``:
    it imports that module, which is to run it.
    """
    folder = Path(folder)
    card = read_card(folder)
    model = _checked(folder, MODEL, card, LARGEST_MODEL)
    _checked(folder, "card.md", card, LARGEST_CARD)
    try:
        tensors = st.load(model)
    except safetensors.SafetensorError as error:
        raise _damaged(folder / MODEL, error) from None
    there = PICTURES in card.files and (folder / PICTURES).exists()
    pictures = _checked(folder, PICTURES, card, LARGEST_PICTURES) if there else None
    return Bundle(card, _rebuilt(folder, card, tensors, own_code), pictures=pictures)


def read_card(folder: Path) -> Card:
    """The card alone, checked against its own hash."""
    path = folder / "card.json"
    if not path.is_file():
        inside = next(iter(sorted(folder.glob("*/card.json"))), None)
        hint = f"; there are bundles inside it, such as {inside.parent}" if inside else ""
        raise UserError(f"{folder} is not a bundle: it has no card.json{hint}")
    try:
        values = json.loads(_read(path, LARGEST_CARD))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from None
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
        raise _damaged(path, error) from None
    if card.digest() != card.hash:
        raise _damaged(path, "its content does not match its hash")
    return card


def _rebuilt(folder: Path, card: Card, tensors: Tensors, own_code: bool) -> Predictor:
    own = is_own_code(card.network.encoder)
    if own and not own_code:
        raise UserError(
            f"the encoder of {folder} is '{card.network.encoder}', code that Calibre does not "
            "have: if you trust it and can import it, allow it with --own-code "
            "(calibre.load(..., own_code=True))"
        )
    shape = card.preprocessing
    problem = Problem(
        shape.height, shape.channels, len(card.classes), card.network, seed=0
    ).without_weights()  # its tensors are the bundle's own
    # on "meta" a network is its shapes alone: a card that promises a giant costs nothing
    with torch.device("cpu" if own else "meta"):
        encoders = [build_part(spec, problem) for spec in card.parts]
        held = len(tensors["means"]) if "means" in tensors else 0
        predictor = Predictor(encoders, len(card.classes), held, shape.normalization)
    try:
        check_like(tensors, predictor.state_dict())
    except ValueError as error:
        raise _damaged(folder / MODEL, error) from None
    predictor.load_state_dict(tensors, assign=True)
    to_fast_layout(predictor, torch.device("cpu"))
    return predictor


def _checked(folder: Path, name: str, card: Card, most: int) -> bytes:
    """A file's content, once its hash is seen to be the card's."""
    content = _read(folder / name, most)
    if _sha(content) != card.files.get(name):
        raise _damaged(folder / name, "its content does not match the card's hash")
    return content


def _read(path: Path, most: int) -> bytes:
    try:
        if path.stat().st_size > most:
            raise UserError(f"{path} has more than {most:,} bytes: no bundle has such a file")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _json(card: Card) -> str:
    return json.dumps(card.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_bundle(folder: Path) -> bool:
    there = {path.name for path in folder.glob("*")}
    return there - {PICTURES} == {*FILES, "card.json"}


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _damaged(path: Path, cause: object) -> UserError:
    return UserError(f"{path} is damaged or was changed ({cause}); make or fetch the bundle again")
