"""CIFAR-10 and CIFAR-100: the official binary files and the official Python batches."""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from calibre.data.formats import Part, PixelArray, Raw
from calibre.errors import UserError

CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
NAMES_100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(NAMES_100.split())
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
BINARY_FILES_10 = (*(f"{name}.bin" for name in BATCHES), "test_batch.bin")
BINARY_FILES_100 = ("train.bin", "test.bin")
PYTHON_FILES_10 = (*BATCHES, "test_batch")
PYTHON_FILES_100 = ("train", "test")
PIXELS = 3 * 32 * 32  # of an image, channel by channel, row by row


def read_binary_10(folder: Path) -> Raw:
    return _raw(CIFAR10, [_binary(folder / name, label_bytes=1) for name in BINARY_FILES_10])


def read_binary_100(folder: Path) -> Raw:
    # a coarse label, then the fine one
    return _raw(CIFAR100, [_binary(folder / name, label_bytes=2) for name in BINARY_FILES_100])


def read_python_10(folder: Path) -> Raw:
    return _raw(CIFAR10, [_batch(folder / name, b"labels") for name in PYTHON_FILES_10])


def read_python_100(folder: Path) -> Raw:
    return _raw(CIFAR100, [_batch(folder / name, b"fine_labels") for name in PYTHON_FILES_100])


def _raw(classes: tuple[str, ...], parts: list[Part]) -> Raw:
    """The last file is the test part, the others are the training part."""
    *train, test = parts
    images = np.concatenate([part.images for part in train])
    return Raw(classes, Part(images, np.concatenate([part.labels for part in train])), test)


def _images(rows: PixelArray) -> PixelArray:
    """[N, 3072] -> [N, 32, 32, 3]."""
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _binary(path: Path, label_bytes: int) -> Part:
    content = np.fromfile(path, np.uint8)
    if len(content) == 0 or len(content) % (label_bytes + PIXELS):
        raise UserError(
            f"{path} is not a whole number of records of {label_bytes + PIXELS} bytes "
            f"({len(content):,} in all); download it again"
        )
    rows = content.reshape(-1, label_bytes + PIXELS)
    return Part(_images(rows[:, label_bytes:]), rows[:, label_bytes - 1].astype(np.int64))


def _batch(path: Path, labels: bytes) -> Part:
    content = path.read_bytes()
    try:
        _check_memo(content)
        batch = _OnlyArrays(io.BytesIO(content), encoding="bytes").load()
        rows = batch[b"data"].values.reshape(-1, PIXELS)
        numbers = batch[labels]
        if {type(number) for number in numbers} - {int}:
            raise ValueError("its labels are not numbers")
        return Part(_images(rows), np.array(numbers, np.int64))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle fails in any way it likes
        raise UserError(f"{path} is not a batch of CIFAR: {error}; download it again") from error


def _check_memo(content: bytes) -> None:
    """A pickle can number what it remembers so high that the list of it fills all memory."""
    for opcode, number, _ in pickletools.genops(content):
        if opcode.name.endswith("PUT") and int(number or 0) > len(content):
            raise ValueError(f"it counts to {number:,}")


class _Values:
    """What a pickled array of bytes holds; numpy's own would trust whatever shape it is told."""

    values: PixelArray

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, _, content = state
        if not isinstance(dtype, _Dtype) or dtype.code not in (b"u1", "u1"):
            raise ValueError("its array is not of bytes")
        self.values = np.frombuffer(content, np.uint8).reshape(shape)


class _Dtype:
    """Of an array: its code is all that matters."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like, which bytes do not have."""


def _new_array(*_: Any) -> _Values:
    return _Values()


def _encode(text: str, _encoding: str) -> bytes:
    return text.encode("latin1")  # how Python 3 writes bytes into an old pickle


# all that a pickled numpy array consists of
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("_codecs", "encode"): _encode,
}


class _OnlyArrays(pickle.Unpickler):
    """Reads numbers, strings, lists, dictionaries and arrays of bytes; runs nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise UserError(
                f"the pickle asks for {module}.{name}, which no CIFAR batch needs: it may be "
                "dangerous and was not run; get the binary version: calibre-fl data download"
            )
        return ALLOWED[module, name]
