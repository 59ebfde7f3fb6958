"""A linear head on the frozen encoder, solved: regularised logistic regression to convergence.

Where the server has a head, a client's is shrunk towards it instead of towards zero. How strongly
is chosen by cross-validation (:mod:`calibre.personal.pooling`), unless the encoder has met the
labels. Heads on patches, on pixels and on a second encoder help it
(:mod:`calibre.personal.encoded`). The heads of a group of clients are solved together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre import rng
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState
from calibre.models.fixed import Nothing, Pixels
from calibre.models.network import Classifier, Head
from calibre.personal.class_mix import class_mix, corrected, label_mix
from calibre.personal.cross_validation import curves_of, held_out, logits_without, strengths_for
from calibre.personal.encoded import Encoded, Trained, encode_client, fitted_parts
from calibre.personal.frozen_head import CAUTION, HOW
from calibre.personal.heads import Samples
from calibre.personal.holdout import HeldOut
from calibre.personal.model import (
    Personal,
    Prepared,
    count_right_by_head,
    head_tensors,
    own_encoder,
    part_tensors,
)
from calibre.personal.pooling import Curves, HeadChoice
from calibre.personal.solve import HeadProblem, solve_heads
from calibre.personal.trust import fit_temperature
from calibre.tensors import Tensors, take

TOGETHER = 128  # clients whose heads are solved at once: enough to hide the cost of a call
NUMBERS = 2**25  # of features held at once, about: clients beyond them wait for their turn


class SolvedHead:
    head_alone = True

    def group(self, clients: int) -> int:
        return max(4, min(TOGETHER, -(-clients // 8)))

    def assess(
        self, method: Method, state: ServerState, clients: Iterable[Prepared]
    ) -> dict[int, Curves]:
        told: dict[int, Curves] = {}
        everyone = ((client.site.client, encoded(client.site)) for client in clients)
        for batch in _batches(everyone, lambda one: one[1].numbers):
            ids, seen = zip(*batch, strict=True)
            told |= zip(ids, curves_of(seen), strict=True)
        return told

    def make(
        self,
        method: Method,
        state: ServerState,
        clients: Iterable[Prepared],
        choice: HeadChoice | None,
    ) -> list[Personal]:
        everyone = (_Shown.of(client) for client in clients)
        batches = _batches(everyone, lambda shown: shown.numbers)
        return [model for batch in batches for model in _models(batch, choice)]

    def held_out(
        self, method: Method, state: ServerState, client: Prepared, choice: HeadChoice | None
    ) -> HeldOut:
        seen = encoded(client.site)
        (found,) = held_out([seen], strengths_for([seen], choice, [client.curves]))
        return found

    def how_held_out(self, method: Method, state: ServerState, client: Prepared) -> str:
        return HOW + (CAUTION if method.met_labels(client.site.trains) else "")


class _Shown(NamedTuple):
    """A client's images as features: its site's network is free for the next client."""

    client: int
    seen: Encoded
    tested: Samples  # by all parts, side by side
    unlabelled: Tensor | None  # the same, where they tell how frequent classes are
    own: Tensors  # of the encoder and of further parts
    curves: Curves | None

    @staticmethod
    def of(client: Prepared) -> "_Shown":
        site, kept, test, curves = client
        seen = encoded(site)
        tested = Samples(seen.shown(test.images, site.normalization), test.labels)
        others, told = site.images[site.labelled :], site.labels_by_class
        unlabelled = seen.shown(others, site.normalization) if told and len(others) else None
        own = {**own_encoder(kept), **part_tensors(seen.parts[1:])}
        return _Shown(site.client, seen, tested, unlabelled, own, curves)

    @property
    def numbers(self) -> int:
        others = 0 if self.unlabelled is None else self.unlabelled.numel()
        return self.seen.numbers + self.tested.features.numel() + others


Item = TypeVar("Item")


def _batches(items: Iterable[Item], numbers: Callable[[Item], int]) -> Iterator[list[Item]]:
    """As many at a time as memory holds: it depends on nothing but the clients themselves."""
    batch: list[Item] = []
    held = 0
    for item in items:
        batch.append(item)
        held += numbers(item)
        if held >= NUMBERS:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _models(batch: Sequence[_Shown], choice: HeadChoice | None) -> list[Personal]:
    seen = [shown.seen for shown in batch]
    strengths = strengths_for(seen, choice, [shown.curves for shown in batch])
    heads = solved(seen, strengths)
    mixes = mixes_of(seen, [shown.unlabelled for shown in batch], strengths, heads)
    finals = solved([shown.seen.with_more(shown.tested) for shown in batch], strengths)
    return [
        Personal(
            shown.client,
            count_right_by_head(mix(head), shown.tested),
            len(shown.tested.labels),
            {**shown.own, **head_tensors(mix(head))},
            final=mix(final),
        )
        for shown, mix, head, final in zip(batch, mixes, heads, finals, strict=True)
    ]


def encoded(site: Site) -> Encoded:
    """A client's images by its site's network."""
    trained = trained_parts(site)
    settings, norm = site.personal, site.normalization
    if isinstance(trained[0].encoder, Pixels | Nothing):  # a floor, which is what it is
        settings = settings.model_copy(update={"features": "encoder"})
    return encode_client(
        trained,
        fitted_parts(settings, site.images, norm, site.memory),
        site.images,
        site.labels[: site.labelled],
        norm,
        site.classes,
        rng.stream(site.seed, "folds", site.client),
        site.met_labels,
        site.memory,
    )


def trained_parts(site: Site) -> list[Trained]:
    """The network's encoder with its head; and the second network's, once somebody has trained it.

    Heads are those that many clients or the client itself have trained.
    """
    found = [Trained(site.network.get_submodule("encoder"), _trained_head(site, "head"))]
    second = getattr(site.network, "second", None)
    if isinstance(second, Classifier) and _has_moved(site, "second.encoder"):
        found.append(Trained(second.encoder, _trained_head(site, "second.head")))
    return found


def _has_moved(site: Site, part: str) -> bool:
    """Whether a part of the network differs from the common start: somebody has trained it."""
    tensors = take(site.network.get_submodule(part))
    return any(
        not torch.equal(tensor.cpu(), site.initial[f"{part}.{name}"])
        for name, tensor in tensors.items()
    )


def _trained_head(site: Site, name: str) -> Head | None:
    if f"{name}.weight" not in site.initial:
        return None
    linear = site.network.get_submodule(name)
    if not isinstance(linear, nn.Linear):
        return None
    head = Head.of(linear)
    untouched = torch.equal(head.weight.cpu(), site.initial[f"{name}.weight"])
    return None if untouched and site.round == 0 else head


def solved(group: Sequence[Encoded], strengths: Sequence[Sequence[float]]) -> list[Head]:
    """The experts' heads as one, for each client."""
    by_expert = []
    for e in range(len(group[0].experts)):
        experts = [seen.experts[e] for seen in group]
        problems = [
            HeadProblem(*expert.samples, own[e], expert.prior)
            for expert, own in zip(experts, strengths, strict=True)
        ]
        by_expert.append(experts[0].memory.recall(solve_heads, problems, group[0].classes))
    return [seen.joined(heads) for seen, *heads in zip(group, *by_expert, strict=True)]


