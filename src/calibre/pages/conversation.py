"""One connection, from its first byte to its last: requests come in, answers go out, in time."""

import asyncio
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from ssl import SSLContext

from calibre.pages.callers import Caller, Callers
from calibre.pages.http import Answer, RefusedError, Request, read_head
from calibre.pages.routing import Route, Routes

CHUNK = 2**16
FAREWELL = 1.0  # seconds for a refused caller to finish its sentence, and for TLS to say good-bye


@dataclass(frozen=True)
class Limits:
    """What callers may take of a server, one and all."""

    head: int = 2**14  # bytes of a request line and its headers
    head_seconds: float = 10.0  # to send them, to greet in TLS, and to wait for another request
    seconds: float = 60.0  # to send a whole request, and to take its answer
    patience: float = 60.0  # seconds that an answer may be worked on
    connections: int = 256
    memory: int = 2**27  # bytes of requests that are held at once


@dataclass(frozen=True)
class Exchange:
    """One request and its answer, for whoever counts them. None: it was not understood."""

    request: Request | None
    answer: Answer
    caller: str  # address
    sent: int  # bytes
    seconds: float


@dataclass(frozen=True)
class Desk:
    """What all conversations of a server share."""

    routes: Routes
    callers: Callers
    limits: Limits
    tls: SSLContext | None
    note: Callable[[Exchange], None]


async def converse(desk: Desk, line: socket.socket) -> None:
    """Talk to one caller until one of both has enough."""
    task = asyncio.current_task()
    assert task is not None
    caller = desk.callers.enter(task)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(desk.limits.head, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    patience = desk.limits.head_seconds if desk.tls else None
    transport: asyncio.Transport | None = None
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, line, ssl=desk.tls,
            ssl_handshake_timeout=patience, ssl_shutdown_timeout=FAREWELL if patience else None,
        )  # fmt: skip
        transport.set_write_buffer_limits(0)  # `drain` waits until all is on its way
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        conversation = _Conversation(desk, caller, reader, writer)
        while await conversation.exchange():
            pass
        writer.close()
        async with asyncio.timeout(FAREWELL):
            await writer.wait_closed()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        pass  # the caller is gone, or might as well be
    except Exception:  # a mistake of ours costs one caller, not the server
        traceback.print_exc()
    finally:
        desk.callers.leave(caller)
        if transport is None:
            line.close()
        else:
            transport.abort()


class _Conversation:
    def __init__(
        self, desk: Desk, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._desk, self._limits = desk, desk.limits
        self._caller, self._reader, self._writer = caller, reader, writer

    async def exchange(self) -> bool:
        """One request and its answer; whether another may follow."""
        callers = self._desk.callers
        callers.wait_for(self._caller)
        async with asyncio.timeout(self._limits.head_seconds):
            first = await self._reader.read(1)
        if not first:
            return False
        began = time.perf_counter()
        request: Request | None = None
        refusal: RefusedError | None = None
        try:
            async with asyncio.timeout(self._limits.seconds):
                request = await self._head(first)
                route = self._desk.routes.find(request)
                request = await self._whole(request)
            callers.work_for(self._caller)
            answer = await self._work(route, request)
        except TimeoutError:
            refusal = RefusedError(HTTPStatus.REQUEST_TIMEOUT, "the request took too long to send")
        except RefusedError as error:
            refusal = error
        if refusal is not None:
            answer = self._desk.routes.refuse(request, refusal)
        lasting = refusal is None and request is not None and request.lasting
        callers.release(self._caller)
        callers.wait_for(self._caller)
        await self._send(request, answer, lasting, began)
        if refusal is not None:
            await self._hear_out()
        return lasting

    async def _head(self, first: bytes) -> Request:
        if not first.isalpha():
            raise RefusedError(HTTPStatus.BAD_REQUEST, "this is not a request of HTTP")
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                rest = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise RefusedError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the head of a request has at most {self._limits.head:,} bytes",
            ) from None
        return read_head(first + rest)

    async def _whole(self, request: Request) -> Request:
        """The request with its body."""
        if request.headers.get("expect", "").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts, left = [], request.length
        while left:
            part = await self._reader.read(min(left, CHUNK))
            if not part:
                raise RefusedError(HTTPStatus.BAD_REQUEST, "the body was cut short")
            self._desk.callers.hold(self._caller, len(part))
            parts.append(part)
            left -= len(part)
        return replace(request, body=b"".join(parts))

    async def _work(self, route: Route, request: Request) -> Answer:
        try:
            async with asyncio.timeout(self._limits.patience):
                return await route.work(request)
        except RefusedError:
            raise
        except TimeoutError:
            busy = "the server is too busy; try again"
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, busy) from None
        except Exception:
            traceback.print_exc()
            failed = "the server failed; its screen says why"
            raise RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, failed) from None

    async def _send(
        self, request: Request | None, answer: Answer, lasting: bool, began: float
    ) -> None:
        with_body = request is None or request.method != "HEAD"
        content = answer.encoded(lasting, with_body)
        try:
            async with asyncio.timeout(self._limits.seconds):
                self._writer.write(content)
                await self._writer.drain()
        finally:
            peer = self._writer.get_extra_info("peername")
            caller = str(peer[0]) if peer else ""
            seconds = time.perf_counter() - began
            self._desk.note(Exchange(request, answer, caller, len(content), seconds))

    async def _hear_out(self) -> None:
        """Let a caller finish, in bounds: closed in mid-sentence, it would not hear the answer."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                while await self._reader.read(CHUNK):
                    pass
