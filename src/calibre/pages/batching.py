"""One call for all that wait: concurrent requests share the cost of running a model.

Nobody waits for company: work that comes while a worker is free starts at once, alone; what comes
while all are busy goes together, as much as one call may take.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batches(Generic[Item, Result]):
    """Calls ``work`` in threads of its own; used from one event loop."""

    def __init__(
        self,
        work: Callable[[list[Item]], Sequence[Result]],
        weight: Callable[[Item], int],
        most: int = 32,  # items of one call
        heaviest: int = 2**20,  # weight of one call; a single item may have more
        workers: int = 2,
    ) -> None:
        self._work, self._weight = work, weight
        self._most, self._heaviest = most, heaviest
        self._pool = ThreadPoolExecutor(workers, "batches")
        self._idle = workers
        self.calls = 0
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()

    async def __call__(self, item: Item) -> Result:
        """What ``work`` makes of an item, among whatever others."""
        promised: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, promised))
        self._start()
        return await promised

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> None:
        while self._idle and (batch := self._next()):
            self._idle -= 1
            self.calls += 1
            items = [item for item, _ in batch]
            promises = [promised for _, promised in batch]
            running = asyncio.get_running_loop().run_in_executor(self._pool, self._work, items)
            running.add_done_callback(partial(self._deliver, promises))

    def _next(self) -> list[tuple[Item, "asyncio.Future[Result]"]]:
        """What goes together; who has given up waiting is left out."""
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        room = self._heaviest
        while self._waiting and len(batch) < self._most:
            item, promised = self._waiting[0]
            if not promised.done():
                room -= self._weight(item)
                if batch and room < 0:
                    break
                batch.append((item, promised))
            self._waiting.popleft()
        return batch

    def _deliver(
        self, promises: list["asyncio.Future[Result]"], done: "asyncio.Future[Sequence[Result]]"
    ) -> None:
        self._idle += 1
        failure = None if done.cancelled() else done.exception()
        for place, promised in enumerate(promises):
            if promised.done():
                continue
            if done.cancelled():
                promised.cancel()
            elif failure is not None:
                promised.set_exception(failure)
            else:
                promised.set_result(done.result()[place])
        self._start()
