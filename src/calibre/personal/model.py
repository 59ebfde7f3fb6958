"""A client's personal model: what of it is the client's own, and how well it does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre.errors import UserError
from calibre.local.features import encode
from calibre.local.site import Site
from calibre.methods.method import Method
from calibre.models.fixed import Components
from calibre.models.network import Head
from calibre.models.patches import Patches
from calibre.personal.heads import Samples
from calibre.personal.holdout import HeldOut
from calibre.personal.pooling import Curves
from calibre.tensors import Tensors, belongs, put, take

SECOND = "second"  # the part of a network that is a second one, with an encoder and a head


class TestSet(NamedTuple):
    images: Tensor  # uint8 [n, H, W, C]
    labels: Tensor  # int64 [n]


class Prepared(NamedTuple):
    """A client as personalisation finds it; its site's network is loaded."""

    site: Site
    kept: Tensors | None
    test: TestSet
    curves: Curves | None = None  # what its cross-validation found, where that was asked before


@dataclass(frozen=True)
class Personal:
    client: int
    correct: int  # of its own test images
    images: int
    tensors: Tensors  # only what is the client's own; the rest is the global model
    final: Head | None = None  # the same head after all labels, those of test images too
    held: HeldOut | None = None  # what cross-validation found, where it was costly

    @property
    def accuracy(self) -> float:
        return self.correct / self.images

    def to_keep(self) -> Tensors:
        """All of it as named tensors."""
        more: Tensors = {}
        if self.final is not None:
            more |= {"final.weight": self.final.weight, "final.bias": self.final.bias}
        if self.held is not None:
            more |= held_tensors(self.held)
        return {**self.tensors, **more}


def held_tensors(held: HeldOut) -> Tensors:
    """How answers to held-out images are kept beside a personal model."""
    return {f"held.{name}": tensor.contiguous() for name, tensor in held._asdict().items()}


class Kept(NamedTuple):
    """A personal model as it was kept."""

    own: Tensors
    final: Head | None
    held: HeldOut | None

    @staticmethod
    def of(tensors: Tensors) -> "Kept":
        own = {n: t for n, t in tensors.items() if not belongs(n, ("final", "held"))}
        known = "final.weight" in tensors
        final = Head(tensors["final.weight"], tensors["final.bias"]) if known else None
        names = {name: f"held.{name}" for name in HeldOut._fields}
        known = all(key in tensors for key in names.values())
        held = HeldOut(**{name: tensors[key] for name, key in names.items()}) if known else None
        return Kept(own, final, held)


def count_right(network: nn.Module, site: Site, test: TestSet) -> int:
    """How many test images a whole network gets right."""
    predicted = encode(network, test.images, site.normalization).argmax(dim=1)
    return int((predicted == test.labels).sum())


def count_right_by_head(head: Head, samples: Samples) -> int:
    """The same for a head on features."""
    return int((F.linear(samples.features, *head).argmax(1) == samples.labels).sum())


def head_tensors(head: Head) -> Tensors:
    """How a head is kept where the encoder is the global one."""
    return {"head.weight": head.weight, "head.bias": head.bias}


def own_encoder(kept: Tensors | None) -> Tensors:
    """What of the encoder is the client's own, and not the server's."""
    return {name: t for name, t in (kept or {}).items() if belongs(name, ("encoder",))}


def part_tensors(parts: Sequence[nn.Module]) -> Tensors:
    """How further parts beside the encoder are kept: ``parts.1.directions`` and so on.

    Of the network's second encoder, which is not the client's own, it is kept that it is one.
    """
    kept: Tensors = {}
    for i, part in enumerate(parts, start=1):
        if isinstance(part, Components | Patches):
            kept |= {f"parts.{i}.{name}": tensor for name, tensor in take(part).items()}
            kept[f"parts.{i}.side"] = torch.tensor(part.side)
        else:
            kept[f"parts.{i}.{SECOND}"] = torch.tensor(1)
    return kept


def as_classifier(method: Method, network: nn.Module, own: Tensors) -> tuple[list[nn.Module], Head]:
    """Parts side by side and one linear head: all that a personal model is, of any method.

    ``network`` holds the common start, the server's model and what the client kept.
    """
    known = network.state_dict().keys()
    head = Head(own["head.weight"], own["head.bias"]) if "head.weight" in own else None
    encoder = network.get_submodule("encoder")
    known_parts = ("encoder", "head", SECOND, "parts")
    if head is not None and all(belongs(name, known_parts) for name in own):
        put(network, {name: t for name, t in own.items() if belongs(name, ("encoder", SECOND))})
        return [encoder, *_further_parts(own, network)], head
    put(network, {name: tensor for name, tensor in own.items() if name in known})
    if added := sorted(own.keys() - known):
        raise UserError(
            f"the personal models of {method.label} cannot be bundled: a bundle holds an encoder "
            f"and a linear head, and these also have {added[0]}"
        )
    return method.classifier(network)


def _further_parts(own: Tensors, network: nn.Module) -> list[nn.Module]:
    """Those that :func:`part_tensors` kept."""
    kept: dict[int, Tensors] = {}
    for name, tensor in own.items():
        if belongs(name, ("parts",)):
            _, number, own_name = name.split(".", 2)
            kept.setdefault(int(number), {})[own_name] = tensor
    return [_part(kept[number], network) for number in sorted(kept)]


def _part(tensors: Tensors, network: nn.Module) -> nn.Module:
    if SECOND in tensors:
        return network.get_submodule(f"{SECOND}.encoder")
    held = dict(tensors)
    side = int(held.pop("side"))
    part: nn.Module
    if "filters" in held:
        count, channels = held["filters"].shape[:2]
        part = Patches(channels, side, count)
    else:
        pixels, count = held["directions"].shape
        part = Components(pixels // side**2, side, count)
    put(part, held)
    return part
