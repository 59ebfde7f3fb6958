"""Memory that is no longer needed, given back to the system."""

import ctypes
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def trim() -> None:
    """glibc keeps what was freed for later, as if it had not been freed."""
    freeing = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if freeing is not None:
        freeing(0)


def let_go(array: npt.NDArray[Any]) -> None:
    """Of a mapped array what was read so far; whoever looks at it again reads it again."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)
