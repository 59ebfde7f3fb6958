"""Ways of getting a personal model, one file each.

Which one a client's model is made by follows from its method's ``way`` and the run's settings, and
it is decided here and nowhere else.
"""

from collections.abc import Iterable
from typing import Protocol

from calibre.methods.method import Method, ServerState
from calibre.models.network import Head
from calibre.personal.heads import Samples
from calibre.personal.holdout import HeldOut
from calibre.personal.model import Personal, Prepared
from calibre.sections import PersonalSettings


class PersonalWay(Protocol):
    def group(self, clients: int) -> int:
        """How many clients' models are made in one job.

        It must not depend on the number of workers: who is in a group decides how sums are rounded.
        """
        ...

    def make(
        self, method: Method, state: ServerState, clients: Iterable[Prepared]
    ) -> list[Personal]:
        """Models of a group of clients, which are prepared one at a time."""
        ...

    def held_out(
        self, method: Method, state: ServerState, client: Prepared, labelled: Samples, head: Head
    ) -> tuple[HeldOut, str]:
        """Answers to a client's labelled images by models not fitted to them, and how they came.

        ``labelled`` are features and labels of these images, ``head`` is that of the model.
        """
        ...


def way_of(method: Method, settings: PersonalSettings) -> PersonalWay:
    from calibre.personal import finetuned, frozen_head, own, received

    if method.way == "received":
        return received.AsReceived()
    if method.way == "own":
        return own.Own()
    return finetuned.FineTuned() if settings.finetune_encoder else frozen_head.FrozenHead()
