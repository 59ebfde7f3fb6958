"""One client's side of a round: its images, the network it may use, its own randomness."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from calibre import rng
from calibre.data.augment import Normalization, Views, plain, small_views, two_views, weak
from calibre.local.memory import Memory
from calibre.sections import PersonalSettings, TrainingSettings
from calibre.tensors import Tensors, put


@dataclass(frozen=True)
class Site:
    """All that a method sees of a client. The same class serves every engine."""

    client: int
    round: int
    seed: int
    training: TrainingSettings
    network: nn.Module  # kept alive between clients; call `load` before use
    initial: Tensors  # its state at the common start
    images: Tensor  # uint8 [n, H, W, C]: the labelled ones first
    labels: Tensor  # int64 [n], -1 where unlabelled
    labelled: int  # how many carry a label
    views: Views
    normalization: Normalization
    device: torch.device
    classes: int  # that the federation knows
    trains: bool = True  # whether the client takes part in training; False: novel
    met_labels: bool = False  # whether its labels have trained the network that it gets
    labels_by_class: bool = False  # drawn so many of each: they do not tell the client's own mix
    amp: bool = False
    personal: PersonalSettings = field(default_factory=PersonalSettings)
    memory: Memory = field(default_factory=Memory)  # of the process that works for the client
    drawn: list[int] = field(default_factory=list)  # how many images each step looked at

    def load(self, *states: Tensors | None) -> None:
        """The common start, overlaid by what was received and by what this client kept."""
        put(self.network, self.initial)
        for state in states:
            if state is not None:
                put(self.network, state)

    def generator(self, purpose: str, *keys: int) -> torch.Generator:
        """Randomness for one purpose of this client in this round, on the site's device."""
        return rng.stream(self.seed, purpose, self.round, self.client, *keys, device=self.device)

    def two_views(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        self.drawn.append(len(rows))
        return two_views(self.images[rows], self.views, self.normalization, generator)

    def small_views(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        return small_views(self.images[rows], self.views, self.normalization, generator)

    def weak_view(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        self.drawn.append(len(rows))
        return weak(self.images[rows], self.normalization, generator, flip=self.views.flip)

    def plain(self, images: Tensor) -> Tensor:
        return plain(images, self.normalization)
