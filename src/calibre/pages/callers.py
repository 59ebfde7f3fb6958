"""Who is on the line: at most so many, who hold at most so many bytes of memory.

A connection that we wait for (to send its request, to ask again, to take its answer) can be
dropped; one whose answer is being worked on cannot. When there is no room for a newcomer, or for
more bytes, the one that we have waited for longest goes. Whoever sends slowly, from however many
connections, so loses their own place and not that of people who come and ask.
"""

import asyncio
from http import HTTPStatus

from calibre.pages.http import RefusedError


class Caller:
    """One connection."""

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self.task = task
        self.held = 0  # bytes


class Callers:
    """All connections of one server; used from its event loop alone."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._present: set[Caller] = set()
        self._awaited: dict[Caller, None] = {}  # in the order in which the waiting began
        self._held = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._present)

    def has_room(self) -> bool:
        """Whether one more may come in; somebody may have to go for it."""
        return len(self) < self._most or self._drop_one()

    def enter(self, task: "asyncio.Task[None]") -> Caller:
        caller = Caller(task)
        self._present.add(caller)
        self._awaited[caller] = None
        return caller

    def wait_for(self, caller: Caller) -> None:
        """From now on it is the caller's turn to do something."""
        self._awaited.pop(caller, None)
        self._awaited[caller] = None

    def work_for(self, caller: Caller) -> None:
        """From now on it is our turn."""
        self._awaited.pop(caller, None)

    def hold(self, caller: Caller, more: int) -> None:
        """Count bytes of a request; the longest awaited others go when they are too many."""
        caller.held += more
        self._held += more
        while self._held > self._most_bytes:
            if not self._drop_one(besides=caller):
                raise RefusedError(
                    HTTPStatus.SERVICE_UNAVAILABLE, "too much is being sent at once; try again"
                )

    def release(self, caller: Caller) -> None:
        """Its request is done with."""
        self._held -= caller.held
        caller.held = 0

    def leave(self, caller: Caller) -> None:
        self.release(caller)
        self._present.discard(caller)
        self._awaited.pop(caller, None)

    def _drop_one(self, besides: Caller | None = None) -> bool:
        oldest = next((caller for caller in self._awaited if caller is not besides), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.task.cancel()
        self.dropped += 1
        return True
