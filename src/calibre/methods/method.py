"""The contract of a federated method, with FedAvg's rules as defaults."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import nn

from calibre.errors import UserError
from calibre.local.site import Site
from calibre.models.network import Head, Problem
from calibre.settings import Settings
from calibre.tensors import Tensors, WeightedMean, take

Way = Literal["head", "received", "own"]  # of getting a personal model; calibre.personal has them
IMAGES = "images"  # of a client's report: how many its training looked at, a pair of views as one


@dataclass(frozen=True)
class ServerState:
    """All that the server knows after ``round`` rounds, by group: {"model": ..., ...}."""

    round: int
    groups: dict[str, Tensors]
    clients: int = 1  # that take part in training, whether drawn for a round or not

    @property
    def model(self) -> Tensors:
        return self.groups["model"]

    def next(self, **groups: Tensors) -> "ServerState":
        """The state after one more round, with the given groups renewed."""
        return replace(self, round=self.round + 1, groups={**self.groups, **groups})


@dataclass(frozen=True)
class Number:
    """A number that clients send for their server to compute with: what it may be."""

    low: float = 0.0
    high: float = math.inf  # not reached: what arrives is finite
    unknown: bool = False  # whether a client may not know it, and send NaN

    def accepts(self, value: float) -> bool:
        if math.isnan(value):
            return self.unknown
        return math.isfinite(value) and self.low <= value <= self.high

    def __str__(self) -> str:
        span = f"from {self.low:g}" + (f" to {self.high:g}" if self.high < math.inf else " on")
        return f"a number {span}" + (", or unknown" if self.unknown else "")


@dataclass(frozen=True)
class Update:
    """What one client returns from one round."""

    client: int
    samples: int  # images that it trained on: those with a label, or all
    shared: dict[str, Tensors]  # leaves the client, by group
    numbers: dict[str, float] = field(default_factory=dict)  # leaves too; as Method.numbers says
    personal: Tensors | None = None  # never leaves the client
    report: dict[str, float] = field(default_factory=dict)  # for people: nothing computes with it


class Method(Settings):
    """A method is a frozen set of hyper-parameters and these pure functions on states.

    The rules given here are FedAvg's; a method restates only what its paper changes. Before every
    hook that gets a ``site``, the site's network holds the common start, overlaid by the server's
    model, overlaid by what the client kept (or by what :meth:`newcomer` made in its place). Of a
    network the parts ``encoder`` and ``head`` are known to all; a method may add others.

    How a client gets its personal model is said by ``way``:

    - ``head``: a linear head on the frozen encoder; the server's head, where there is one, is where
      it starts from;
    - ``received``: the network as it is;
    - ``own``: whatever :meth:`personalize` does to the network.
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    federated: ClassVar[bool] = True  # False: there is no federation, only personalisation
    supervised: ClassVar[bool] = True  # it trains on labelled images alone; False: on all
    shares: ClassVar[tuple[str, ...]] = ("encoder", "head")  # parts of the network that travel
    keeps: ClassVar[tuple[str, ...]] = ()  # parts that stay with the client
    name: str = ""  # how experiments call it; a class of your own goes by its module and name

    @property
    def label(self) -> str:
        """How results call this method."""
        return self.title

    @property
    def way(self) -> Way:
        return "head"

    @staticmethod
    def at_rate(lr: float) -> dict[str, Any]:
        """The settings that make it train at a learning rate, for those who try several."""
        return {"sgd": {"lr": lr}}

    @property
    def numbers(self) -> Mapping[str, Number]:
        """What clients send beside tensors; anything else is refused before it is used."""
        return {}

    def build(self, problem: Problem) -> nn.Module:
        """The network that a worker keeps; its part ``encoder`` is what personal heads stand on."""
        raise NotImplementedError

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        return self.shares

    def kept_parts(self, network: nn.Module) -> tuple[str, ...]:
        return self.keeps

    def init(self, network: nn.Module) -> ServerState:
        return ServerState(0, {"model": take(network, self.shared_parts(network))})

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        """One client's round, from the server's state and what the client kept."""
        return self.reply(site, self.train(server, site))

    def train(self, server: ServerState, site: Site) -> dict[str, float]:
        """Train ``site.network`` in place; what to tell people of it."""
        raise NotImplementedError

    def stages(self, rounds: int) -> list[range]:
        """The rounds of a run, in stretches in which one round costs as much as the next."""
        return [range(rounds)]

    def reply(self, site: Site, report: dict[str, float]) -> Update:
        """What the network now holds, sorted into what travels and what stays."""
        kept = self.kept_parts(site.network)
        return Update(
            site.client,
            self.samples(site.labelled, len(site.images)),
            shared={"model": take(site.network, self.shared_parts(site.network))},
            personal=take(site.network, kept) if kept else None,
            report=report,
        )

    def samples(self, labelled: int, images: int) -> int:
        """How many images a client trains on, of all that it has."""
        return labelled if self.supervised else images

    @property
    def uses_labels(self) -> bool:
        """Whether training looks at labels; where it does not, they are hidden from it."""
        return self.supervised

    @property
    def one_mean(self) -> bool:
        """Whether the server needs no more of updates than their mean."""
        return True

    def met_labels(self, trained: bool) -> bool:
        """Whether a client's encoder has seen its labels, if it ``trained`` in the federation."""
        return self.federated and self.uses_labels and trained

    def expected_update(self, server: ServerState) -> dict[str, Tensors]:
        """What ``Update.shared`` must look like: an update of other names or shapes is refused."""
        return server.groups

    def weight(self, update: Update) -> float:
        """Of a client in the server's mean, not normalised."""
        return update.samples

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        """The server's next state; ``updates`` is a stream in client order, read once."""
        mean = WeightedMean()
        for update in updates:
            mean.add(update.shared["model"], self.weight(update))
        return server.next(model=mean.result())

    def newcomer(self, server: ServerState, site: Site) -> Tensors | None:
        """What a client that never trained has in place of what it would have kept."""
        return None

    def personalize(self, server: ServerState, personal: Tensors | None, site: Site) -> nn.Module:
        """The client's own model, images in, logits out; for methods whose ``way`` is their own."""
        raise NotImplementedError

    def classifier(self, network: nn.Module) -> tuple[list[nn.Module], Head]:
        """A personal network as encoders side by side and one linear head: what a bundle holds."""
        head = getattr(network, "head", None)
        if not isinstance(head, nn.Linear):
            raise UserError(
                f"the personal models of {self.label} cannot be bundled: a bundle holds an encoder "
                "and a linear head, and these have no such head"
            )
        return [network.get_submodule("encoder")], Head.of(head)
