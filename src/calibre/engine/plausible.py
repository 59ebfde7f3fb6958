"""What a server may compute with and go on from: finite, and not of another order of size.

A tensor may become at most ``GROWTH`` times as long in a round as it was, or as 1 where it was
shorter. Training that works changes weights by parts of their length, so the rule stops only what
would leave a model that no later round can mend: a client's mistake, an attack, or training that
has lost itself. Smaller wrongs are for :mod:`calibre.engine.robust`.
"""

import math
from collections.abc import Mapping

import torch

from calibre.methods.method import ServerState
from calibre.tensors import Tensors

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


def check_state(new: ServerState, old: ServerState) -> None:
    """ValueError where a state must not become a checkpoint."""
    check_size(new.groups, old.groups)


def _length(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))
