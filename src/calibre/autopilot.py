"""Settings that suit a user's own data: a pure function of facts about it, with its reasons.

The aim is a run of minutes on a laptop. Every choice ends up in ``experiment.toml``, and whatever
the user sets goes before it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibre.data import sources
from calibre.data.facts import Facts
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.models.start import completed
from calibre.settings import validate
from calibre.tables import flat

PASSES = 200_000  # of 32 x 32 images through the network, forth and back: minutes on two cores
MOST_ROUNDS = 60  # of self-supervision
LAST = 120  # passes over the labels in rounds on them alone, at the most; they gave about a point
# more on training images of CIFAR-10 and of Fashion-MNIST, as folders of 30 labels
LAST_SHARE = 0.25  # of the time of self-supervision, which they may take
SECOND = 600  # passes over the labels by the second network, at the most: half as many were up to
# two points worse on training images of CIFAR-10
SECOND_SHARE = 2  # of the time of self-supervision, which it may take: with every image labelled,
# 270 passes came to 82.0 % where 90 came to 79.9 (eight sites of 300 training images of CIFAR-10)
MOST_IN_EPOCH = 10  # of them: with more, clients' networks would drift too far apart in a round
STEPS = 100  # that a client which trains alone should take
FEW_CLIENTS = 10  # all of them train in every round
LARGE = 64  # pixels, from which on ResNets have a stem for large images
TRAIN_SHARE = 0.8  # of the images, where a fifth is set aside to test on


@dataclass(frozen=True)
class Choice:
    """A setting, and why it was chosen."""

    key: str
    value: Any  # None: left open, because what the data says is good
    why: str


class Chosen(NamedTuple):
    """An experiment that was chosen for somebody's data, and why it is as it is."""

    experiment: Experiment
    reasons: list[Choice]  # for what was chosen; what the user decided needs none


def for_data(values: Mapping[str, Any], place: str) -> Chosen:
    """The experiment on the data at ``place``; ``values`` are what the user has decided."""
    return for_found(values, place)[0]


def for_found(values: Mapping[str, Any], place: str) -> tuple[Chosen, sources.Found]:
    """The same, and the source that was read for it: whoever loads it need not read it again."""
    source = Path(place).expanduser()
    section = values.get("data", {})
    if isinstance(section, Mapping):  # nonsense is told by `validate`
        section = {**section, "source": str(source.resolve()) if source.exists() else place}
    # a network from elsewhere decides for itself how it is built
    decided = completed({**values, "data": section})
    own: Experiment = validate(Experiment, decided)
    found = sources.locate(own.data)
    labels = getattr(own.method, "labels", None)  # how they take part in training, if they may
    said = flat(decided)
    rounds = own.training.rounds if "training.rounds" in said else None
    epochs = own.training.epochs if "training.epochs" in said else None
    on_labels = labels is not None and labels.weight > 0 and rounds != 0
    choices = choose(sources.facts(own.data, found), on_labels, rounds, epochs)
    alone = (
        own.privacy.clip is not None  # a client's bounded change would be shared by two networks
        or getattr(own.method, "exchange", "model") == "encoder"  # it would not be sent
        or own.personal.head == "paper"  # nor looked at
    )
    if alone:
        choices = [choice for choice in choices if choice.key != "method.labels.second"]
    filled, reasons = fill(decided, choices)
    experiment: Experiment = validate(Experiment, filled)
    return Chosen(experiment, reasons), found


