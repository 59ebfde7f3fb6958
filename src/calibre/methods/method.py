"""The contract of a federated method, with the rules that most methods share."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from torch import nn

from calibre.local.site import Site
from calibre.models.network import Problem
from calibre.settings import Settings
from calibre.tensors import Tensors, WeightedMean, take

Personalization = Literal["head", "none", "native"]


@dataclass(frozen=True)
class ServerState:
    """All that the server knows after ``round`` rounds, by group: {"model": ..., ...}."""

    round: int
    groups: dict[str, Tensors]

    @property
    def model(self) -> Tensors:
        return self.groups["model"]

    def next(self, **groups: Tensors) -> "ServerState":
        """The state after one more round, with the given groups renewed."""
        return replace(self, round=self.round + 1, groups={**self.groups, **groups})


@dataclass(frozen=True)
class Update:
    """What one client returns from one round."""

    client: int
    samples: int
    weight: float  # unnormalised, in the mean over clients
    shared: dict[str, Tensors]  # leaves the client, by group
    personal: Tensors | None = None  # never leaves the client
    report: dict[str, float] = field(default_factory=dict)  # loss terms, divergence, monitors


class Method(Settings):
    """A method is a frozen set of hyper-parameters and these pure functions on states.

    The rules given here are FedAvg's; a method restates only what its paper changes. How a client
    gets its personal model is said by :meth:`personalization`:

    - ``head``: a linear head trained on the frozen encoder. It starts from the network's own head
      where there is one, else from a fresh one.
    - ``none``: the network as received.
    - ``native``: whatever :meth:`personalize` does to the network.

    In all three the network holds the common start, overlaid by the server's model, overlaid by
    what the client kept; a client that never trained starts from the former two, unless the method
    says otherwise by :meth:`newcomer`.
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    federated: ClassVar[bool] = True  # False: there is no federation, only personalisation
    one_mean: ClassVar[bool] = True  # False: the server needs more of updates than their mean
    name: str = ""  # how experiments call it; a class of your own goes by its module and name

    @property
    def label(self) -> str:
        """How results call this method."""
        return self.title

    def personalization(self) -> Personalization:
        return "head"

    def build(self, problem: Problem) -> nn.Module:
        """The network that a worker keeps; its part ``encoder`` is what personal heads stand on."""
        raise NotImplementedError

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        """The parts of the network that travel."""
        raise NotImplementedError

    def init(self, network: nn.Module) -> ServerState:
        return ServerState(0, {"model": take(network, self.shared_parts(network))})

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        """Train at one client, starting from the server's state and what the client kept."""
        raise NotImplementedError

    def expected_update(self, server: ServerState) -> dict[str, Tensors]:
        """What ``Update.shared`` must look like: an update of other names or shapes is refused."""
        return server.groups

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        """The server's next state; ``updates`` is a stream in client order, read once."""
        mean = WeightedMean()
        for update in updates:
            mean.add(update.shared["model"], update.weight)
        return server.next(model=mean.result())

    def newcomer(self, server: ServerState, site: Site) -> Tensors | None:
        """What a client that never trained has in place of what it would have kept."""
        return None

    def personalize(self, server: ServerState, personal: Tensors | None, site: Site) -> nn.Module:
        """The client's own model: images in, logits out; only for ``native`` methods.

        ``site.network`` is loaded as described above.
        """
        raise NotImplementedError
