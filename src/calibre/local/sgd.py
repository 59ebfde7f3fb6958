"""The one local training loop. Every method trains its clients through it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from calibre.errors import UserError
from calibre.local.batches import balanced_batches
from calibre.local.descent import Descent, Kind
from calibre.local.site import Site
from calibre.settings import Settings

ADAMW = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.01}  # where nothing else is said
HIGHEST_ADAMW_RATE = 0.02


class SGD(Settings):
    """Stochastic gradient descent; the optimizer is made anew for every client and round.

    AdamW (Loshchilov and Hutter, ICLR 2019, arXiv:1711.05101) is its other kind. Chosen without a
    rate, it takes its own: a rate of plain SGD is some fifty times too high for it.
    """

    kind: Kind = "sgd"
    lr: Annotated[float, Field(gt=0)] = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # AdamW's beta_1
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999  # of AdamW alone
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    batch: Annotated[int, Field(ge=2)] = 64
    schedule: Literal["constant", "cosine"] = "cosine"  # over the global epochs of the whole run
    warmup: Annotated[int, Field(ge=0)] = 0  # global epochs in which the rate first rises

    def changed_by(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        other = self.kind == "sgd" and changes.get("kind") == "adamw"
        return {**self.model_dump(), **(ADAMW if other else {}), **changes}

    @model_validator(mode="after")
    def _small_steps(self) -> "SGD":
        if self.kind == "adamw" and self.lr > HIGHEST_ADAMW_RATE:
            raise UserError(
                f"method.sgd.lr = {self.lr:g} with method.sgd.kind = 'adamw': each step would move "
                f"every weight by about {self.lr:g}; {ADAMW['lr']:g} is usual, "
                f"{HIGHEST_ADAMW_RATE:g} the highest"
            )
        return self

    def rate(self, epoch: int, epochs: int) -> float:
        """The learning rate in global epoch ``epoch`` of ``epochs``.

        It rises in even steps to ``lr``, which it has from epoch ``warmup`` on; there the cosine
        begins.
        """
        if epoch < self.warmup:
            return self.lr * (epoch + 1) / (self.warmup + 1)
        if self.schedule == "constant" or epochs <= self.warmup:
            return self.lr
        done = (epoch - self.warmup) / (epochs - self.warmup)
        return self.lr * (1 + math.cos(math.pi * min(done, 1))) / 2

    def descent(self, parameters: list[nn.Parameter]) -> Descent:
        return Descent(
            self.kind,
            parameters,
            momentum=self.momentum,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
        )


@dataclass(frozen=True)
class Batch:
    rows: Tensor  # indices into the site's images
    epoch: int  # of this local training, from 0
    step: int  # likewise
    generator: torch.Generator  # for augmentation


Loss = Callable[[Batch], Mapping[str, Tensor]]


def train(
    site: Site,
    loss: Loss,
    *,
    examples: int,
    epochs: int,
    sgd: SGD,
    parameters: Iterable[nn.Parameter],
    before_step: Callable[[Batch], None] | None = None,
    after_step: Callable[[Batch], None] | None = None,
    stop: Callable[[dict[str, float]], bool] = lambda report: False,
) -> dict[str, float]:
    """Minimise ``loss(batch)["loss"]``; return the mean of every term over the last epoch.

    ``before_step`` may change the gradients (proximal terms, control variates); ``after_step``
    follows the parameters (momentum networks, queues); ``stop`` sees each epoch's mean terms and
    may end the training before its time.
    """
    chosen = [parameter for parameter in parameters if parameter.requires_grad]
    descent = sgd.descent(chosen)
    total_epochs = site.training.rounds * epochs
    report: dict[str, float] = {}
    step = 0
    for epoch in range(epochs):
        rate = sgd.rate(site.round * epochs + epoch, total_epochs)
        seen = 0
        report = {}
        for rows in shuffled_batches(examples, sgd.batch, site.generator("batches", epoch)):
            batch = Batch(rows, epoch, step, site.generator("views", step))
            for parameter in chosen:
                parameter.grad = None
            try:
                with torch.autocast(site.device.type, torch.bfloat16, enabled=site.amp):
                    terms = loss(batch)
                values = _finite(terms)
            except FloatingPointError as error:
                raise FloatingPointError(f"{error} (local epoch {epoch}, step {step})") from None
            terms["loss"].backward()
            if before_step is not None:
                before_step(batch)
            descent.step(rate)
            if after_step is not None:
                after_step(batch)
            for name, value in values.items():
                report[name] = report.get(name, 0.0) + value * len(rows)
            seen += len(rows)
            step += 1
        report = {name: total / seen for name, total in report.items()}
        if stop(report):
            break
    return report


def shuffled_batches(examples: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Every example once, in random order, in batches of equal size give or take one."""
    order = torch.randperm(examples, generator=generator, device=generator.device)
    yield from order.split(balanced_batches(examples, batch))


def _finite(terms: Mapping[str, Tensor]) -> dict[str, float]:
    values = torch.stack([term.detach().float() for term in terms.values()]).tolist()
    for name, value in zip(terms, values, strict=True):
        if not math.isfinite(value):
            raise FloatingPointError(
                f"{name} became {value}: training diverged; a lower learning rate usually helps"
            )
    return dict(zip(terms, values, strict=True))
