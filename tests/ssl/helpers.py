"""What the training loop hands to an objective, made by hand."""

import torch

from calibre import rng
from calibre.ssl.objective import Sample, Step


def a_step(images=8, *, progress=0.0, both=False, labels=None, small=None):
    """A step on the first images of a client without labels, at the start of a run."""
    return Step(
        rows=torch.arange(images),
        labels=torch.full((images,), -1) if labels is None else labels,
        progress=progress,
        random=lambda purpose: rng.stream(0, purpose),
        both=both,
        small=small,
    )


def drawing(views):
    """A client whose images these are views of: the first are drawn."""
    return lambda count: Sample(torch.arange(len(views[:count])), views[:count])
