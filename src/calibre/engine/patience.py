"""How long a worker may take before it counts as stopped or hanging."""

import time
from dataclasses import dataclass, field

from calibre.engine.messages import Failed, Job

START_SECONDS = 600.0  # for a worker to load its libraries and data
FIRST_SECONDS = 3600.0  # for a client, while no job of its kind has ended yet
LEAST_SECONDS = 600.0  # for a client, afterwards
TIMES = 20.0  # the slowest so far


@dataclass(frozen=True)
class Busy:
    """A worker's job since it was sent."""

    job: Job
    index: int | None  # among those that are asked for; None: nobody waits for its outcome
    second: bool = False  # the first attempt hung
    since: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


class Patience:
    """Generous and learning: 20 times the slowest job of its kind, and at least ten minutes.

    ``deadline`` (engine.deadline) is the user's own limit, for one client's job.
    """

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.slowest: dict[str, float] = {}  # seconds a client, by kind of job

    def limit(self, job: Job) -> float:
        if self.deadline is not None:
            return self.deadline * len(job.clients)
        slowest = self.slowest.get(job.kind)
        each = FIRST_SECONDS if slowest is None else max(LEAST_SECONDS, TIMES * slowest)
        return each * len(job.clients)

    def learn(self, job: Job, seconds: float) -> None:
        each = seconds / len(job.clients)
        self.slowest[job.kind] = max(each, self.slowest.get(job.kind, 0.0))

    def failure(self, late: Busy) -> Failed:
        return Failed(
            error=f"two workers in turn did not answer, the last for {late.seconds:.0f} s "
            "(engine.deadline sets another limit)"
        )
