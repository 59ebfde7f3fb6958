"""Tensors on the wire: one flat block for a whole state, checked before anything uses it.

A block is one safetensors file in one Flower array: its header is the layout, names, shapes and
dtypes, and costs about a hundred bytes a tensor. Flower moves one large array several times faster
than a hundred small ones, and nothing in it can be unpickled.
"""

from collections.abc import Mapping

import safetensors
import safetensors.torch as st
import torch
from flwr.app import Array

from calibre.tensors import Tensors, ordered

KIND = "safetensors"  # Flower's name for how an array was written
HEADER = 2**16  # bytes of layout allowed beyond a fixed number per tensor
PER_TENSOR = 512


def pack(tensors: Mapping[str, torch.Tensor], half: bool = False) -> Array:
    """All tensors as one array; with ``half``, floating ones as float16."""
    if half:
        tensors = {name: _halved(name, tensor) for name, tensor in tensors.items()}
    data = st.save(ordered(tensors))
    return Array("uint8", (len(data),), KIND, data)


def unpack(array: Array, limit: int) -> Tensors:
    """The tensors of a block of at most ``limit`` bytes; ValueError says what is wrong with it."""
    if array.stype != KIND:
        raise ValueError(f"its tensors are written as '{array.stype[:40]}', not as '{KIND}'")
    if len(array.data) > limit:
        raise ValueError(f"its tensors take {len(array.data):,} bytes, at most {limit:,} are due")
    try:
        return ordered(st.load(array.data))
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"its tensors cannot be read: {error}") from None


def restored(tensors: Tensors, like: Mapping[str, torch.Tensor]) -> Tensors:
    """Float16 that stands for float32, as ``like`` says, made float32 again."""
    return {
        name: tensor.to(like[name].dtype)
        if tensor.dtype == torch.float16 and name in like and like[name].is_floating_point()
        else tensor
        for name, tensor in tensors.items()
    }


def room_for(tensors: Mapping[str, torch.Tensor]) -> int:
    """The most bytes that a block of such tensors can take."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return size + PER_TENSOR * len(tensors) + HEADER


def _halved(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    short = tensor.to(torch.float16)
    if torch.isinf(short).any() and not torch.isinf(tensor).any():
        raise ValueError(f"tensor '{name}' exceeds float16; use engine.transfer = 'exact'")
    return short
