"""What a run's figures mean, in sentences: the verdict, and what to worry about."""

from collections import Counter
from collections.abc import Mapping, Sequence

from calibre import wording
from calibre.report.events import ClientFailed
from calibre.report.floors import FLOORS
from calibre.report.metrics import ClientResult, summary
from calibre.report.runs import Run

NAMED = 5  # clients that a sentence names
FEW = 20  # test images below which an accuracy is coarse


def percent(share: float | None) -> str:
    """On one line of the page, whatever its width."""
    return wording.percent(share).replace(" ", "\N{NO-BREAK SPACE}")


def verdict(clients: Sequence[ClientResult]) -> list[str]:
    """Whom the model serves, and whom badly: what a person must know who reads nothing else."""
    said = []
    for novel, who in ((False, "{} trained"), (True, "{} joined only afterwards (novel)")):
        group = [client for client in clients if client.novel == novel]
        if not group:
            continue
        figures = summary([client.accuracy for client in group])
        worst = min(group, key=lambda client: client.accuracy)
        best = max(group, key=lambda client: client.accuracy)
        if worst.accuracy == best.accuracy and len(group) > 1:
            said.append(
                f"{who.format(_clients(len(group)))}: each has an accuracy of "
                f"{percent(figures.mean)}."
            )
            continue
        said.append(
            f"{who.format(_clients(len(group)))}: mean accuracy {percent(figures.mean)}, the "
            f"worst tenth {percent(figures.worst_tenth)}; from {percent(worst.accuracy)} "
            f"({worst.name}) to {percent(best.accuracy)} ({best.name})."
        )
    return [*said, *_against_local(clients)]


def _against_local(clients: Sequence[ClientResult]) -> list[str]:
    known = [client for client in clients if "local" in client.floors]
    if not known:
        return []
    alone = percent(sum(client.floors["local"] for client in known) / len(known))
    behind = better_off_alone(known)
    if not behind:
        return [
            f"Nobody is better off with local training alone, which reaches {alone} on average."
        ]
    return [
        f"{_clients(len(behind))} of {len(known):,} {_are(len(behind))} better off with local "
        f"training alone, which reaches {alone} on average: {_named(behind, 'local')}."
    ]


def warnings(run: Run) -> list[str]:
    """Failures, collapse, clients left behind; empty when there is nothing to worry about."""
    return [
        *run.metrics.warnings,
        *_failures(run),
        *_left_behind(run.clients),
        *_never_chosen(run),
        *_of_one_class(run.clients),
        *_coarse(run.clients),
    ]


def left_out(reasons: Mapping[str, str]) -> list[str]:
    """Who has no model at all, by why; empty where everybody has one."""
    if not reasons:
        return []
    names = list(reasons)
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    named = ", ".join(f"{name} ({reasons[name]})" for name in names[:NAMED])
    return [f"{_clients(len(names))} {_are(len(names))} left out, and in no figure: {named}{more}."]


def better_off_alone(clients: Sequence[ClientResult], floor: str = "local") -> list[ClientResult]:
    """Clients with a personal model below that floor, those that lose most first."""
    behind = [c for c in clients if c.accuracy < c.floors.get(floor, 0)]
    return sorted(behind, key=lambda client: (client.accuracy - client.floors[floor], client.id))


def beyond_chance(client: ClientResult, floor: str) -> bool:
    """Does it lose more than a test set of its size can explain?"""
    return _loss(client, floor).low > 0


def _loss(client: ClientResult, floor: str) -> wording.Difference:
    return wording.difference([(client.floors[floor], client.accuracy, client.test_samples)])


def _failures(run: Run) -> list[str]:
    failed = [event for event in run.events if isinstance(event, ClientFailed)]
    count = max(len(failed), run.metrics.failures)
    if not count:
        return []
    said = f"{count:,} time{'' if count == 1 else 's'} a client failed, and its work was left out"
    if failed:
        names = {client.id: client.name for client in run.clients}
        by_client = Counter(names.get(event.client, event.called) for event in failed)
        causes = Counter(event.cause.partition("\n")[0][:200] for event in failed)
        who = ", ".join(f"{client} ({times:,})" for client, times in by_client.most_common(NAMED))
        said += f". Most often {who}; most often with: {causes.most_common(1)[0][0]}"
    return [f"{said}. All of it is in events.jsonl."]


def _left_behind(clients: Sequence[ClientResult]) -> list[str]:
    said = []
    for floor, (phrase, *_) in FLOORS.items():
        behind = [c for c in better_off_alone(clients, floor) if beyond_chance(c, floor)]
        if behind:
            said.append(
                f"For {_clients(len(behind))} {phrase} does better than the federation's model, by "
                f"more than test sets of this size can explain by chance: {_named(behind, floor)}."
            )
    guessing = [c for c in clients if c.classes > 1 and c.accuracy < 1 / c.classes]
    if guessing:
        guessing.sort(key=lambda client: (client.accuracy, client.id))
        named = ", ".join(f"{c.name} ({percent(c.accuracy)})" for c in guessing[:NAMED])
        said.append(
            f"{_clients(len(guessing))} {_do(len(guessing))} worse than guessing among the classes "
            f"held: {named}{_more(guessing)}."
        )
    return said


def _never_chosen(run: Run) -> list[str]:
    taken = {client for event in run.rounds for client in event.clients}
    missed = [c for c in run.clients if not c.novel and c.id not in taken]
    if not taken or not missed:
        return []
    named = ", ".join(client.name for client in missed[:NAMED])
    rounds = wording.how_many(len(run.rounds), "round")
    return [
        f"{_clients(len(missed))} never trained in any of {rounds}: "
        f"{named}{_more(missed)}. More training.rounds or training.clients_per_round reach them."
    ]


def _of_one_class(clients: Sequence[ClientResult]) -> list[str]:
    alike = [client for client in clients if client.classes == 1]
    if not alike:
        return []
    named = ", ".join(client.name for client in alike[:NAMED])
    return [
        f"{_clients(len(alike))} with one class alone: 100 % there tells of nothing learned: "
        f"{named}{_more(alike)}."
    ]


def _coarse(clients: Sequence[ClientResult]) -> list[str]:
    few = [client for client in clients if client.test_samples < FEW]
    if not few:
        return []
    fewest = min(client.test_samples for client in few)
    return [
        f"{_clients(len(few))} {'is' if len(few) == 1 else 'are'} scored on fewer than {FEW} test "
        f"images (at fewest {fewest}): single accuracies are coarse there."
    ]


def _named(behind: Sequence[ClientResult], floor: str) -> str:
    named = [
        f"{c.name} ({percent(c.accuracy)} against {percent(c.floors[floor])}: "
        f"{_loss(c, floor).words})"
        for c in behind[:NAMED]
    ]
    return ", ".join(named) + _more(behind)


def _more(clients: Sequence[ClientResult]) -> str:
    return f" and {len(clients) - NAMED:,} more" if len(clients) > NAMED else ""


def _clients(count: int) -> str:
    return wording.how_many(count, "client")


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _do(count: int) -> str:
    return "does" if count == 1 else "do"
