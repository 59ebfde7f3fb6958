"""A client's personal model: what of it is the client's own, and how well it does."""

from dataclasses import dataclass
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from calibre.errors import UserError
from calibre.local.features import encode
from calibre.local.site import Site
from calibre.methods.method import Method
from calibre.models.network import Head
from calibre.personal.heads import Samples
from calibre.tensors import Tensors, put


class TestSet(NamedTuple):
    images: Tensor  # uint8 [n, H, W, C]
    labels: Tensor  # int64 [n]


class Prepared(NamedTuple):
    """A client as personalisation finds it; its site's network is loaded."""

    site: Site
    kept: Tensors | None
    test: TestSet


@dataclass(frozen=True)
class Personal:
    client: int
    correct: int  # of its own test images
    images: int
    tensors: Tensors  # only what is the client's own; the rest is the global model

    @property
    def accuracy(self) -> float:
        return self.correct / self.images


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


def as_classifier(method: Method, network: nn.Module, own: Tensors) -> tuple[list[nn.Module], Head]:
    """Encoders side by side and one linear head: all that a personal model is, of any method.

    ``network`` holds the common start, the server's model and what the client kept.
    """
    known = network.state_dict().keys()
    put(network, {name: tensor for name, tensor in own.items() if name in known})
    added = own.keys() - known
    if added == {"head.weight", "head.bias"}:  # a head on a network that has none
        head = Head(own["head.weight"], own["head.bias"])
        return [network.get_submodule("encoder")], head
    if added:
        raise UserError(
            f"the personal models of {method.label} cannot be bundled: a bundle holds an encoder "
            f"and a linear head, and these also have {sorted(added)[0]}"
        )
    return method.classifier(network)
