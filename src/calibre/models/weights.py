"""Tensors of a file into an encoder: every name and shape is checked before memory is asked for."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from calibre.errors import UserError
from calibre.models.layouts import COUNTER, Names, matched, recognised
from calibre.models.tensorfile import Shapes, located, sha256_of, shapes_of
from calibre.sections import WeightsSettings

SHOWN = 3  # tensors that do not fit, of which a message speaks
POSITIONS = "pos_embed"


def load(encoder: nn.Module, weights: WeightsSettings, built_by: Mapping[str, Any]) -> None:
    """Start ``encoder``, which may be on "meta", from a file; ``built_by`` are its settings."""
    file = located(weights.name)
    _check_content(file, weights.sha256)
    there = shapes_of(file)
    state = encoder.state_dict()
    here = {name: tuple(tensor.shape) for name, tensor in state.items()}
    names = matched(there, here)
    if problems := _problems(names, there, here):
        raise _misfit(file, problems, recognised(there), built_by)
    with safe_open(file, framework="pt") as tensors:
        values = {
            name: _fitted(file, name, tensors.get_tensor(theirs), state[name])
            for name, theirs in names.items()
        }
    counters = {name: torch.zeros((), dtype=torch.int64) for name in here if name not in values}
    encoder.load_state_dict(values | counters, assign=True)


def _check_content(file: Path, sha256: str | None) -> None:
    if sha256 is None:
        raise UserError(
            "network.weights has no sha256, by which its content is known: read the experiment "
            "with calibre.read_experiment, which fills it in"
        )
    if (found := sha256_of(file)) != sha256:
        raise UserError(
            f"{file} is not what the experiment started from: its SHA-256 begins with {found[:8]}, "
            f"not with {sha256[:8]}; put the old file back, or start another run with this one"
        )


def _problems(names: Names, there: Shapes, here: Shapes) -> list[str]:
    """Every tensor that does not fit, in words."""
    if not names.keys() & here.keys():
        return [
            f"none of its tensors, such as '{min(there)}', is one of them"
            if there
            else "it has no tensors: the run's method shares no encoder"
        ]
    problems = []
    for name, shape in here.items():
        if name in names and not _fits(name, there[names[name]], shape):
            theirs = names[name]
            problems.append(f"tensor '{theirs}' is {list(there[theirs])} there, {list(shape)} here")
        elif name not in names and not name.endswith(COUNTER):
            problems.append(f"tensor '{name}' is missing there, {list(shape)} here")
    return problems + [
        f"tensor '{theirs}' is {list(there[theirs])} there and has no place here"
        for theirs in sorted(names[name] for name in names.keys() - here.keys())
    ]


def _misfit(
    file: Path, problems: list[str], found: Mapping[str, Any], built_by: Mapping[str, Any]
) -> UserError:
    changes = [f"network.{key}={value}" for key, value in found.items() if built_by[key] != value]
    more = len(problems) - SHOWN
    told = "; ".join(problems[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
    work = (
        f"what would work: {' '.join(changes)}"
        if changes
        else "no encoder of Calibre's is built so"
    )
    kind = ", ".join(f"{key} {value}" for key, value in built_by.items())
    return UserError(f"network.weights: {file} does not fit the network ({kind}): {told}; {work}")


def _fits(name: str, there: tuple[int, ...], here: tuple[int, ...]) -> bool:
    return (
        there == here
        or _is_colour_to_gray(there, here)
        or (name == POSITIONS and _grid(there) > 0 and _grid(here) > 0 and there[2] == here[2])
    )


def _is_colour_to_gray(there: tuple[int, ...], here: tuple[int, ...]) -> bool:
    """Whether it is the first layer of a network for colour images, asked to read gray ones."""
    return len(there) == 4 and there[1] == 3 and here == (there[0], 1, *there[2:])


def _grid(shape: tuple[int, ...]) -> int:
    """Patches along a side, of positions [1, 1 + side^2, D]; 0 where they are no such thing."""
    if len(shape) != 3 or shape[0] != 1:
        return 0
    side = math.isqrt(max(0, shape[1] - 1))
    return side if side**2 == shape[1] - 1 else 0


def _fitted(file: Path, name: str, given: Tensor, like: Tensor) -> Tensor:
    """A file's tensor as the network has it: a copy of its own, of its kind, shape and size."""
    if given.is_floating_point() != like.is_floating_point():
        raise UserError(f"{file}: tensor '{name}' has {given.dtype} there and {like.dtype} here")
    tensor = given.to(dtype=like.dtype, copy=True)
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise UserError(f"{file}: tensor '{name}' holds NaN or infinity")
    if _is_colour_to_gray(tuple(given.shape), tuple(like.shape)):
        return tensor.sum(dim=1, keepdim=True)  # what three equal channels would give
    if name == POSITIONS and tensor.shape != like.shape:
        return resampled(tensor, _grid(tuple(like.shape)))
    return tensor


def resampled(positions: Tensor, side: int) -> Tensor:
    """Positions [1, 1 + s^2, D] of s x s patches for side x side of them, as timm does it.

    The first belongs to the class token and stays.
    """
    token, patches = positions[:, :1], positions[:, 1:]
    old = math.isqrt(patches.shape[1])
    maps = patches.reshape(1, old, old, -1).permute(0, 3, 1, 2)
    maps = F.interpolate(maps, size=(side, side), mode="bicubic", antialias=True)
    return torch.cat([token, maps.permute(0, 2, 3, 1).reshape(1, side * side, -1)], dim=1)
