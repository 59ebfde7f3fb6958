"""What a server may compute with and go on from: finite, and not of another order of size.

A tensor may become at most ``GROWTH`` times as long in a round as it was, or as 1 where it was
shorter. Training that works changes weights by parts of their length, so the rule stops only what
would leave a model that no later round can mend: a client's mistake, an attack, or training that
has lost itself. Smaller wrongs are for :mod:`calibre.engine.robust`.
"""

import math
from collections.abc import Mapping

import torch

from calibre.data.federation import Client
from calibre.methods.method import Method, ServerState, Update
from calibre.tensors import Tensors, check_like

GROWTH = 1e6  # in one round


def check_size(groups: Mapping[str, Tensors], before: Mapping[str, Tensors]) -> None:
    """ValueError where a floating tensor is not finite or far longer than it was ``before``."""
    for group, tensors in groups.items():
        old = before.get(group, {})
        for name, tensor in tensors.items():
            if not tensor.is_floating_point():
                continue
            length = _length(tensor)
            if not math.isfinite(length) and not torch.isfinite(tensor).all():
                raise ValueError(f"tensor '{name}' holds NaN or infinity")
            if length <= GROWTH or name not in old:
                continue
            if length > GROWTH * (was := _length(old[name])):
                raise ValueError(
                    f"tensor '{name}' has a length of {length:.3g}, the server's had {was:.3g}: "
                    f"more than {GROWTH:g} times that in one round is not plausible"
                )


def check_update(
    update: Update, method: Method, held: Client, expected: Mapping[str, Tensors]
) -> None:
    """All that the server will compute with; ValueError says what is wrong."""
    due = method.samples(len(held.labelled), len(held.labelled) + len(held.unlabelled))
    if update.samples != due:
        raise ValueError(f"it trained on {update.samples} images, but holds {due}")
    numbers = method.numbers
    if unlike := sorted(numbers.keys() ^ update.numbers.keys()):
        verb = "is missing" if unlike[0] in numbers else "was not asked for"
        raise ValueError(f"the number '{unlike[0]}' {verb}")
    for name, value in update.numbers.items():
        if not numbers[name].accepts(value):
            raise ValueError(f"its {name} is {value:g}, not {numbers[name]}")
    for group in sorted(expected.keys() | update.shared.keys()):
        check_like(update.shared.get(group, {}), expected.get(group, {}))
    if "held" in expected:
        _check_classes(update.shared["held"]["classes"], len(held.labelled))
    check_size(update.shared, expected)


def _check_classes(classes: torch.Tensor, labels: int) -> None:
    """Of which classes a client says that it has labels; with one label nobody trains."""
    if not torch.isin(classes, torch.tensor([0, 1])).all():
        raise ValueError("its marks of classes with labels are not 0 or 1")
    told = int(classes.sum())
    if told > (labels if labels > 1 else 0):
        raise ValueError(f"it says that labels of {told} classes trained, but has {labels} labels")


def check_state(new: ServerState, old: ServerState) -> None:
    """ValueError where a state must not become a checkpoint."""
    check_size(new.groups, old.groups)


def _length(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))
