"""A page to label images on.

GET /           the page
GET /state      what to label next, labels per class, how good the model is by now
GET /sheet      what was looked at; GET /guess?index=N: what the model says of an image
GET /image      ?index=N&side=PIXELS: an image, drawn so that every browser can show it
POST /label     {"index", "label", "was"}: a class, or "" for "not sure"; /skip {"index"}; /undo
POST /model     {"replace"}: make the client's bundle from the labels; what its card says
GET /mistakes.png   pictures for that card

Every POST but the last is answered with the state after it.
"""

import asyncio
import io
import json
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from PIL import Image

from calibre.data.formats import EncodedImage, UnreadableError
from calibre.data.formats.opening import opened
from calibre.errors import UserError
from calibre.finished.labelling import ConflictError, Labelling
from calibre.pages.documents import page
from calibre.pages.http import Answer, RefusedError, Request
from calibre.pages.routing import Route
from calibre.personal.bundle_folder import PICTURES, BundleThereError

BODY = 2**13  # bytes
LARGEST_SIDE = 2048  # pixels of an image that is shown
SMALL = 256  # pixels of a side, up to which an image is sent without loss

MakeModel = Callable[[bool], dict[str, Any]]  # whether an older one may be replaced


class Labels:
    """The routes of one client's labelling."""

    def __init__(self, labelling: Labelling, make_model: MakeModel) -> None:
        self._labelling, self._make_model = labelling, make_model
        self._page = page("label.html")
        self._bundle: str | None = None  # where the model is, once it is made here
        self._background: asyncio.Task[None] | None = None
        self.routes = (
            Route("/", self._show_page),
            Route("/state", self._state),
            Route("/sheet", self._sheet),
            Route("/guess", self._guess),
            Route("/image", self._image),
            Route("/label", self._label, "POST", BODY),
            Route("/skip", self._skip, "POST", BODY),
            Route("/undo", self._undo, "POST", BODY),
            Route("/model", self._model, "POST", BODY),
            Route(f"/{PICTURES}", self._pictures),
        )

    async def _show_page(self, request: Request) -> Answer:
        return self._page

    async def _state(self, request: Request) -> Answer:
        said = await self._do(self._labelling.state)
        self._follow(said)
        return Answer.of(said)

    async def _sheet(self, request: Request) -> Answer:
        return Answer.of({"images": await self._do(self._labelling.sheet)})

    async def _guess(self, request: Request) -> Answer:
        index = self._known(_number(request.query.get("index", "")))
        found = await self._do(lambda: self._labelling.guess(index))
        return Answer.of({"guess": [{"name": name, "share": share} for name, share in found]})

    async def _image(self, request: Request) -> Answer:
        index = self._known(_number(request.query.get("index", "")))
        side = _number(request.query.get("side", str(LARGEST_SIDE)))
        path = self._labelling.images[index].path
        try:
            kind, content = await asyncio.to_thread(drawn, path, max(1, min(side, LARGEST_SIDE)))
        except UnreadableError as error:
            raise RefusedError(HTTPStatus.GONE, f"{self._labelling.name(index)} {error}") from None
        return Answer(content, kind)

    async def _label(self, request: Request) -> Answer:
        given = _fields(request, index=int, label=str, was=(str, type(None)))
        index, label, was = given["index"], given["label"], given["was"]
        return await self._after(lambda: self._labelling.label(index, label, was))

    async def _skip(self, request: Request) -> Answer:
        index = _fields(request, index=int)["index"]
        return await self._after(lambda: self._labelling.skip(index))

    async def _undo(self, request: Request) -> Answer:
        return await self._after(self._labelling.undo)

    async def _model(self, request: Request) -> Answer:
        replace = _fields(request, replace=bool)["replace"]
        made = await self._do(lambda: self._make_model(replace))
        self._bundle = made["bundle"]
        return Answer.of(made)

    async def _pictures(self, request: Request) -> Answer:
        file = Path(self._bundle, PICTURES) if self._bundle else None
        if file is None or not file.is_file():
            raise RefusedError(HTTPStatus.NOT_FOUND, "there are no such pictures")
        return Answer(file.read_bytes(), "image/png")

    async def _after(self, step: Callable[[], object]) -> Answer:
        await self._do(step)
        return await self._state(Request("GET", "/state", {}, {}, True))

    async def _do(self, step: Callable[[], Any]) -> Any:
        """In a thread; what is wrong comes back in words."""
        try:
            return await asyncio.to_thread(step)
        except (ConflictError, BundleThereError) as error:
            raise RefusedError(HTTPStatus.CONFLICT, str(error)) from None
        except UserError as error:
            raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None

    def _follow(self, state: dict[str, Any]) -> None:
        """Solve and suggest behind everybody's back, one at a time; the next label is the next."""
        idle = self._background is None or self._background.done()
        if idle and (state["pending"] or state["looking"]):
            self._background = asyncio.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        await asyncio.to_thread(self._labelling.learn)
        if self._labelling.low:
            await asyncio.to_thread(self._labelling.refill)

    def _known(self, index: int) -> int:
        if not 0 <= index < len(self._labelling.images):
            raise RefusedError(HTTPStatus.NOT_FOUND, "there is no such image")
        return index


def drawn(path: str, side: int) -> tuple[str, bytes]:
    """An image file as PNG or JPEG, no larger than ``side`` pixels either way: kind and content."""
    with opened(EncodedImage(path, path)) as found:
        height, width = found.size
        scale = min(1.0, side / max(height, width))
        shape = (
            max(1, round(height * scale)),
            max(1, round(width * scale)),
            1 if found.gray else 3,
        )
        pixels, _ = found.pixels(shape)
    picture = Image.fromarray(pixels[..., 0] if shape[2] == 1 else pixels)
    file = io.BytesIO()
    if max(height, width) <= SMALL:
        picture.save(file, "PNG")
        return "image/png", file.getvalue()
    picture.save(file, "JPEG", quality=92)
    return "image/jpeg", file.getvalue()


def _fields(request: Request, **kinds: Any) -> dict[str, Any]:
    """The body's values, each of its kind."""
    try:
        given = json.loads(request.body)
    except (ValueError, RecursionError):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "the body is no JSON") from None
    for name, kind in kinds.items():
        value = given.get(name) if isinstance(given, dict) else None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"'{name}' is missing or of another kind")
    return {name: given.get(name) for name in kinds}


def _number(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and len(text) < 10):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "give the number of an image")
    return int(text)
