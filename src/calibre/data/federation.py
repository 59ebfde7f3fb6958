"""A federation: who holds which images of a pool. Built once, hashed, saved beside the results.

Clients 0, 1, ... train; the novel ones come after them and only personalise. All indices lie in a
few flat arrays, so that ten thousand clients cost no more than their images.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from calibre.data import dealing
from calibre.data.datasheet import datasheet
from calibre.data.made_up import deal_unlabelled, made_up
from calibre.data.mapped import mapped_safetensors
from calibre.data.owners import hold_out, natural
from calibre.data.parts import Ints, Mask, Parts
from calibre.data.pool import Pool
from calibre.data.purposes import Earlier, divided
from calibre.errors import UserError
from calibre.files import open_regular, write_atomic
from calibre.rng import numpy_stream
from calibre.run_files import RunFiles
from calibre.sections import FederationSettings

Indices = npt.NDArray[np.int32]
ARRAYS = (
    "labelled", "labelled.offsets", "unlabelled", "unlabelled.offsets", "test", "test.offsets",
    "train.table", "test.table",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Client:
    """One client's images, as indices into the pool; views, not copies."""

    id: int
    name: str
    novel: bool
    labelled: Indices  # to train on and to personalise with
    unlabelled: Indices  # to train on only
    test: Indices


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients of an experiment; ``federation.client(i)`` is one of them."""

    fingerprint: str  # of the pool that the indices point into
    classes: tuple[str, ...]
    training: int  # how many clients train
    names: tuple[str, ...]  # of the clients, where the data names them; else empty
    labelled: Parts
    unlabelled: Parts
    test: Parts
    train_table: Ints  # [C, K] training images by class, with or without their labels
    test_table: Ints  # [C, K]
    datasheet: Mapping[str, Any]  # what a reader wants to know of it, in words and numbers

    def __len__(self) -> int:
        return len(self.labelled)

    @property
    def train_ids(self) -> range:
        return range(self.training)

    @property
    def novel_ids(self) -> range:
        return range(self.training, len(self))

    def client(self, client: int) -> Client:
        novel = client in self.novel_ids
        name = self.names[client] if self.names else f"{'novel' if novel else 'client'}-{client}"
        return Client(
            client, name, novel, self.labelled[client], self.unlabelled[client], self.test[client]
        )

    def counts(self, part: Literal["train", "test"] = "train") -> Ints:
        """Images by client and class, [C, K]; those that hide their label from the client too."""
        return self.train_table if part == "train" else self.test_table

    @cached_property
    def hash(self) -> str:
        """Two runs may be compared when their federations have the same hash."""
        return _hash(self._facts(), self._arrays().items())

    def save(self, folder: Path) -> None:
        """A datasheet for people, and arrays for :func:`load`."""
        arrays = safetensors.numpy.save(
            self._arrays(), metadata={"federation": json.dumps(self._facts())}
        )
        sheet = json.dumps({**self.datasheet, "hash": self.hash}, indent=2, ensure_ascii=False)
        files = RunFiles(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(files.federation_arrays, arrays)
        write_atomic(files.federation, sheet + "\n")

    def _facts(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "classes": self.classes,
            "training": self.training,
            "names": self.names,
        }

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        parts = (self.labelled, self.unlabelled, self.test)
        flat = [array for part in parts for array in (part.indices, part.offsets)]
        return dict(zip(ARRAYS, [*flat, self.train_table, self.test_table], strict=True))


def load(folder: Path) -> Federation:
    """The federation that :meth:`Federation.save` wrote, checked against its hash.

    Its arrays stay in the file: clients of whom nothing is asked cost no memory.
    """
    files = RunFiles(folder)
    path = files.federation
    try:
        with open_regular(path) as sheet:
            datasheet = json.loads(sheet.read())
        expected = datasheet.pop("hash")
        path = files.federation_arrays
        open_regular(path).close()
        with safetensors.safe_open(path, framework="numpy") as file:
            facts = json.loads(file.metadata()["federation"])
            found = _hash(facts, ((name, file.get_tensor(name)) for name in ARRAYS))
        arrays = mapped_safetensors(path)
        federation = Federation(
            fingerprint=facts["fingerprint"],
            classes=tuple(facts["classes"]),
            training=facts["training"],
            names=tuple(facts["names"]),
            labelled=Parts(arrays["labelled"], arrays["labelled.offsets"]),
            unlabelled=Parts(arrays["unlabelled"], arrays["unlabelled.offsets"]),
            test=Parts(arrays["test"], arrays["test.offsets"]),
            train_table=arrays["train.table"],
            test_table=arrays["test.table"],
            datasheet=datasheet,
        )
    except FileNotFoundError:
        raise UserError(f"{path} is missing: there is no saved federation in {folder}") from None
    except (
        safetensors.SafetensorError, OSError, ValueError, LookupError, TypeError, RecursionError,
    ) as error:  # fmt: skip
        raise UserError(f"{path} is damaged ({error}): build the federation again") from None
    if found != expected:
        raise UserError(
            f"{path} is damaged: its content has the hash {found}, "
            f"{files.federation.name} says {expected}; build the federation again"
        )
    vars(federation)["hash"] = found  # it is known: nothing is read again for it
    return federation


def _hash(facts: Mapping[str, Any], arrays: Iterable[tuple[str, npt.NDArray[Any]]]) -> str:
    digest = hashlib.sha256(json.dumps(facts).encode())
    for name, array in arrays:
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def build(
    pool: Pool, settings: FederationSettings, seed: int, earlier: Earlier | None = None
) -> Federation:
    """Share the pool's images out. The same arguments give the same federation, bit for bit.

    Owners keep what is theirs, unless the settings name another scheme. ``earlier`` is what the
    images were for in a run that this goes on from: they stay that.
    """
    if settings.scheme == "auto":
        scheme = "dirichlet" if pool.owners is None else "natural"
        settings = settings.model_copy(update={"scheme": scheme})
    division = divided(pool, earlier)
    names: tuple[str, ...] = ()
    left_out: dict[str, str] = {}
    if settings.scheme == "natural":
        train, test, unlabelled, names, left_out = natural(pool, division, settings, seed)
    else:
        train, test = made_up(pool, division, settings, seed)
        unlabelled = deal_unlabelled(pool, division, settings, len(train), seed)
    clients = len(train)
    if settings.score_on == "validation":
        everybody = range(clients)
        train, test = hold_out(
            train, pool, everybody, everybody, seed, division, division.validation
        )
        if not test.sizes.all():
            client = int(np.argmin(test.sizes))
            raise UserError(
                f'federation.score_on = "validation": client {client} has {train.sizes[client]} '
                "training images, no two of one class, and can hold none of them out; give "
                "clients more images (federation.samples)"
            )

    labelled, hidden = train, train.where(np.zeros(len(train.indices), np.bool_))
    if (kept := _kept_labels(train, pool, settings, seed)) is not None:
        labelled, hidden = train.where(kept), train.where(~kept)

    federation = Federation(
        fingerprint=pool.fingerprint,
        classes=pool.classes,
        training=clients - settings.novel,
        names=names,
        labelled=labelled,
        unlabelled=hidden.joined(unlabelled),
        test=test,
        train_table=train.table(pool.labels, len(pool.classes)),
        test_table=test.table(pool.labels, len(pool.classes)),
        datasheet={},
    )
    return replace(federation, datasheet=datasheet(federation, pool, settings, seed, left_out))


class SharedImages(NamedTuple):
    """The images of an experiment, and who holds them: read once, for all who need them."""

    pool: Pool
    federation: Federation

    @staticmethod
    def of(pool: Pool, settings: FederationSettings, seed: int) -> "SharedImages":
        return SharedImages(pool, build(pool, settings, seed))


def _kept_labels(train: Parts, pool: Pool, settings: FederationSettings, seed: int) -> Mask | None:
    """Which training images keep their label; None: all of them."""
    streams = partial(numpy_stream, seed, "federation/labels")
    if settings.labels and settings.label_draw != "random":
        return dealing.keep_of_each_class(train, pool.labels, settings.labels, streams)
    if settings.labels:
        held = np.count_nonzero(train.table(pool.labels, len(pool.classes)), axis=1)
        counts = settings.labels * held
    elif settings.label_count:
        counts = np.full(len(train), settings.label_count)
    elif settings.label_fraction:
        counts = np.maximum(1, np.round(settings.label_fraction * train.sizes)).astype(np.int64)
    else:
        return None
    by_class = settings.label_draw == "class"
    return dealing.keep_labels(train, pool.labels, counts, by_class, streams)
