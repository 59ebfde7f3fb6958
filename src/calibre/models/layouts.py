"""What others call the tensors of the encoders we have, and which encoder a file holds.

ResNets of torchvision and timm have the same names; for ViTs ours are timm's. A name stands for the
same tensor everywhere, values included, but for ViTs' positions of another image size and for first
layers of another number of channels (:mod:`calibre.models.weights`).
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from calibre.models.tensorfile import Shapes

Names = dict[str, str]  # what we call a tensor: what its file calls it

# an encoder alone, that of a run's model, that of a bundle
PLACES = ("", "encoder.", "network.encoder.encoders.0.")
BUNDLED = ("network.encoder.encoders.0.", "network.encoder.encoders.1.")  # its first two parts
CLASSIFIERS = ("fc.", "head.", "heads.", "classifier.")  # what others end a network with
COUNTER = "num_batches_tracked"  # of batch norm, which files may leave out: nothing reads it

# blocks of each stage, and whether they are bottlenecks
RESNETS = {
    ((1, 1, 1), False): "resnet8",
    ((1, 1, 1, 1), False): "resnet10",
    ((2, 2, 2, 2), False): "resnet18",
    ((3, 4, 6, 3), False): "resnet34",
    ((3, 4, 6, 3), True): "resnet50",
}
VITS = {(192, 12): "vit_tiny", (384, 12): "vit_small", (768, 12): "vit_base"}  # length, blocks
STEMS = {7: "imagenet", 3: "cifar"}  # pixels of a side of the first convolution

TORCHVISION_VIT = (
    (r"^conv_proj\.", "patch_embed.proj."),
    (r"^class_token$", "cls_token"),
    (r"^encoder\.pos_embedding$", "pos_embed"),
    (r"^encoder\.ln\.", "norm."),
    (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"^(blocks\.\d+\.)ln_([12])\.", r"\1norm\2."),
    (r"^(blocks\.\d+\.)self_attention\.in_proj_(weight|bias)$", r"\1attn.qkv.\2"),
    (r"^(blocks\.\d+\.)self_attention\.out_proj\.", r"\1attn.proj."),
    (r"^(blocks\.\d+\.)mlp\.(?:0|linear_1)\.", r"\1mlp.fc1."),
    (r"^(blocks\.\d+\.)mlp\.(?:3|linear_2)\.", r"\1mlp.fc2."),
)


def two_encoders(shapes: Shapes) -> bool:
    """Whether the tensors are a bundle's that stands on two networks of one kind."""
    first, second = (
        {name.removeprefix(place) for name in shapes if name.startswith(place)} for place in BUNDLED
    )
    return bool(first) and first == second


def _ours(name: str) -> str:
    return name


def _wrapped(name: str) -> str:
    """In a network whose output was measured (:class:`calibre.models.network.Measured`)."""
    return f"network.{name}"


def _resnet_of_others(name: str) -> str:
    found = re.match(r"layer(\d)\.(\d+\.)(.+)", name)
    if found is None:
        return name
    stage, block, rest = found.groups()
    return f"stages.{int(stage) - 1}.{block}{rest.replace('downsample.', 'shortcut.')}"


def _vit_of_torchvision(name: str) -> str:
    for theirs, ours in TORCHVISION_VIT:
        name = re.sub(theirs, ours, name)
    return name


DIALECTS: tuple[Callable[[str], str], ...] = (
    _ours, _resnet_of_others, _vit_of_torchvision, _wrapped,
)  # fmt: skip


def readings(names: Iterable[str]) -> list[Names]:
    """Every way in which the names of a file may be meant."""
    return [
        {dialect(name.removeprefix(place)): name for name in names if name.startswith(place)}
        for place in PLACES
        for dialect in DIALECTS
    ]


def matched(there: Shapes, here: Shapes) -> Names:
    """The reading of a file in which most tensors are an encoder's, without the classifier."""
    best = max(readings(there), key=lambda names: len(names.keys() & here.keys()))
    return {
        ours: theirs
        for ours, theirs in best.items()
        if ours in here or not ours.removeprefix("network.").startswith(CLASSIFIERS)
    }


def recognised(shapes: Shapes) -> dict[str, Any]:
    """Settings of the encoder whose tensors these are; none where it is not one of ours."""
    for names in readings(shapes):
        ours = {name: shapes[theirs] for name, theirs in names.items()}
        if found := _resnet(ours) or _vit(ours) or _cnn(ours):
            return found
    return {}


def _resnet(shapes: Shapes) -> dict[str, Any]:
    first = shapes.get("conv1.weight", ())
    stages = _count(shapes, r"stages\.(\d+)\.")
    blocks = tuple(_count(shapes, rf"stages\.{stage}\.(\d+)\.") for stage in range(stages))
    name = RESNETS.get((blocks, "stages.0.0.conv3.weight" in shapes))
    if name is None or len(first) != 4 or first[-1] not in STEMS:
        return {}
    return {"encoder": name, "width": first[0], "stem": STEMS[first[-1]]}


def _vit(shapes: Shapes) -> dict[str, Any]:
    first = shapes.get("patch_embed.proj.weight", ())
    if len(first) != 4:
        return {}
    name = VITS.get((first[0], _count(shapes, r"blocks\.(\d+)\.")))
    return {"encoder": name, "patch": first[-1]} if name else {}


def _cnn(shapes: Shapes) -> dict[str, Any]:
    first = shapes.get("layers.0.weight", ())
    kernels = [shape for shape in shapes.values() if len(shape) == 4]
    if len(first) != 4 or len(kernels) != 4:
        return {}
    return {"encoder": "cnn", "width": first[0]}


def _count(shapes: Shapes, pattern: str) -> int:
    """How many different numbers stand where the pattern has its group."""
    return len({found[1] for name in shapes if (found := re.match(pattern, name))})
