"""Local only: every client trains a network of its own on its own labels, from the common start.

What a client has without any federation, as the baselines of the Calibre paper's section V. Its
encoder then gets a head like everybody's.

- Script-Fair: 10 epochs, as many as the other methods' personalisation;
- Script-Convergent: until the loss has settled (see :func:`converged`).

The paper trains "a linear classifier" without saying on what; the authors' code, a whole network.
``model = "linear"`` takes the words literally: a linear classifier on the pixels, as it is after
those epochs.
"""

import statistics
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import nn

from calibre.local.sgd import SGD
from calibre.local.site import Site
from calibre.methods.method import ServerState, Way
from calibre.methods.supervised import Supervised, train_classifier
from calibre.models.fixed import LARGEST_SIDE, Pixels
from calibre.models.network import Classifier, Problem, build_head
from calibre.tensors import Tensors, take

# Without momentum: a few dozen steps are too few for batch norm's statistics to follow weights that
# move fast. Of six rates, 0.1 was the best on validation images of digits.
SHORT_SGD = SGD(lr=0.1, momentum=0, weight_decay=1e-4, batch=32, schedule="constant")


class Local(Supervised):
    title: ClassVar[str] = "local only"
    paper: ClassVar[str] = "Script-Fair and Script-Convergent of the Calibre paper, section V"
    federated: ClassVar[bool] = False
    shares: ClassVar[tuple[str, ...]] = ()

    name: str = "local"
    model: Literal["network", "linear"] = "network"  # linear: of the pixels
    until_converged: bool = False  # Script-Convergent
    cap: Annotated[int, Field(ge=0)] = 200  # most epochs until then
    sgd: SGD = SHORT_SGD

    @property
    def label(self) -> str:
        linear = ", linear" if self.model == "linear" else ""
        return f"{self.title}{linear}{', to convergence' if self.until_converged else ''}"

    @property
    def way(self) -> Way:
        return "own" if self.model == "linear" else "head"

    def build(self, problem: Problem) -> nn.Module:
        if self.model == "network":
            return super().build(problem)
        pixels = Pixels(problem.channels, min(problem.size, LARGEST_SIDE))
        return Classifier(pixels, build_head(problem, pixels.features))

    def newcomer(self, server: ServerState, site: Site) -> Tensors | None:
        """A network of its own, on whose encoder the client's head stands."""
        if self.model == "linear":
            return None
        self._train(site)
        return take(site.network, ("encoder", "head"))

    def personalize(self, server: ServerState, personal: Tensors | None, site: Site) -> nn.Module:
        self._train(site)
        return site.network

    def _train(self, site: Site) -> None:
        if self.until_converged:
            train_to_convergence(site, self.lasting, self.cap)
        else:
            train_classifier(site, self.lasting, site.personal.epochs)


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
