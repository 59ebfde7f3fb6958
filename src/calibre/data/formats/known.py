"""The data sets that an experiment may call by name, and how they lie on people's disks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from calibre.data.formats import Raw, cifar, digits, idx, parquet, stl10


@dataclass(frozen=True)
class Layout:
    """One way a known data set lies on disk."""

    read: Callable[[Path], Raw]
    folders: tuple[str, ...]  # below the data root, or absolute; the first that fits is taken
    files: tuple[str, ...]  # patterns; a folder fits where each of them matches
    optional: tuple[str, ...] = ()  # patterns of files that may be missing


@dataclass(frozen=True)
class Known:
    """What ``calibre-fl data list`` says of a data set, and where to look for it."""

    about: str
    shape: tuple[int, int, int]  # height, width, channels
    train: int
    test: int  # 0: a test part is split off
    unlabelled: int
    classes: int
    layouts: tuple[Layout, ...]


def _sklearn() -> str:
    """The folder of scikit-learn, found without the second that importing it takes."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent)


PARQUET = ("train*.parquet", "test*.parquet")

KNOWN = {
    "digits": Known(
        "handwritten digits, part of scikit-learn",
        (8, 8, 1),
        train=1_797,
        test=0,
        unlabelled=0,
        classes=10,
        layouts=(Layout(digits.read, (_sklearn(),), ("__init__.py",)),),
    ),
    "mnist": Known(
        "handwritten digits (LeCun et al. 1998)",
        (28, 28, 1),
        train=60_000,
        test=10_000,
        unlabelled=0,
        classes=10,
        layouts=(
            Layout(
                partial(idx.read, classes=idx.DIGITS),
                ("mnist/raw", "mnist", "MNIST/raw", "mnist/MNIST/raw"),
                idx.FILES,
            ),
            Layout(partial(parquet.read, classes=idx.DIGITS), ("mnist/mnist", "mnist"), PARQUET),
        ),
    ),
    "fashion-mnist": Known(
        "pieces of clothing (Xiao et al. 2017)",
        (28, 28, 1),
        train=60_000,
        test=10_000,
        unlabelled=0,
        classes=10,
        layouts=(
            Layout(
                partial(idx.read, classes=idx.FASHION),
                (
                    "fashion-mnist/raw",
                    "fashion-mnist",
                    "FashionMNIST/raw",
                    "fashion-mnist/FashionMNIST/raw",
                    "/usr/share/datasets/fashion-mnist",  # Debian's dataset-fashion-mnist
                ),
                idx.FILES,
            ),
            Layout(
                partial(parquet.read, classes=idx.FASHION),
                ("fashion-mnist/fashion_mnist", "fashion-mnist"),
                PARQUET,
            ),
        ),
    ),
    "cifar10": Known(
        "animals and vehicles (Krizhevsky 2009)",
        (32, 32, 3),
        train=50_000,
        test=10_000,
        unlabelled=0,
        classes=10,
        layouts=(
            Layout(
                cifar.read_binary_10,
                ("cifar10/cifar-10-batches-bin", "cifar10", "cifar-10-batches-bin"),
                cifar.BINARY_FILES_10,
            ),
            Layout(
                cifar.read_python_10,
                ("cifar10/cifar-10-batches-py", "cifar10", "cifar-10-batches-py"),
                cifar.PYTHON_FILES_10,
            ),
            Layout(
                partial(parquet.read, classes=cifar.CIFAR10),
                ("cifar10/plain_text", "cifar10"),
                PARQUET,
            ),
        ),
    ),
    "cifar100": Known(
        "a hundred kinds of things (Krizhevsky 2009)",
        (32, 32, 3),
        train=50_000,
        test=10_000,
        unlabelled=0,
        classes=100,
        layouts=(
            Layout(
                cifar.read_binary_100,
                ("cifar100/cifar-100-binary", "cifar100", "cifar-100-binary"),
                cifar.BINARY_FILES_100,
            ),
            Layout(
                cifar.read_python_100,
                ("cifar100/cifar-100-python", "cifar100", "cifar-100-python"),
                cifar.PYTHON_FILES_100,
            ),
            Layout(
                partial(parquet.read, label_column="fine_label", classes=cifar.CIFAR100),
                ("cifar100/cifar100", "cifar100/plain_text", "cifar100"),
                PARQUET,
            ),
        ),
    ),
    "stl10": Known(
        "animals and vehicles, few of them labelled (Coates et al. 2011)",
        (96, 96, 3),
        train=5_000,
        test=8_000,
        unlabelled=100_000,
        classes=10,
        layouts=(
            Layout(
                stl10.read,
                ("stl10/stl10_binary", "stl10", "stl10_binary"),
                stl10.FILES,
                optional=(stl10.UNLABELLED_FILE,),
            ),
        ),
    ),
}
