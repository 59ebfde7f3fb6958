"""Many clients' image indices in two flat arrays: ten thousand clients cost no more than images."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Parts:
    """Every client's image indices in one flat array: client i holds offsets[i] to offsets[i+1]."""

    indices: npt.NDArray[np.int32]  # ascending within a client
    offsets: Ints  # [C + 1]

    def __post_init__(self) -> None:
        self.indices.flags.writeable = False  # a client that shuffles in place would harm others

    @classmethod
    def of(cls, clients: npt.ArrayLike, indices: npt.ArrayLike, count: int) -> "Parts":
        """From pairs: the image ``indices[j]`` goes to ``clients[j]``, one of 0 to count - 1."""
        clients = np.asarray(clients, np.int64)
        keys = clients << 32  # one key for the pair: sorts in a tenth of np.lexsort's time
        keys |= np.asarray(indices, np.int64)
        keys.sort()
        sizes = np.bincount(clients, minlength=count)
        return cls(keys.astype(np.int32), np.concatenate([[0], np.cumsum(sizes)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> npt.NDArray[np.int32]:
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)

    @property
    def clients(self) -> Ints:
        """The client of each entry of ``indices``."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def shifted(self, by: int) -> "Parts":
        """The same images counted from elsewhere, e.g. from the start of the pool."""
        return Parts(self.indices + np.int32(by), self.offsets)

    def among(self, rows: Ints) -> "Parts":
        """The same, where images were counted among ``rows``, ascending, alone."""
        return Parts(rows[self.indices].astype(np.int32), self.offsets)

    def where(self, keep: Mask) -> "Parts":
        return Parts.of(self.clients[keep], self.indices[keep], len(self))

    def pick(self, clients: Ints) -> "Parts":
        """These clients alone, in this order."""
        place = np.full(len(self), -1)
        place[clients] = np.arange(len(clients))
        new = place[self.clients]
        return Parts.of(new[new >= 0], self.indices[new >= 0], len(clients))

    def followed_by(self, other: "Parts") -> "Parts":
        """These clients, and then the other ones."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]])
        return Parts(np.concatenate([self.indices, other.indices]), offsets)

    def joined(self, other: "Parts") -> "Parts":
        """Both clients' shares put together."""
        return Parts.of(
            np.concatenate([self.clients, other.clients]),
            np.concatenate([self.indices, other.indices]),
            len(self),
        )

    def table(self, labels: Labels, classes: int) -> Ints:
        """How many images of each class a client holds: [C, K]."""
        cells = self.clients
        cells *= classes
        cells += labels[self.indices]
        return np.bincount(cells, minlength=len(self) * classes).reshape(len(self), classes)
