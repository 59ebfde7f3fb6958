"""The one web server under every page of Calibre.

An application is a list of routes, and a route's work is one function::

    async def greet(request: Request) -> Answer:
        return Answer.of({"hello": request.query.get("name", "you")})

    Server([Route("/greet", greet)], port=8000).run()

What an application may rely on when its function is called:

- the request is well formed, calls the server by a name it knows, comes from its own pages or from
  no page, and knows the token (unless the route is ``public``);
- its path and method are the route's (HEAD is answered from GET), its query is a dictionary, its
  body is all there and no longer than the route's ``body``;
- it may take ``Limits.patience`` seconds. It runs on the event loop, one function at a time: what
  computes or touches a disk goes through ``asyncio.to_thread``;
- it returns an :class:`Answer` (``Answer.of`` for JSON, ``page.page`` for a page of ``assets``), or
  raises :class:`RefusedError` with a status and the reason in words. Whatever else it raises is
  printed here, and the caller is told "500" and no more.

What the server sees to by itself: deadlines and sizes of everything that a caller sends or takes,
how many connections there are and who goes when they are too many (``callers``), 400, 404, 405,
413, 431 and their kin, TLS, headers that keep a browser safe, ``GET /health`` for whoever watches
over it, ``GET /metrics`` in Prometheus's text form, and a log without contents. For a request it
reads nothing from disk.

Written on asyncio alone. uvicorn has no deadline for the head of a request, and its cap on
connections turns everybody away once slow ones have filled it; closing both holes around it would
be no less code than this.
"""

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus

from calibre.errors import UserError
from calibre.pages.callers import Callers
from calibre.pages.conversation import Desk, Exchange, Limits, converse
from calibre.pages.guard import Access, Guard
from calibre.pages.http import Answer, RefusedError, Request
from calibre.pages.log import RequestLog
from calibre.pages.prometheus import KIND, ServiceMetrics
from calibre.pages.routing import Route, Routes

__all__ = ["Access", "Answer", "Limits", "RefusedError", "Request", "Route", "Server"]

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # no more lines to open
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")  # that are told apart


class Server:
    """An address, and what is answered there."""

    def __init__(
        self,
        routes: Sequence[Route],
        host: str = "127.0.0.1",
        port: int = 8000,
        access: Access = Access(),  # noqa: B008, frozen
        limits: Limits = Limits(),  # noqa: B008, frozen
        log: RequestLog | None = None,
        metrics: ServiceMetrics | None = None,
    ) -> None:
        self._listener = _listening(host, port, access)
        self.port: int = self._listener.getsockname()[1]
        self._tls, self._log = access.tls, log
        self._metrics = metrics or ServiceMetrics()
        guard = Guard(access, self.port)
        own = [Route("/health", _healthy, public=True), Route("/metrics", self._tell_metrics)]
        if access.token is not None:
            own.append(Route("/enter", guard.enter, "POST", body=2**12, public=True))
        self._routes = Routes((*routes, *own), guard)
        self._callers = Callers(limits.connections, limits.memory)
        self._desk = Desk(self._routes, self._callers, limits, access.tls, self._note)
        self._metrics.look_up(
            "calibre_connections", "Connections that are open.", self._callers.__len__
        )
        self._metrics.look_up(
            "calibre_connections_dropped_total",
            "Slow connections closed to make room for others.",
            lambda: self._callers.dropped,
            kind="counter",
        )

    @property
    def url(self) -> str:
        host = self._listener.getsockname()[0]
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}/"

    def run(self) -> None:
        """Answer until the process is told to stop (Ctrl-C)."""
        asyncio.run(self._serve())

    @contextmanager
    def in_background(self) -> Iterator["Server"]:
        """Answer in a thread of its own for as long as the block runs."""
        started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []
        ready = threading.Event()

        async def work() -> None:
            task = asyncio.create_task(self._serve())
            started.append((asyncio.get_running_loop(), task))
            ready.set()
            with suppress(asyncio.CancelledError):
                await task

        thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
        thread.start()
        ready.wait()
        loop, task = started[0]
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join()

    async def _serve(self) -> None:
        """Answer until cancelled; then every connection is closed."""
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                try:
                    line, _ = await loop.sock_accept(self._listener)
                except OSError as error:  # otherwise the caller hung up before it was heard
                    if error.errno in EXHAUSTED:
                        self._callers.has_room()
                        await asyncio.sleep(0.05)
                    continue
                if self._callers.has_room():
                    task = asyncio.create_task(converse(self._desk, line))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                else:
                    self._turn_away(line)
                await asyncio.sleep(0)  # it is counted before the next one comes in
        finally:
            self._listener.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _turn_away(self, line: socket.socket) -> None:
        """Everyone on the line is being worked for: say so, if that can be said in the clear."""
        busy = RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many callers; try again")
        with line, suppress(OSError):
            if self._tls is None:
                line.send(Answer.refusing(busy).encoded(lasting=False))
        self._metrics.count("calibre_connections_refused_total", "Turned away: all were busy.")

    def _note(self, done: Exchange) -> None:
        """Count and log it, in words that are our own."""
        asked, status = done.request, done.answer.status.value
        path = asked.path if asked and asked.path in self._routes else "other"
        method = asked.method if asked and asked.method in METHODS else "other"
        self._metrics.count(
            "calibre_requests_total", "Requests by how they ended.",
            path=path, method=method, status=str(status),
        )  # fmt: skip
        self._metrics.took(
            "calibre_request_seconds", "From a request's first byte to its answer's last.",
            done.seconds, path=path,
        )  # fmt: skip
        if self._log is not None:
            self._log(
                time=round(time.time(), 3), caller=done.caller, method=method, path=path,
                status=status, received=len(asked.body) if asked else 0, sent=done.sent,
                ms=round(1000 * done.seconds, 2),
            )  # fmt: skip

    async def _tell_metrics(self, request: Request) -> Answer:
        return Answer(self._metrics.text().encode(), KIND)


async def _healthy(request: Request) -> Answer:
    return Answer.of({"status": "ok"})


def _listening(host: str, port: int, access: Access) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        access.check_exposure(str(address[0]).partition("%")[0])
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(f"cannot listen on {host} port {port}: {error}") from None
    return listener
