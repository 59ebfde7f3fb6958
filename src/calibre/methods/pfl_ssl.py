"""pFL-SSL: a global encoder trained by self-supervision, then a personal head for every client.

The plain design of the Calibre paper, section III-B; with SimCLR it is pFL-SimCLR. FedAvg over the
online networks of the objective; momentum copies and queues never travel.

With ``labels.weight`` above 0 the clients' labels take part in training, by the paper's term l_c
(:mod:`calibre.ssl.labelled`). Its head is shared like the encoder, and of each of its rows the
server takes the mean over those clients that have labels of the row's class; or it is private.
In the run's last ``labels.last_rounds`` rounds l_c is the whole loss: FedAvg on labelled images,
from where self-supervision has brought the encoder. They cost little, for labels are few.

With ``labels.second`` a second network learns in the same rounds, from the same start, from labels
alone: it is FedAvg's, over the clients that have labels. Personal heads stand on both. The two err
on different images, for one has seen all images and the other is free to follow the labels.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar, Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from calibre.errors import UserError
from calibre.local.sgd import Batch, train
from calibre.local.site import Site
from calibre.methods.method import ServerState, Update
from calibre.methods.self_supervised import SelfSupervised, build_objective, held_classes
from calibre.methods.supervised import SUPERVISED_SGD, train_classifier
from calibre.models.network import Problem, build_classifier, build_head, feature_count
from calibre.ssl.labelled import LabelTerm, WithLabels, own_cross_entropy
from calibre.ssl.objective import AnyObjective, Objective
from calibre.tensors import EmptyMeanError, Tensors, WeightedMean, belongs


class PflSsl(SelfSupervised):
    title: ClassVar[str] = "pFL-SSL"
    paper: ClassVar[str] = "Chen, Su and Li, Calibre, section III-B"

    name: str = "pfl-ssl"
    objective: AnyObjective = Field(default="simclr", validate_default=True)
    labels: LabelTerm = LabelTerm()  # beta l_c
    exchange: Literal["model", "encoder"] = "model"  # encoder: the heads stay with their client

    @model_validator(mode="after")
    def _second_travels(self) -> "PflSsl":
        if self.labels.weight and self.labels.second and self.exchange == "encoder":
            raise UserError(
                "method.labels.second trains a second network together, but method.exchange = "
                "'encoder' sends the first encoder alone: set it to 'model'"
            )
        return self

    @property
    def label(self) -> str:
        return f"pFL-{self.objective.title}{self._with_labels}"

    @property
    def _with_labels(self) -> str:
        if self.labels.weight == 0:
            return ""
        return " with labels" + (", two networks" if self.labels.second else "")

    def build(self, problem: Problem) -> nn.Module:
        return self._labelled(build_objective(self.objective, problem), problem)

    def _labelled(self, objective: Objective, problem: Problem) -> Objective:
        """The objective with l_c, where it has a weight."""
        if self.labels.weight == 0:
            return objective
        head = build_head(problem, feature_count(objective.encoder))
        second = build_classifier(problem) if self.labels.second else None
        return WithLabels(objective, head, self.labels, second)

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

    def train(self, server: ServerState, site: Site) -> dict[str, float]:
        report = self._train_first(server, site)
        if not (self.labels.weight and self.labels.second and site.labelled > 1):
            return report
        second = replace(site, network=site.network.get_submodule("second"))
        epochs = site.training.epochs * self.labels.second
        try:
            told = train_classifier(second, SUPERVISED_SGD, epochs)
        except FloatingPointError as error:
            raise FloatingPointError(
                f"the second network diverged, method.labels.second = 0 leaves it out: {error}"
            ) from None
        return {**report, "l_second": told["loss"]}

    def _train_first(self, server: ServerState, site: Site) -> dict[str, float]:
        first, *last = self.stages(site.training.rounds)
        if last and site.round in last[0] and site.labelled > 1:
            return train_on_labels(site)
        training = site.training.model_copy(update={"rounds": len(first)})  # of its own schedules
        return super().train(server, replace(site, training=training))

    def stages(self, rounds: int) -> list[range]:
        """On all images; then on labels alone."""
        last = self.labels.last_rounds if self.labels.weight else 0
        first = max(0, rounds - last)
        return [range(first), range(first, rounds)] if last else [range(rounds)]

    @property
    def uses_labels(self) -> bool:
        return self.labels.weight > 0

    @property
    def _tells_classes(self) -> bool:
        """Whether the server must know whose head has learned which rows, and who has labels."""
        shared = self.labels.head == "shared" and self.exchange == "model"
        return self.labels.weight > 0 and (shared or self.labels.second > 0)

    def reply(self, site: Site, report: dict[str, float]) -> Update:
        update = super().reply(site, report)
        if not self._tells_classes:
            return update
        held = held_classes(site).long().cpu()
        if site.labelled < 2:  # none has trained
            held = torch.zeros_like(held)
        return replace(update, shared={**update.shared, "held": {"classes": held}})

    def expected_update(self, server: ServerState) -> dict[str, Tensors]:
        if not self._tells_classes:
            return server.groups
        bias = server.model["head.bias" if "head.bias" in server.model else "second.head.bias"]
        held = torch.zeros(len(bias), dtype=torch.int64)
        return {**server.groups, "held": {"classes": held}}

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        mean = ModelMean()
        for update in updates:
            mean.add(update, self.weight(update))
        return server.next(model=mean.result(server.model))


def train_on_labels(site: Site) -> dict[str, float]:
    """E epochs of l_c alone, by encoder and head."""
    parts = site.network.train().get_submodule("encoder"), site.network.get_submodule("head")
    network = nn.Sequential(*parts)
    held = held_classes(site)

    def loss(batch: Batch) -> dict[str, Tensor]:
        logits = network(site.weak_view(batch.rows, batch.generator))
        l_c = own_cross_entropy(logits, site.labels[batch.rows], held)
        return {"loss": l_c, "l_c": l_c}

    return train(
        site,
        loss,
        examples=site.labelled,
        epochs=site.training.epochs,
        sgd=SUPERVISED_SGD,
        parameters=network.parameters(),
    )


def is_row(name: str) -> bool:
    """Whether a tensor of the model has a row for each class, learned by those who hold it."""
    return belongs(name, ("head",))


class ModelMean:
    """The weighted mean of models; of each row of a head over those who hold its class.

    A second network's over those who hold any, for it has learned from nobody else; they weigh as
    they do in the first's.
    """

    def __init__(self) -> None:
        self.whole = WeightedMean()
        self.second = WeightedMean()
        self.rows: dict[int, WeightedMean] = {}
        self.told = False  # whether clients say which classes they hold; a noised mean does not

    @property
    def weight(self) -> float:
        return self.whole.weight

    def add(self, update: Update, weight: float) -> None:
        model = update.shared["model"]
        self.whole.add(model, weight)
        if "held" not in update.shared:
            return
        self.told = True
        held = update.shared["held"]["classes"].nonzero()[:, 0]
        for k in held:
            row = {name: tensor[k] for name, tensor in model.items() if is_row(name)}
            self.rows.setdefault(int(k), WeightedMean()).add(row, weight)
        if len(held):
            second = {n: tensor for n, tensor in model.items() if belongs(n, ("second",))}
            self.second.add(second, weight)

    def result(self, before: Tensors) -> Tensors:
        """The new model; what nobody added to stays as it was ``before``."""
        model = self.whole.result()
        if self.told:
            by_labels = {n: t for n, t in before.items() if is_row(n) or belongs(n, ("second",))}
            model |= {name: tensor.clone() for name, tensor in by_labels.items()}
            with suppress(EmptyMeanError):  # nobody who has labels weighs anything
                model |= self.second.result()
            for k, mean in self.rows.items():
                with suppress(EmptyMeanError):
                    for name, row in mean.result().items():
                        model[name][k] = row
        return model
