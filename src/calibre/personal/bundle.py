"""A bundle: a client's personal model, with all that it needs to answer anywhere."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.torch as st
import torch

from calibre.data.formats import PixelArray
from calibre.data.formats.decoders import decode
from calibre.errors import UserError
from calibre.models.network import Problem, is_own_code, to_fast_layout
from calibre.personal.bundle_folder import Existing, damaged, read_folder, write_folder
from calibre.personal.card import Card
from calibre.personal.feature_parts import build_part
from calibre.personal.judge import Problems, as_trained, problems
from calibre.personal.pictures import AnyImage, as_encoded, is_one
from calibre.personal.predictor import Predictor
from calibre.run_files import MODEL
from calibre.tensors import Tensors, check_like, take

NONE = "none of your classes"

Floats = npt.NDArray[np.float32]


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

    def predict(self, images: AnyImage | Iterable[AnyImage]) -> list[Prediction]:
        """One prediction per image: files, encoded bytes, Pillow images or uint8 arrays."""
        pictures: list[AnyImage] = (
            [images] if is_one(images) else [*cast(Iterable[AnyImage], images)]
        )
        return list(self.stream(pictures))

    def stream(self, pictures: Sequence[AnyImage]) -> Iterator[Prediction]:
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

    def pixels(self, pictures: Sequence[AnyImage]) -> PixelArray:
        """Images as the model gets them, [n, H, W, C]; one that cannot be read is a mistake."""
        encoded = [as_encoded(picture, i) for i, picture in enumerate(pictures)]
        blocks: list[PixelArray] = []
        for block in decode(encoded, self.card.preprocessing.shape):
            if block.problems:
                place, problem = next(iter(block.problems.items()))
                raise UserError(
                    f"{encoded[sum(len(done) for done in blocks) + place].name} {problem}"
                )
            blocks.append(block.pixels)
        return np.concatenate(blocks)

    def answers(self, images: PixelArray) -> tuple[Floats, Floats]:
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
        under another name (:func:`older_name`; "keep another": unless it is the same one), or the
        new one is refused.
        """
        model = st.save(take(self.predictor))
        card = write_folder(Path(folder), self.card, model, self.pictures, existing)
        return Bundle(card, self.predictor, pictures=self.pictures)


def load(folder: Path | str, own_code: bool = False) -> Bundle:
    """The bundle of a folder, whole and unchanged since it was made.

    A bundle whose encoder is a function of somebody's own module is loaded only with ``own_code``:
    it imports that module, which is to run it.
    """
    card, model, pictures = read_folder(folder := Path(folder))
    try:
        tensors = st.load(model)
    except safetensors.SafetensorError as error:
        raise damaged(folder / MODEL, error) from None
    return Bundle(card, _rebuilt(folder, card, tensors, own_code), pictures=pictures)


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
        raise damaged(folder / MODEL, error) from None
    predictor.load_state_dict(tensors, assign=True)
    to_fast_layout(predictor, torch.device("cpu"))
    return predictor
