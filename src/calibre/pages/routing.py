"""Where a request goes, and who may go there."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus

from calibre.pages.guard import Guard
from calibre.pages.http import Answer, RefusedError, Request


@dataclass(frozen=True)
class Route:
    """What is done for one path and method."""

    path: str
    work: Callable[[Request], Awaitable[Answer]]
    method: str = "GET"
    body: int = 0  # bytes that may be sent, at most
    public: bool = False  # needs no token


class Routes:
    """All that a server answers."""

    def __init__(self, routes: Iterable[Route], guard: Guard) -> None:
        self._guard = guard
        self._there: dict[str, dict[str, Route]] = {}
        for route in routes:
            self._there.setdefault(route.path, {})[route.method] = route

    def __contains__(self, path: str) -> bool:
        return path in self._there

    def find(self, request: Request) -> Route:
        """The request's route, once the caller is seen to have a right to it."""
        there = self._there.get(request.path, {})
        route = there.get("GET" if request.method == "HEAD" else request.method)
        self._guard.check(request, public=route is not None and route.public)
        if not there:
            raise RefusedError(
                HTTPStatus.NOT_FOUND, f"nothing is there; try {', '.join(self._there)}"
            )
        if route is None:
            known = ", ".join((*there, "HEAD") if "GET" in there else there)
            raise RefusedError(
                HTTPStatus.METHOD_NOT_ALLOWED, f"{request.path} knows {known}", {"Allow": known}
            )
        if request.length > route.body:
            raise RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"{_megabytes(request.length)} were to be sent; at most {_megabytes(route.body)}"
                if route.body
                else f"{request.method} {request.path} takes no body",
            )
        return route

    def refuse(self, request: Request | None, refusal: RefusedError) -> Answer:
        """What the caller is told: a person without the token is asked for it."""
        locked = refusal.status == HTTPStatus.UNAUTHORIZED
        if locked and request is not None and request.wants_page:
            return self._guard.entrance()
        return Answer.refusing(refusal)


def _megabytes(count: int) -> str:
    return f"{count / 2**20:.1f} MB"
