"""Networks of timm and torchvision by name, where those libraries are installed.

``network.encoder = "timm:NAME"`` or ``"torchvision:NAME"``, without its classifier. Its weights are
random, or come from a file as everybody's do: nothing is downloaded, and a run says which it was.
"""

import importlib
import re
from typing import Any

from torch import nn

from calibre.errors import UserError

LIBRARIES = ("timm", "torchvision")
CLASSIFIERS = ("fc", "classifier", "heads", "head")  # what torchvision ends its networks with


def is_of_library(encoder: str) -> bool:
    return encoder.partition(":")[0] in LIBRARIES


def build(encoder: str, channels: int) -> nn.Module:
    """The network that ``encoder``, such as ``timm:convnext_tiny``, names."""
    library, _, name = encoder.partition(":")
    if not re.fullmatch(r"[\w.]+", name):  # timm would take an address and fetch what is there
        raise UserError(f"network.encoder '{encoder}': give the name of a network of {library}")
    module = _imported(library, encoder)
    try:
        if library == "timm":
            return _checked(
                module.create_model(name, pretrained=False, num_classes=0, in_chans=channels)
            )
        network = _checked(module.get_model(name, weights=None))
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{library} builds no network '{name}': {error}") from error
    if channels != 3:
        raise UserError(
            f"network.encoder '{encoder}' takes colour images, these have {channels} channel; "
            f"timm:NAME takes them"
        )
    return _without_classifier(network, encoder)


def _imported(library: str, encoder: str) -> Any:
    try:
        return importlib.import_module("timm" if library == "timm" else "torchvision.models")
    except Exception as error:  # a torchvision of another torch than ours fails in many ways
        raise UserError(
            f"network.encoder '{encoder}' needs {library}, which cannot be imported here "
            f"({type(error).__name__}: {error}): pip install 'calibre-fl[pretrained]', with a "
            "torchvision that was built for the torch you have. ResNets and plain ViTs need "
            "neither library: calibre-fl has its own (docs/pretrained.md)"
        ) from error


def _checked(network: Any) -> nn.Module:
    if not isinstance(network, nn.Module):
        raise ValueError(f"it is a {type(network).__name__}")
    return network


def _without_classifier(network: nn.Module, encoder: str) -> nn.Module:
    """The same network, its last linear layer passing on what it gets."""
    for part in CLASSIFIERS:
        linear = [
            name
            for name, module in network.named_modules()
            if name.partition(".")[0] == part and isinstance(module, nn.Linear)
        ]
        if linear:
            network.set_submodule(linear[-1], nn.Identity())
            return network
    raise UserError(f"network.encoder '{encoder}' ends with no linear layer to take off")
