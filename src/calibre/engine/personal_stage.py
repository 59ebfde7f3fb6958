"""After the rounds: a personal model for every client, by the method and by every floor."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from calibre.data.federation import Federation
from calibre.engine.crew import Crew
from calibre.engine.host import Host, method_of
from calibre.engine.messages import METHOD, Assessed, Failed, Job, Personalised
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.methods.method import ServerState
from calibre.personal.pooling import Curves, HeadChoice, pooled
from calibre.personal.ways import way_of
from calibre.report.events import Emit, Progressed
from calibre.report.metrics import ClientResult
from calibre.run_folder import RunFolder
from calibre.wording import quoted

NAMED = 5  # clients that a message names


@dataclass(frozen=True)
class PersonalStage:
    experiment: Experiment
    federation: Federation
    host: Host
    crew: Crew
    state: ServerState  # after the last round
    kept: Mapping[int, int]  # client -> the round after which it last kept something
    failed: Callable[[int, str, str], None]  # books a client's failure: cause, detail
    emit: Emit
    store: RunFolder

    def results(self) -> tuple[list[ClientResult], HeadChoice | None]:
        """Who has a model by the method and by every floor, and what the method's went by."""
        choices: dict[str, HeadChoice | None] = {}
        scores: dict[str, dict[int, float]] = {}
        for role in (METHOD, *self._floors()):
            told = self._assess(role)
            choices[role] = pooled(told[client] for client in sorted(told))
            scores[role] = self._personalize(role, choices[role], told)
        scored = sorted(set.intersection(*(set(by_client) for by_client in scores.values())))
        counts = self.federation.counts()
        rows = [self._result(client, int((counts[client] > 0).sum()), scores) for client in scored]
        return rows, choices[METHOD]

    def _ids(self) -> range:
        """Who gets a personal model."""
        if self.experiment.personal.clients == "novel":
            return self.federation.novel_ids
        return range(len(self.federation))

    def _floors(self) -> list[str]:
        own = self.experiment.method.name
        return [name for name in self.experiment.personal.floors if name != own]

    def _groups(self, role: str) -> list[range]:
        """Whose personal models are made together."""
        ids = self._ids()
        way = way_of(method_of(self.experiment, role), self.experiment.personal)
        size = way.group(len(ids))
        return [ids[i : i + size] for i in range(0, len(ids), size)]

    def _assess(self, role: str) -> dict[int, Curves]:
        """What every client's cross-validation says; empty where there is nothing to choose."""
        state = self.state if role == METHOD else self.host.initial_state(role)
        jobs = [job("assess", group, self.kept, role) for group in self._groups(role)]
        told: dict[int, Curves] = {}
        for outcome in self.crew.run(state, jobs):
            reply = outcome.reply
            if isinstance(reply, Assessed):
                if not (reply.curves or reply.missing):
                    return {}
                for client, curves in reply.curves.items():
                    labels = len(self.federation.client(client).labelled)
                    if any(curve.images > labels for curve in curves.values()):
                        self.failed(client, f"its cross-validation is of more than {labels}", "")
                    else:
                        told[client] = curves
        return told

    def _personalize(
        self, role: str, choice: HeadChoice | None, told: Mapping[int, Curves]
    ) -> dict[int, float]:
        """The accuracy of every client's personal model."""
        state = self.state if role == METHOD else self.host.initial_state(role)
        method = method_of(self.experiment, role)
        ids = self._ids()
        jobs = [
            job("personalize", group, self.kept, role, choice, told) for group in self._groups(role)
        ]
        label = method.label
        scores: dict[int, float] = {}
        for outcome in self.crew.run(state, jobs):
            reply, asked = outcome.reply, outcome.job.clients
            if not isinstance(reply, Personalised):
                cause = reply.error if isinstance(reply, Failed) else "another question's answer"
                raise UserError(
                    f"making personal models ({label}) failed for {self._names(asked)}: {cause}\n"
                    f"training is kept: continue with  calibre-fl resume {quoted(self.store.path)}"
                )
            for client, cause in reply.missing.items():
                self.failed(client, f"making its personal model ({label}): {cause}", "")
            for client, score in reply.scores.items():
                due = len(self.federation.client(client).test)
                if score.images == due:
                    scores[client] = score.accuracy
                else:
                    cause = f"it was scored on {score.images} images, but holds {due}"
                    self.failed(client, f"making its personal model ({label}): {cause}", "")
            self.emit(Progressed(stage=label, done=len(scores), of=len(ids)))
        if len(scores) < max(1, math.ceil(self.experiment.engine.quorum * len(ids))):
            raise UserError(
                f"only {len(scores)} of {len(ids)} clients have a personal model ({label}), "
                f"engine.quorum asks for more (see 'failure' in {self.store.events}); training is "
                f"kept: continue with  calibre-fl resume {quoted(self.store.path)}"
            )
        return scores

    def _names(self, clients: Sequence[int]) -> str:
        shown = [self.federation.client(client).name for client in clients[:NAMED]]
        more = f" and {len(clients) - NAMED:,} more" if len(clients) > NAMED else ""
        return ", ".join(shown) + more

    def _result(
        self, client: int, classes: int, scores: dict[str, dict[int, float]]
    ) -> ClientResult:
        held = self.federation.client(client)
        labels = min(len(held.labelled), self.experiment.personal.labels or len(held.labelled))
        return ClientResult(
            id=client,
            name=held.name,
            novel=held.novel,
            samples=labels,
            unlabelled=len(held.labelled) - labels + len(held.unlabelled),
            test_samples=len(held.test),
            classes=classes,
            accuracy=scores[METHOD][client],
            floors={
                name: by_client[client] for name, by_client in scores.items() if name != METHOD
            },
        )


def job(
    kind: Literal["update", "assess", "personalize"],
    clients: Sequence[int],
    kept: Mapping[int, int],
    role: str = METHOD,
    choice: HeadChoice | None = None,
    told: Mapping[int, Curves] = MappingProxyType({}),
) -> Job:
    """For these clients: after which round each last kept something, and what it told."""
    rounds = tuple(kept.get(client, 0) for client in clients)
    curves = {client: told[client] for client in clients if client in told}
    return Job(
        kind=kind, clients=tuple(clients), role=role, choice=choice, curves=curves, kept=rounds
    )
