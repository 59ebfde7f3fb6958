"""FedAvg among whose clients one does harm; the others' models are noted down."""

from typing import ClassVar, Literal

from calibre.methods.fedavg import FedAvg
from calibre.methods.method import Update

HARMFUL = 1
SENT: dict[tuple[int, int], dict] = {}  # (round, client) -> its true model; of this process


class Hostile(FedAvg):
    title: ClassVar[str] = "Hostile"
    name: str = "tests.engine.hostile:Hostile"
    harm: Literal["none", "million", "replay", "huge"] = "none"

    def local_update(self, server, personal, site) -> Update:
        update = super().local_update(server, personal, site)
        model = update.shared["model"]
        SENT[server.round + 1, site.client] = {n: t.clone() for n, t in model.items()}
        if site.client != HARMFUL:
            return update
        for name, tensor in model.items():
            if not tensor.is_floating_point():
                continue
            if self.harm == "million":
                start = server.model[name]
                model[name] = start + 1e6 * (tensor - start)
            elif self.harm == "replay" and server.round:
                model[name] = SENT[server.round, HARMFUL][name]
            elif self.harm == "huge":
                model[name] = tensor.fill_(1e30)
        return update


def outside(model, round_: int) -> int:
    """How many numbers of a model lie outside of what honest clients sent in a round."""
    honest = [t for (r, client), t in SENT.items() if r == round_ and client != HARMFUL]
    count = 0
    for name, tensor in model.items():
        if tensor.is_floating_point():
            values = [each[name].double() for each in honest]
            low, high = values[0], values[0]
            for value in values:
                low, high = low.minimum(value), high.maximum(value)
            slack = 1e-6 * (1 + high.abs().maximum(low.abs()))
            count += int(((tensor < low - slack) | (tensor > high + slack)).sum())
    return count
