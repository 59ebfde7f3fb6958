"""Encoder and head trained together, batch norm included: a habit of the paper's published code.

Kept to measure what it does to results: it changes the encoder that a method is judged by.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre.local.sgd import SGD, Batch, train
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState
from calibre.models.network import Classifier
from calibre.personal.frozen_head import first_head
from calibre.personal.own import Own, Train
from calibre.tensors import Tensors


def finetune(method: Method, state: ServerState, kept: Tensors | None, site: Site) -> nn.Module:
    start, settings = first_head(site), site.personal
    head = nn.Linear(start.weight.shape[1], site.classes, device=site.device)
    with torch.no_grad():
        head.weight.copy_(start.weight)
        head.bias.copy_(start.bias)
    network = Classifier(site.network.get_submodule("encoder"), head).train(site.labelled > 1)

    def loss(batch: Batch) -> dict[str, Tensor]:
        logits = network(site.plain(site.images[batch.rows]))
        return {"loss": F.cross_entropy(logits.float(), site.labels[batch.rows])}

    train(
        site,
        loss,
        examples=site.labelled,
        epochs=settings.epochs,
        sgd=SGD(
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=0,
            batch=settings.batch,
            schedule="constant",
        ),
        parameters=network.parameters(),
    )
    return network


class AsPublished(Own):
    train: Train = staticmethod(finetune)
