"""A run, watched: how far it is, what it says, who failed; and its report, once it has ended.

GET /         the page
GET /state    all of it, as JSON
GET /report   the run's report; 404 while it goes on
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

from calibre.errors import UserError
from calibre.pages.documents import page, policy
from calibre.pages.http import HTML, Answer, RefusedError, Request
from calibre.pages.routing import Route
from calibre.report.live import LiveRun
from calibre.report.page import render
from calibre.report.runs import read

Found = TypeVar("Found")


class Watched:
    """The routes of one run folder."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._page = page("watch.html")
        self._one_at_a_time = asyncio.Lock()
        self.routes = (
            Route("/", self._show_page),
            Route("/state", self._state),
            Route("/report", self._report),
        )

    async def _show_page(self, request: Request) -> Answer:
        return self._page

    async def _state(self, request: Request) -> Answer:
        return Answer.of(await self._do(self._run.state))

    async def _report(self, request: Request) -> Answer:
        if not self._run.files.finished:
            raise RefusedError(HTTPStatus.NOT_FOUND, "there is no report before the run has ended")
        text = await self._do(lambda: render([read(self._run.files.path)]))
        return Answer(text.encode(errors="replace"), HTML, policy=policy(text))

    async def _do(self, work: Callable[[], Found]) -> Found:
        """In a thread, one after another: several browsers share what was read."""
        async with self._one_at_a_time:
            try:
                return await asyncio.to_thread(work)
            except UserError as error:
                raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
