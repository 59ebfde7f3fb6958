import asyncio
import threading

import pytest

from calibre.pages.batching import Batches


def test_what_comes_while_a_worker_is_busy_goes_together():
    """One worker, held up by the first item: the others wait, and go as few calls as may be."""
    seen: list[list[int]] = []
    release = threading.Event()

    def work(items: list[int]) -> list[int]:
        seen.append(items)
        assert release.wait(10)
        return [item * item for item in items]

    async def run() -> list[int]:
        batches = Batches(work, weight=lambda _: 1, most=4, workers=1)
        asked = [asyncio.create_task(batches(item)) for item in range(10)]
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, release.set)
        found = await asyncio.gather(*asked)
        batches.close()
        return found

    assert asyncio.run(run()) == [item * item for item in range(10)]
    assert seen == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9]]


def test_a_call_takes_no_more_weight_than_it_may():
    seen: list[list[int]] = []

    def work(items: list[int]) -> list[int]:
        seen.append(items)
        return items

    async def run() -> None:
        batches = Batches(work, weight=lambda item: item, heaviest=10, workers=1)
        await asyncio.gather(*(batches(item) for item in (1, 5, 5, 1, 50, 3)))
        batches.close()

    asyncio.run(run())
    assert seen == [[1], [5, 5], [1], [50], [3]]


def test_a_failure_reaches_those_it_concerns_and_work_goes_on():
    def work(items: list[int]) -> list[int]:
        if 1 in items:
            raise ZeroDivisionError
        return items

    async def run() -> None:
        batches = Batches(work, weight=lambda _: 1, workers=1)
        with pytest.raises(ZeroDivisionError):
            await batches(1)
        assert await batches(2) == 2
        batches.close()

    asyncio.run(run())


def test_who_gave_up_waiting_costs_nothing():
    seen: list[list[int]] = []
    release = threading.Event()

    def work(items: list[int]) -> list[int]:
        seen.append(items)
        assert release.wait(10)
        return items

    async def run() -> None:
        batches = Batches(work, weight=lambda _: 1, workers=1)
        asked = [asyncio.create_task(batches(item)) for item in range(4)]
        await asyncio.sleep(0)
        asked[0].cancel()  # already at work
        asked[2].cancel()
        asyncio.get_running_loop().call_later(0.05, release.set)
        assert await asyncio.gather(asked[1], asked[3]) == [1, 3]
        batches.close()

    asyncio.run(run())
    assert seen == [[0], [1, 3]]
