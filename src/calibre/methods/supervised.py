"""What the supervised methods share: cross-entropy on weakly augmented labelled images."""

import torch.nn.functional as F
from torch import Tensor

from calibre.local.sgd import SGD, Batch, train
from calibre.local.site import Site

SUPERVISED_SGD = SGD(lr=0.02, momentum=0.9, weight_decay=1e-4, batch=32, schedule="constant")


def train_classifier(site: Site, sgd: SGD, epochs: int) -> dict[str, float]:
    """E epochs of SGD on all of ``site.network`` (encoder and head), in place."""
    network = site.network.train(site.labelled > 1)  # batch norm has no statistics of one image

    def loss(batch: Batch) -> dict[str, Tensor]:
        logits = network(site.weak_view(batch.rows, batch.generator))
        return {"loss": F.cross_entropy(logits.float(), site.labels[batch.rows])}

    return train(
        site,
        loss,
        examples=site.labelled,
        epochs=epochs,
        sgd=sgd,
        parameters=network.parameters(),
    )
