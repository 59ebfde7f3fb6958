"""Arrays in files, mapped into memory: only what is looked at is read, and processes share it."""

import json
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

KINDS = {"I32": np.int32, "I64": np.int64}


def mapped_npy(path: Path) -> npt.NDArray[Any]:
    """The array of an .npy file."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def mapped_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of whole numbers of a safetensors file, which has been found sound before."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header.pop("__metadata__", None)
    return {name: _array(whole, 8 + length, about) for name, about in header.items()}


def _array(whole: mmap.mmap, start: int, about: dict[str, Any]) -> npt.NDArray[Any]:
    shape = about["shape"]
    first = start + about["data_offsets"][0]
    flat = np.frombuffer(whole, KINDS[about["dtype"]], int(np.prod(shape)), first)
    return flat.reshape(shape)
