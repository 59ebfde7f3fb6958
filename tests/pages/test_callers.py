import asyncio

import pytest

from calibre.pages.callers import Callers
from calibre.pages.http import RefusedError


def on_the_line(scenario):
    """Run a scenario with callers whose tasks only wait; and say which of them were cancelled."""

    async def run():
        tasks = [asyncio.create_task(asyncio.sleep(60)) for _ in range(5)]
        await asyncio.sleep(0)
        scenario(tasks)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gone = [place for place, task in enumerate(tasks) if task.cancelled()]
        for task in tasks:
            task.cancel()
        return gone

    return asyncio.run(run())


def test_the_one_waited_for_longest_goes_first():
    def scenario(tasks):
        callers = Callers(most=3, most_bytes=10)
        first, second, third = (callers.enter(task) for task in tasks[:3])
        callers.wait_for(first)  # it sent something whole since: the second waits longest now
        assert callers.has_room()
        assert len(callers) == 2
        assert callers.has_room()  # no one has to go twice
        assert callers.dropped == 1
        assert second.held == third.held == 0

    assert on_the_line(scenario) == [1]


def test_who_is_worked_for_is_never_dropped():
    def scenario(tasks):
        callers = Callers(most=2, most_bytes=10)
        for task in tasks[:2]:
            callers.work_for(callers.enter(task))
        assert not callers.has_room()

    assert on_the_line(scenario) == []


def test_memory_is_taken_from_the_slow_before_anyone_is_refused():
    def scenario(tasks):
        callers = Callers(most=5, most_bytes=10)
        slow, quick, worked = (callers.enter(task) for task in tasks[:3])
        callers.work_for(worked)
        callers.hold(worked, 2)
        callers.hold(slow, 6)
        callers.hold(quick, 6)  # 14: the slow one goes
        assert len(callers) == 2
        with pytest.raises(RefusedError, match="too much is being sent"):
            callers.hold(quick, 6)
        callers.leave(quick)
        callers.leave(slow)  # it goes by itself, too, and is not counted twice
        late = callers.enter(tasks[3])
        callers.hold(late, 8)
        callers.release(late)
        callers.hold(late, 8)

    assert on_the_line(scenario) == [0]
