"""Algebra on named tensors: what travels, what is averaged, what is stored."""

import hashlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import safetensors
import safetensors.torch as st
import torch
from torch import nn

from calibre.files import lacking, open_regular

Tensors = dict[str, torch.Tensor]  # parameters and buffers by state-dict name
# batch norm's buffers, told by their names: a server knows tensors, not networks
BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")


def belongs(name: str, parts: Iterable[str]) -> bool:
    """Whether a state-dict name lies in one of the named parts, e.g. ``encoder``."""
    return any(name == part or name.startswith(part + ".") for part in parts)


def take(module: nn.Module, parts: Iterable[str] | None = None) -> Tensors:
    """Copies, on the CPU, of all parameters and buffers of the named parts, or of everything."""
    parts = None if parts is None else tuple(parts)
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format).cpu()
        for name, tensor in sorted(module.state_dict().items())
        if parts is None or belongs(name, parts)
    }


@torch.no_grad()
def put(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors into a module in place: its parameters stay the same objects."""
    state = module.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        state[name].copy_(tensor)


def check_like(tensors: Mapping[str, torch.Tensor], reference: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError unless names, shapes and dtypes match and every value is finite."""
    if unlike := sorted(set(tensors) ^ set(reference)):
        verb = "is missing" if unlike[0] in reference else "was not asked for"
        raise ValueError(f"tensor '{unlike[0]}' {verb}")
    for name, expected in reference.items():
        tensor = tensors[name]
        if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
            raise ValueError(
                f"tensor '{name}' is {tensor.dtype} {list(tensor.shape)}, "
                f"expected {expected.dtype} {list(expected.shape)}"
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ValueError(f"tensor '{name}' holds NaN or infinity")


class EmptyMeanError(ValueError):
    """There was no tensor with a positive weight."""


class WeightedMean:
    """A running weighted mean: one accumulator, however many are added.

    Floating tensors (buffers of batch norm included) are summed in float64; integers, such as
    batch norm's counters, have no mean and take the largest value.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._sums: Tensors = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, tensors: Mapping[str, torch.Tensor], weight: float) -> None:
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"a weight must be finite and not negative, not {weight}")
        self.weight += weight
        for name, tensor in tensors.items():
            if not tensor.is_floating_point():
                old = self._sums.get(name)
                self._sums[name] = tensor.clone() if old is None else torch.maximum(old, tensor)
            elif name in self._sums:
                self._sums[name].add_(tensor.double(), alpha=weight)
            else:
                self._dtypes[name] = tensor.dtype
                self._sums[name] = tensor.double() * weight

    def result(self) -> Tensors:
        if not self.weight > 0:
            raise EmptyMeanError("nothing with a positive weight was added")
        return {
            name: (total / self.weight).to(self._dtypes[name]) if name in self._dtypes else total
            for name, total in self._sums.items()
        }


def step_towards(
    start: Mapping[str, torch.Tensor], goal: Mapping[str, torch.Tensor], rate: float
) -> Tensors:
    """``start + rate * (goal - start)``; a rate of 1 is the goal itself, bit for bit."""
    if rate == 1:
        return dict(goal)
    return {
        name: (old.double() + rate * (goal[name].double() - old.double())).to(old.dtype)
        if old.is_floating_point()
        else goal[name]
        for name, old in start.items()
    }


def ordered(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """By name. Files and pipes keep no order, and the order of a sum decides how it is rounded."""
    return dict(sorted(tensors.items()))


def prefixed(groups: Mapping[str, Mapping[str, torch.Tensor]]) -> Tensors:
    """Groups of tensors as one flat table, ``group/name``: what files and pipes carry."""
    return {
        f"{group}/{name}": t for group, tensors in groups.items() for name, t in tensors.items()
    }


def grouped(tensors: Mapping[str, torch.Tensor]) -> dict[str, Tensors]:
    """The inverse of :func:`prefixed`."""
    groups: dict[str, Tensors] = {}
    for key, tensor in ordered(tensors).items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return groups


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and every bit."""
    found = hashlib.sha256()
    for name, tensor in ordered(tensors).items():
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def to_file(tensors: Mapping[str, torch.Tensor], of: str = "") -> bytes:
    """A safetensors file that carries its own checksum, and of what it is (not to be read there)"""
    return st.save(ordered(tensors), metadata={"sha256": _sealed(tensors, of)})


def _sealed(tensors: Mapping[str, torch.Tensor], of: str) -> str:
    own = digest(tensors)
    return hashlib.sha256(f"{own} {of}".encode()).hexdigest() if of else own


def read_file(path: Path, of: str = "") -> Tensors:
    """What :func:`to_file` made of the same thing, whole and unchanged; else a ValueError.

    Files of earlier versions say nothing of what they are of.
    """
    try:
        open_regular(path).close()
        with safetensors.safe_open(path, "pt") as file:
            promised = (file.metadata() or {}).get("sha256")
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (OSError, safetensors.SafetensorError) as error:
        if isinstance(error, FileNotFoundError) or lacking(error):
            raise
        raise ValueError(str(error)) from None
    if promised not in (_sealed(tensors, of), digest(tensors)):
        raise ValueError("its checksum does not match")
    return tensors
