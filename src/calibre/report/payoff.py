"""Did training together pay off? Where a floor does better, a run says so, and what to try."""

from collections.abc import Mapping

from calibre.methods.method import Method
from calibre.report.floors import FLOORS
from calibre.report.metrics import ByGroup
from calibre.sections import PersonalSettings

NOISE = 0.01  # a smaller difference of mean accuracies is not worth a word


def warnings(
    method: Method,
    personal: PersonalSettings,
    reached: ByGroup,
    floors: Mapping[str, ByGroup],
) -> list[str]:
    """For the clients that trained: ``reached``, and each of ``floors``.

    The best floor is the one that counts.
    """
    mean = reached.train.mean
    if mean is None or not method.federated or not floors:
        return []  # every client is novel, each trained alone anyway, or nothing to compare with
    best = max(floors, key=lambda name: floors[name].train.measure("mean"))
    gap = floors[best].train.measure("mean") - mean
    if gap <= NOISE:
        return []
    tries = ["more rounds (training.rounds)"]
    if method.way == "head" and not personal.finetune_encoder:
        tries.append("personal.finetune_encoder=true")
    if not (method.supervised or method.met_labels(trained=True)):
        tries.append("method.labels.weight=1, so that labels take part in training")
    return [
        f"Training together has not paid off: on average {FLOORS[best].phrase} is better by "
        f"{100 * gap:.1f} points. Try {'; or '.join(tries)}."
    ]
