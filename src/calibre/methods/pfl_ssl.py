"""pFL-SSL: a global encoder trained by self-supervision, then a personal head for every client.

The plain design of the Calibre paper, section III-B; with SimCLR it is pFL-SimCLR. FedAvg over the
online networks of the objective; momentum copies and queues never travel.
"""

from typing import ClassVar, Literal, cast

from pydantic import Field
from torch import nn

from calibre.errors import UserError
from calibre.methods.self_supervised import SelfSupervised, build_objective
from calibre.models.network import Problem
from calibre.ssl.objective import AnyObjective, Objective


class PflSsl(SelfSupervised):
    title: ClassVar[str] = "pFL-SSL"
    paper: ClassVar[str] = "Chen, Su and Li, Calibre, section III-B"

    name: str = "pfl-ssl"
    objective: AnyObjective = Field(default="simclr", validate_default=True)
    exchange: Literal["model", "encoder"] = "model"  # encoder: the heads stay with their client

    @property
    def label(self) -> str:
        return f"pFL-{self.objective.title}"

    def build(self, problem: Problem) -> nn.Module:
        return build_objective(self.objective, problem)

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        """Encoder and online heads, or the encoder alone."""
        shared = cast(Objective, network).shared
        if self.exchange == "model":
            return shared
        if "target" in shared:
            raise UserError(
                'method.exchange = "encoder" sends the encoder alone, but target_init = "average" '
                'averages momentum copies: set target_init to "reset" or "local"'
            )
        return ("encoder",)

    def kept_parts(self, network: nn.Module) -> tuple[str, ...]:
        """The objective's own memory, and heads that do not travel."""
        objective = cast(Objective, network)
        travelling = self.shared_parts(network)
        return tuple(p for p in (*objective.shared, *objective.kept) if p not in travelling)
