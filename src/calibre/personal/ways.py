"""Ways of getting a personal model, one file each.

Which one a client's model is made by follows from its method's ``way`` and the run's settings, and
it is decided here and nowhere else.
"""

from collections.abc import Iterable
from typing import Protocol

from calibre.methods.method import Method, ServerState
from calibre.personal.holdout import HeldOut
from calibre.personal.model import Personal, Prepared
from calibre.personal.pooling import Curves, HeadChoice
from calibre.sections import PersonalSettings


class PersonalWay(Protocol):
    head_alone: bool  # it fits a head, and leaves the encoder as training made it

    def group(self, clients: int) -> int:
        """How many clients' models are made in one job.

        It must not depend on the number of workers: who is in a group decides how sums are rounded.
        """
        ...

    def assess(
        self, method: Method, state: ServerState, clients: Iterable[Prepared]
    ) -> dict[int, Curves] | None:
        """What each client's cross-validation says of what can be chosen; None: nothing can."""
        ...

    def make(
        self,
        method: Method,
        state: ServerState,
        clients: Iterable[Prepared],
        choice: HeadChoice | None,
    ) -> list[Personal]:
        """Models of a group of clients, which are prepared one at a time.

        ``choice`` is what all clients of the run go by; None: each goes by itself.
        """
        ...

    def held_out(
        self, method: Method, state: ServerState, client: Prepared, choice: HeadChoice | None
    ) -> HeldOut:
        """Answers to a client's labelled images by models not fitted to them."""
        ...

    def how_held_out(self, method: Method, state: ServerState, client: Prepared) -> str:
        """How these answers come about, or why they cannot be used."""
        ...


def way_of(method: Method, settings: PersonalSettings) -> PersonalWay:
    from calibre.personal import finetuned, frozen_head, own, published, received, solved_head

    if method.way == "received":
        return received.AsReceived()
    if method.way == "own":
        return own.Own()
    if settings.head == "paper":
        return published.AsPublished() if settings.finetune_encoder else frozen_head.FrozenHead()
    return finetuned.FineTuned() if settings.finetune_encoder else solved_head.SolvedHead()
