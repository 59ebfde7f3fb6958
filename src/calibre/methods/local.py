"""Local only: every client trains a network of its own on its own labels, from the common start.

What a client has without any federation, as the baselines of the Calibre paper's section V:

- ``local``, its Script-Fair: 10 epochs, as many as the other methods' personalisation;
- ``local-convergent``, its Script-Convergent: until the loss has settled (see :func:`converged`).
"""

import statistics
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import nn

from calibre.local.sgd import SGD
from calibre.local.site import Site
from calibre.methods.method import Method, Personalization, ServerState
from calibre.methods.supervised import train_classifier
from calibre.models.network import Problem, build_classifier
from calibre.tensors import Tensors

# Without momentum: a few dozen steps are too few for batch norm's statistics to follow weights that
# move fast. Of six rates, 0.1 was the best on validation images of digits.
SHORT_SGD = SGD(lr=0.1, momentum=0, weight_decay=1e-4, batch=32, schedule="constant")


class Local(Method):
    title: ClassVar[str] = "local only"
    paper: ClassVar[str] = "Script-Fair and Script-Convergent of the Calibre paper, section V"
    federated: ClassVar[bool] = False

    name: Literal["local", "local-convergent"] = "local"
    cap: Annotated[int, Field(ge=0)] = 200  # most epochs of local-convergent
    sgd: SGD = SHORT_SGD

    @property
    def label(self) -> str:
        return f"{self.title}, to convergence" if self.name == "local-convergent" else self.title

    def personalization(self) -> Personalization:
        return "native"

    def build(self, problem: Problem) -> nn.Module:
        return build_classifier(problem)

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        return ()

    def personalize(self, server: ServerState, personal: Tensors | None, site: Site) -> nn.Module:
        lasting = self.sgd.model_copy(update={"schedule": "constant"})  # there are no rounds
        if self.name == "local-convergent":
            train_to_convergence(site, lasting, self.cap)
        else:
            train_classifier(site, lasting, site.personal.epochs)
        return site.network


def converged(losses: Sequence[float]) -> bool:
    """Whether the 5-epoch mean of the loss improved by less than 1 % over 10 epochs."""
    window, lag = 5, 10
    if len(losses) < window + lag:
        return False
    recent = statistics.fmean(losses[-window:])
    before = statistics.fmean(losses[-window - lag : -lag])
    return recent >= 0.99 * before


def train_to_convergence(site: Site, sgd: SGD, cap: int) -> list[float]:
    """:func:`train_classifier`, ended once its loss has; the mean loss of every epoch."""
    losses: list[float] = []

    def settled(report: dict[str, float]) -> bool:
        losses.append(report["loss"])
        return converged(losses)

    train_classifier(site, sgd, cap, stop=settled)
    return losses
