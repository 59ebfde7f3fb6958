"""A bundle's answers to images: a page for people, an address for programs.

GET /           a page to drop images on
GET /card       the model card, as JSON; /card.md for people
GET /mistakes.png   pictures for the card, of the client's own images: on its own machine only
POST /predict   an image file as the body: its answer; or a form with files: all their answers
"""

import asyncio
import io
import json
import warnings
from dataclasses import asdict
from http import HTTPStatus
from itertools import compress
from types import TracebackType
from typing import Any

import torch
from PIL import Image

from calibre.pages.batching import Batches
from calibre.pages.documents import page
from calibre.pages.forms import File, files, is_form
from calibre.pages.http import TEXT, Answer, RefusedError, Request
from calibre.pages.prometheus import ServiceMetrics
from calibre.pages.routing import Route
from calibre.personal.bundle import Bundle, Prediction
from calibre.personal.bundle_folder import PICTURES
from calibre.personal.card_text import markdown

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
BODY = 20 * 2**20  # bytes
PIXELS = 40_000_000
LARGE = 4_000_000  # pixels beyond which an image goes alone: it takes memory, and others' time
WORKERS = 2  # threads that run the model, each with one of torch's own

Found = Prediction | RefusedError


class Predictions:
    """The routes of a bundle, and the threads that run it until the block ends."""

    def __init__(
        self, bundle: Bundle, body: int = BODY, pixels: int = PIXELS, pictures: bool = False
    ) -> None:
        warnings.filterwarnings("ignore", module="PIL")  # strangers' files write on no screen
        torch.set_num_threads(1)  # a small model is slower in several threads, many callers far so
        self._bundle, self._pixels = bundle, pixels
        self.metrics = ServiceMetrics()
        self._together: Batches[bytes, Found | None] = Batches(self._predict, len, workers=WORKERS)
        self._alone: Batches[bytes, Found] = Batches(self._predict_large, len, most=1, workers=1)
        self.metrics.look_up(
            "calibre_model_calls_total", "Runs of the model, each for images that came together.",
            lambda: self._together.calls, kind="counter",
        )  # fmt: skip
        card = bundle.card.model_dump(mode="json")
        self._page = page("predict.html")
        self._card = Answer(json.dumps(card, ensure_ascii=False).encode(errors="replace"))
        shown = pictures and bundle.pictures is not None
        self._card_text = Answer(markdown(bundle.card, shown).encode(errors="replace"), TEXT)
        self.routes = (
            Route("/", self._show_page),
            Route("/card", self._show_card),
            Route("/card.md", self._show_card_text),
            *([Route(f"/{PICTURES}", self._show_pictures)] if shown else []),
            Route("/predict", self._answer, "POST", body),
        )

    def __enter__(self) -> "Predictions":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._together.close()
        self._alone.close()

    async def _show_page(self, request: Request) -> Answer:
        return self._page

    async def _show_card(self, request: Request) -> Answer:
        return self._card

    async def _show_card_text(self, request: Request) -> Answer:
        return self._card_text

    async def _show_pictures(self, request: Request) -> Answer:
        return Answer(self._bundle.pictures or b"", "image/png")

    async def _answer(self, request: Request) -> Answer:
        if not is_form(request):
            found = await self._ask(request.body)
            if isinstance(found, RefusedError):
                raise found
            return Answer.of(self._in_words(found))
        given = files(request)
        if not given:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the form holds no file")
        return Answer.of({"answers": await asyncio.gather(*map(self._answer_one, given))})

    async def _answer_one(self, file: File) -> dict[str, Any]:
        """Of a form: an image that cannot be answered is told as such, among the others."""
        found = await self._ask(file.content)
        if isinstance(found, RefusedError):
            return {"image": file.name, "error": str(found)}
        return {"image": file.name, **self._in_words(found)}

    async def _ask(self, image: bytes) -> Found:
        found = await self._together(image)
        if found is None:
            found = await self._alone(image)
        if isinstance(found, RefusedError):
            kind = "refused"
        else:
            kind = "none" if found.label is None else "class"
        self.metrics.count("calibre_images_total", "Images by what was answered.", answer=kind)
        return found

    def _in_words(self, found: Prediction) -> dict[str, Any]:
        said = {**asdict(found), "answer": found.answer, "limit": self._bundle.limit}
        del said["image"], said["error"]
        return said

    def _predict(self, images: list[bytes]) -> list[Found | None]:
        """In a thread: all that may go together does. None: it is large and has to go alone."""
        sizes = [self._size(image) for image in images]
        small = [isinstance(size, int) and size <= LARGE for size in sizes]
        found = iter(self._bundle.predict([*compress(images, small)]) if any(small) else ())
        return [
            size if isinstance(size, RefusedError) else _readable(next(found)) if fits else None
            for size, fits in zip(sizes, small, strict=True)
        ]

    def _predict_large(self, images: list[bytes]) -> list[Found]:
        return [_readable(found) for found in self._bundle.predict(images)]

    def _size(self, image: bytes) -> int | RefusedError:
        """How many pixels it has, by its header: a small file may unpack to gigabytes."""
        try:
            with Image.open(io.BytesIO(image), formats=FORMATS) as picture:
                wide, high = picture.size
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            wide = high = 2**16
        except Exception:  # every one of Pillow's decoders fails in a way of its own
            known = ", ".join(FORMATS)
            return RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send an image file: {known}")
        if wide * high > self._pixels:
            return RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the image has more than {self._pixels / 1e6:g} million pixels",
            )
        return wide * high


def _readable(found: Prediction) -> Found:
    if found.error is None:
        return found
    return RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, f"the image {found.error}")
