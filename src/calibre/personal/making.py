"""From a personal model to its bundle: what has to be known of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from calibre.local.features import encode
from calibre.models.network import Head
from calibre.personal.card import Preprocessing
from calibre.personal.heads import Samples
from calibre.personal.holdout import HeldOut
from calibre.personal.predictor import SideBySide
from calibre.sections import NetworkSettings

RATE = 0.05  # of own images that may be refused


@dataclass(frozen=True)
class Making:
    """Everything that a bundle is made from."""

    client: str
    novel: bool
    method: str
    classes: tuple[str, ...]
    network: NetworkSettings
    preprocessing: Preprocessing
    encoders: Sequence[nn.Module]
    head: Head
    labelled: Samples
    held_out: HeldOut
    fitted: str  # how the held-out answers came about, or why they cannot be used
    final: Head | None = None  # what is bundled, after all labels; None: what is measured
    usable: bool = True  # whether they are like the model's own, so that a temperature fits both
    test: Samples | None = None
    images: Tensor | None = None  # uint8 [N, H, W, C]: all that it trains on, labelled ones first
    test_images: Tensor | None = None  # those of ``test``
    foreign: Tensor | None = None  # images of classes that the client does not hold
    unlabelled: int = 0
    chosen: str | None = None  # how the images with a label were chosen, in words
    fairness: Mapping[str, Any] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    run: Mapping[str, str | int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rate: float = RATE

    def features(self, images: Tensor) -> Tensor:
        """Of further images [n, H, W, C], [n, d]."""
        return encode(SideBySide(self.encoders), images, self.preprocessing.normalization)
