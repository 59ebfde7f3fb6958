"""Every client's personal model, scored on the client's own test images."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre import rng
from calibre.experiment import PersonalSettings
from calibre.local.features import encode
from calibre.local.sgd import SGD, Batch, train
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState
from calibre.models.network import Classifier
from calibre.personal.heads import Head, Samples, accuracy, fresh_head, train_heads
from calibre.tensors import Tensors, belongs, take


@dataclass(frozen=True)
class TestSet:
    images: Tensor  # uint8 [n, H, W, C]
    labels: Tensor  # int64 [n]


@dataclass(frozen=True)
class Personal:
    """A client's personal model: its own tensors and how well it does."""

    client: int
    accuracy: float
    tensors: Tensors  # only what is the client's own; the rest is the global model


Prepared = tuple[Site, Tensors | None, TestSet]  # a client, what it kept, its test images


def personalize(
    method: Method,
    state: ServerState,
    clients: Iterable[Prepared],
    settings: PersonalSettings,
    classes: int,
) -> list[Personal]:
    """By the method's own rule (see :class:`Method`); ``clients`` are prepared one at a time."""
    if method.personalization() == "head" and not settings.finetune_encoder:
        return _frozen_heads(state, clients, settings, classes)
    models = []
    for client in clients:
        site = client[0]
        with rng.isolated(site.seed, "personal", site.round, site.client):
            models.append(_whole_network(method, state, client, settings, classes))
    return models


def _frozen_heads(
    state: ServerState, clients: Iterable[Prepared], settings: PersonalSettings, classes: int
) -> list[Personal]:
    """All heads of the group in one batched optimisation, on features computed once."""
    ids: list[int] = []
    starts: list[Head] = []
    train_samples: list[Samples] = []
    test_samples: list[Samples] = []
    seed = 0
    for site, kept, test in clients:
        site.load(state.groups.get("model"), kept)
        encoder = site.network.get_submodule("encoder")
        features = encode(encoder, site.images[: site.labelled], site.normalization)
        ids.append(site.client)
        seed = site.seed
        starts.append(first_head(site, classes, features.shape[1]))
        train_samples.append(Samples(features, site.labels[: site.labelled]))
        test_features = encode(encoder, test.images, site.normalization)
        test_samples.append(Samples(test_features, test.labels))
    heads = train_heads(ids, train_samples, starts, settings, seed)
    scores = accuracy(heads, test_samples).tolist()
    return [
        Personal(client, score, {"head.weight": weight, "head.bias": bias})
        for client, score, weight, bias in zip(ids, scores, *heads, strict=True)
    ]


def first_head(site: Site, classes: int, features: int) -> Head:
    """The network's own head where it has one (global or kept by the client), else a fresh one."""
    head = getattr(site.network, "head", None)
    if isinstance(head, nn.Linear):
        return Head(head.weight.detach().clone(), head.bias.detach().clone())
    fresh = fresh_head(site.seed, site.client, classes, features)
    return Head(fresh.weight.to(site.device), fresh.bias.to(site.device))


def _whole_network(
    method: Method, state: ServerState, client: Prepared, settings: PersonalSettings, classes: int
) -> Personal:
    site, kept, test = client
    site.load(state.groups.get("model"), kept)
    network = site.network
    own = {name: t for name, t in (kept or {}).items() if belongs(name, ("encoder", "head"))}
    if method.personalization() == "native":
        network = method.personalize(state, kept, site)
        own = take(network)
    elif method.personalization() == "head":
        network = _finetuned(site, settings, classes)
        own = take(network)
    predicted = encode(network, test.images, site.normalization).argmax(dim=1)
    correct = int((predicted == test.labels).sum())
    return Personal(site.client, correct / len(test.labels), own)


def _finetuned(site: Site, settings: PersonalSettings, classes: int) -> Classifier:
    """Encoder and head trained together, batch norm included: a habit of published code.

    Never the default: it changes the encoder that the method is judged by (ALGORITHMS A.2 #18).
    """
    encoder = site.network.get_submodule("encoder")
    start = first_head(site, classes, encode(encoder, site.images[:1], site.normalization).shape[1])
    head = nn.Linear(start.weight.shape[1], classes, device=site.device)
    with torch.no_grad():
        head.weight.copy_(start.weight)
        head.bias.copy_(start.bias)
    network = Classifier(encoder, head).train(site.labelled > 1)

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
