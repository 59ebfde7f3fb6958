"""What the supervised methods share: cross-entropy on weakly augmented labelled images."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre.errors import UserError
from calibre.local.sgd import SGD, Batch, Loss, train
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState, Way
from calibre.models.network import Problem, build_classifier

SUPERVISED_SGD = SGD(lr=0.02, momentum=0.9, weight_decay=1e-4, batch=32, schedule="constant")


class Supervised(Method):
    """Clients train a classifier, encoder and head, on their labelled images."""

    sgd: SGD = SUPERVISED_SGD

    def build(self, problem: Problem) -> nn.Module:
        return build_classifier(problem)

    def train(self, server: ServerState, site: Site) -> dict[str, float]:
        return train_classifier(site, self.sgd, site.training.epochs)

    @property
    def lasting(self) -> SGD:
        """The same steps after the rounds, when there is no schedule left to follow."""
        return self.sgd.model_copy(update={"schedule": "constant", "warmup": 0})


def refuse_adamw(sgd: SGD, why: str) -> None:
    """For methods whose mathematics is of plain steps along the gradient."""
    if sgd.kind == "adamw":
        raise UserError(
            f"method.sgd.kind = 'adamw': {why}, and AdamW's steps are not along the gradient; "
            "leave it 'sgd'"
        )


class OneModel(Supervised):
    """One model for all: scored as received, or after each client's head was tuned to it (-FT)."""

    finetune: bool = False  # each client first gets a head of its own (the paper's section V)

    @property
    def label(self) -> str:
        return f"{self.title}-FT" if self.finetune else self.title

    @property
    def way(self) -> Way:
        return "head" if self.finetune else "received"


def cross_entropy(site: Site) -> Loss:
    """The loss of ``site.network`` on a weakly augmented batch of labelled images."""

    def loss(batch: Batch) -> dict[str, Tensor]:
        logits = site.network(site.weak_view(batch.rows, batch.generator))
        return {"loss": F.cross_entropy(logits.float(), site.labels[batch.rows])}

    return loss


def train_classifier(
    site: Site,
    sgd: SGD,
    epochs: int,
    before_step: Callable[[Batch], None] | None = None,
    stop: Callable[[dict[str, float]], bool] = lambda report: False,
) -> dict[str, float]:
    """E epochs of SGD on all of ``site.network`` (encoder and head), in place."""
    network = site.network.train(site.labelled > 1)  # batch norm has no statistics of one image
    return train(
        site,
        cross_entropy(site),
        examples=site.labelled,
        epochs=epochs,
        sgd=sgd,
        parameters=network.parameters(),
        before_step=before_step,
        stop=stop,
    )


def pull(
    network: nn.Module, centre: Mapping[str, Tensor], strength: float
) -> Callable[[Batch], None]:
    """A ``before_step`` that adds the gradient of strength/2 |w - centre|^2, w the parameters."""
    pairs = [(w, centre[name].to(w.device)) for name, w in network.named_parameters()]

    @torch.no_grad()
    def add(batch: Batch) -> None:
        for w, at in pairs:
            assert w.grad is not None
            w.grad.add_(w - at, alpha=strength)

    return add