def choose(
    facts: Facts, on_labels: bool = True, rounds: int | None = None, epochs: int | None = None
) -> list[Choice]:
    """What to train, and for how long, where ``rounds`` and ``epochs`` are not decided.

    ``on_labels``: labels take part in training; rounds that are open may end on them alone.
    """
    classes = facts.table.shape[1]
    if classes < 2:
        raise UserError(
            f"{facts.name} has one class only, and nothing to tell apart: each class needs a "
            "sub-folder of its own, or a label of its own in a table (--data table.csv)"
        )
    side = _side(facts)
    images = int(facts.table.sum())
    federation, clients = _federation(facts, images)
    labelled = images * (1 if facts.tested else TRAIN_SHARE) / clients
    each = labelled + facts.unlabelled / clients
    held = int(np.median(np.count_nonzero(facts.table, axis=1))) if facts.owned else classes
    batch = 64 if each >= 128 else 32
    return [
        _size(facts, side),
        *federation,
        *_network(side),
        *_rounds(clients, each, labelled if on_labels else 0, side, (rounds, epochs)),
        Choice("method.sgd.batch", batch, f"a client trains on about {each:,.0f} images"),
        Choice(
            "method.prototypes.clusters",
            max(2, min(10, held, batch // 4)),
            f"clients hold about {held} classes; a prototype needs several images of a batch",
        ),
        *_views(facts),
        _labels(labelled, each),
        _own_models(labelled),
    ]


def fill(
    values: Mapping[str, Any], choices: Iterable[Choice]
) -> tuple[dict[str, Any], list[Choice]]:
    """``values`` of an experiment with what they leave open, and the choices that counted."""
    filled = dict(values)
    counted = []
    other_method = _name(values.get("method", "calibre")) != "calibre"
    for choice in choices:
        *sections, key = choice.key.split(".")
        if sections[0] == "method" and other_method:
            continue  # every method has settings of its own
        section = filled
        for name in sections:
            inner = section.get(name, {})
            section[name] = dict(inner) if isinstance(inner, Mapping) else {"name": inner}
            section = section[name]
        if key not in section:
            counted.append(choice)
            if choice.value is not None:
                section[key] = choice.value
    return filled, counted


def _name(value: Any) -> Any:
    return value.get("name", "calibre") if isinstance(value, Mapping) else value


def _side(facts: Facts) -> float:
    """Of the square that costs as much as an image."""
    if facts.size and max(facts.size) <= LARGE:
        return math.sqrt(facts.size[0] * facts.size[1])
    return facts.common_size


def _size(facts: Facts, side: float) -> Choice:
    if facts.size and max(facts.size) <= LARGE:
        return Choice("data.size", None, f"all images are {facts.sizes}: left as they are")
    differ = "" if facts.size else "images differ in size: "
    return Choice("data.size", int(side), f"{differ}{facts.sizes}; trains in minutes on a CPU")


def _federation(facts: Facts, images: int) -> tuple[list[Choice], int]:
    if facts.owned:
        clients = len(facts.table)
        return [
            Choice("federation.scheme", "natural", "the data says which images are whose"),
            Choice("federation.novel", 0, "all of them train"),
        ], clients
    clients = max(2, min(16, images // 60))
    return [
        Choice(
            "federation.scheme", "dirichlet", "nobody owns an image: unlike clients are made up"
        ),
        Choice("federation.clients", clients, f"{images:,} images, about 60 each or more"),
        Choice("federation.novel", 0, "all of them train"),
    ], clients


def _network(side: float) -> list[Choice]:
    if side < LARGE:
        return [
            Choice("network.encoder", "cnn", "small: trains without a GPU"),
            Choice("network.width", 32, f"enough for images of about {side:.0f} pixels"),
        ]
    return [
        Choice("network.encoder", "resnet8", "halves large images early: trains without a GPU"),
        Choice("network.width", 32, "half of the papers' width, a quarter of the time"),
    ]


def _cost(side: float) -> float:
    """Of one image, in images of 32 x 32 in the small CNN: at 64 the ResNet took 2.4 times."""
    return (side / 32) ** 2 if side < LARGE else 2.4 * (side / LARGE) ** 2


def _rounds(
    clients: int,
    each: float,
    labelled: float,
    side: float,
    decided: tuple[int | None, int | None],  # rounds, and epochs of each
) -> list[Choice]:
    if clients <= FEW_CLIENTS:
        per_round, who = clients, "all of them, since they are few"
    else:
        per_round = min(2 * FEW_CLIENTS, max(FEW_CLIENTS, clients // 5))
        who = f"of {clients:,}, who take turns"
    images = per_round * each
    epochs = decided[1] or int(max(1, min(3, PASSES / (MOST_ROUNDS * images * _cost(side)))))
    passes = images * epochs * _cost(side)  # in a round
    rounds = decided[0] or int(max(10, min(MOST_ROUNDS, PASSES / passes)))
    chosen = [
        Choice("training.clients_per_round", per_round, who),
        Choice("training.epochs", epochs, f"{images:,.0f} images in a round"),
    ]
    fits = f"as many as fit into minutes; 10 to {MOST_ROUNDS}"
    if labelled < 2:
        return [*chosen, Choice("training.rounds", rounds, fits)]
    # a step on labels looks at one view of an image, and not at two
    alike = 2 * rounds * epochs * each / labelled  # passes over the labels that take as long
    last = 0 if decided[0] else int(max(1, min(LAST, LAST_SHARE * alike) / epochs))
    second = round(min(SECOND, SECOND_SHARE * alike) / ((rounds + last) * epochs))
    chosen.append(
        Choice(
            "method.labels.second",
            max(1, min(second, MOST_IN_EPOCH)),
            "a second network learns from labels alone: what two say together is right more often",
        )
    )
    if not last:
        return [*chosen, Choice("training.rounds", rounds, fits)]
    return [
        *chosen,
        Choice("training.rounds", rounds + last, f"{rounds}, {fits}; and {last} on labels alone"),
        Choice(
            "method.labels.last_rounds",
            last,
            f"about {labelled:,.0f} labels a client: cheap rounds that end on what is asked for",
        ),
    ]


def _views(facts: Facts) -> list[Choice]:
    if facts.known:
        return []  # the views of known data sets are chosen with them
    return [
        Choice("views.flip", 0.0, "a mirrored image may mean something else; try 0.5 if not"),
        Choice("views.crop", [0.25, 1.0], "smaller scraps may miss what matters"),
    ]


def _labels(labelled: float, each: float) -> Choice:
    """The more of the images are labelled, the more labels may say."""
    share = labelled / max(each, 1)
    weight = round(1 + 3 * share, 1)
    return Choice(
        "method.labels.weight",
        weight,
        f"{100 * share:.0f} % of a client's images are labelled: labels take part in training",
    )


def _own_models(labelled: float) -> Choice:
    steps = max(1, math.ceil(labelled / 32))  # an epoch
    epochs = max(10, min(50, math.ceil(STEPS / steps)))
    return Choice(
        "personal.epochs",
        epochs,
        f"{epochs * steps} steps where a client trains alone, on about {labelled:,.0f} labels",
    )
