"""Lets torchvision be imported beside a torch of another build, without its compiled operators."""

import torch

KEPT: list[torch.library.Library] = []  # an operator goes when its library does
BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def allow() -> None:
    """Declare the two operators that the import asks for; nothing measured here calls them."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        KEPT.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            KEPT[0].define(name + BOXES)
