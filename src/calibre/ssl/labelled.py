"""The label term l_c: an objective around an objective, Algorithm 1 of the Calibre paper.

    L = beta l_c + L_inner,    l_c = CE( head(encoder(x)), y )

over a batch of the client's labelled images, weakly augmented, beside each self-supervised batch.
The encoder and a linear head get its gradient; projectors, predictors, queues and momentum copies
do not see it. The batch passes batch norm by itself, never mixed with a view.

Only classes of which the client has a label take part in the softmax: what others know of the rest
is not pushed away by a client that has never seen it.

A second network beside the first, where it is asked for, learns from labels alone.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from calibre.models.network import Classifier
from calibre.sections import Count, Fraction
from calibre.settings import Settings
from calibre.ssl.objective import Objective, Pair, Step, Wrapped


class LabelTerm(Settings):
    """How labels take part in training."""

    weight: Annotated[float, Field(ge=0)] = 0.0  # beta; 0: no label is looked at
    head: Literal["shared", "private"] = "shared"  # averaged like the encoder, or the client's own
    batch: Annotated[int, Field(ge=2)] = 32  # labelled images in a step
    warmup: Fraction = 0.0  # share of the run in which beta grows to its full weight
    last_rounds: Count = 0  # at the end of the run, in which l_c is the whole loss
    second: Count = 0  # passes over the labels, in each local epoch, of a second network beside the
    # first, which learns from nothing else; 0: there is none

    def at(self, progress: float) -> float:
        """beta, after this share of the run."""
        return self.weight * (min(1.0, progress / self.warmup) if self.warmup else 1.0)


class WithLabels(Wrapped):
    """The inner objective's network and a part ``head``; perhaps a part ``second``."""

    def __init__(
        self,
        inner: Objective,
        head: nn.Linear,
        settings: LabelTerm,
        second: Classifier | None = None,
    ) -> None:
        super().__init__(inner)
        self.settings = settings
        self.head = head
        if settings.head == "shared":
            self.shared = (*inner.shared, "head")
        else:
            self.kept = (*inner.kept, "head")
        if second is not None:
            self.second = second
            self.shared = (*self.shared, "second")

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        pair: Pair = self.inner(a, b, step)
        batch = step.labelled(self.settings.batch)
        if batch is None:
            return pair
        l_c = own_cross_entropy(self.head(self.encoder(batch.views)), batch.labels, batch.held)
        loss = pair.loss + self.settings.at(step.progress) * l_c
        return pair._replace(loss=loss, terms={"l_s": pair.loss, **pair.terms, "l_c": l_c})


def own_cross_entropy(logits: Tensor, labels: Tensor, held: Tensor) -> Tensor:
    """Cross entropy of logits [N, K] over the classes that are held (bool [K])."""
    with torch.autocast(logits.device.type, enabled=False):
        return F.cross_entropy(logits.float().masked_fill(~held, -torch.inf), labels)
