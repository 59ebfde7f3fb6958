"""The updates of one round: checked one at a time as they come, and made into the next state."""

from collections.abc import Callable, Iterator

from calibre.data.federation import Federation
from calibre.engine.crew import one_thread
from calibre.engine.messages import Failed, Outcome, Updated
from calibre.engine.plausible import check_update
from calibre.engine.privacy import Mechanism
from calibre.engine.robust import Robust
from calibre.experiment import Experiment
from calibre.methods.method import ServerState, Update
from calibre.report.events import Emit, Progressed


class Gathering:
    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        state: ServerState,
        failed: Callable[[int, str, str], None],  # told of a client, the cause and details
        emit: Emit,
    ) -> None:
        self.method = experiment.method
        self.federation = federation
        self.state = state
        self.failed = failed
        self.emit = emit
        self.private = Mechanism(experiment.privacy) if experiment.privacy.clip else None
        self.defence = Robust(experiment.robust) if experiment.robust.on else None
        self.reports: dict[int, dict[str, float]] = {}  # by client whose update is good
        self.keepers: list[int] = []  # clients that kept something

    def aggregate(self, outcomes: Iterator[Outcome]) -> ServerState:
        """The server's next state, of the good updates."""
        updates = self._checked(outcomes)
        with one_thread():  # the thread count decides how sums are rounded
            if self.private is not None:
                updates = iter([self.private.mean(self.state, updates)])
            if self.defence is not None:
                updates = self.defence.defend(self.state, updates)
            return self.method.aggregate(self.state, updates)

    def _checked(self, outcomes: Iterator[Outcome]) -> Iterator[Update]:
        """The good updates, one at a time; the others are named and left out."""
        expected = self.method.expected_update(self.state)
        for outcome in outcomes:
            client = outcome.job.clients[0]
            reply = outcome.reply
            if isinstance(reply, Failed):
                self.failed(client, reply.error, reply.detail)
                continue
            try:
                if not isinstance(reply, Updated):
                    raise ValueError("it answers another question")
                update = reply.update(client, outcome.tensors)
                held = self.federation.client(client)
                check_update(update, self.method, held, expected)
            except ValueError as problem:
                self.failed(client, f"its update was refused: {problem}", "")
                continue
            self.reports[client] = {**reply.report, "began": reply.began, "seconds": reply.seconds}
            if reply.keeps:
                self.keepers.append(client)
            self.emit(Progressed(stage="train"))
            yield update