def mixes_of(
    group: Sequence[Encoded],
    unlabelled: Sequence[Tensor | None],
    strengths: Sequence[Sequence[float]],
    heads: Sequence[Head],
) -> list[Callable[[Head], Head]]:
    """How to correct heads where labels were drawn by class, and not as classes come.

    A client's ``unlabelled`` images tell how frequent its classes are. Where labels were drawn at
    random, or there are no other images, there are none and a head stays as it is.
    """
    told = [i for i, images in enumerate(unlabelled) if images is not None]
    answers = logits_without([group[i] for i in told], [strengths[i] for i in told])
    mixes: list[Callable[[Head], Head]] = [lambda head: head] * len(group)
    for i, held in zip(told, answers, strict=True):
        images = unlabelled[i]
        assert images is not None
        mixes[i] = _mix_of(group[i], held.float(), F.linear(images, *heads[i]))
    return mixes


def _mix_of(seen: Encoded, held_out: Tensor, unlabelled: Tensor) -> Callable[[Head], Head]:
    """From logits of the labelled images, held out, and of the others."""
    held = seen.fold >= 0
    sure = held_out[held], seen.labels[held]
    temperature = fit_temperature(*sure) if bool(held.any()) else 1.0
    taught = label_mix(seen.labels.cpu(), seen.classes)
    mix = class_mix((unlabelled / temperature).softmax(1).cpu(), taught)
    return partial(corrected, mix=mix, labelled=taught, temperature=temperature)
