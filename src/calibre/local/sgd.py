"""The one local training loop. Every method trains its clients through it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim.sgd import sgd as step_of_sgd

from calibre.local.batches import balanced_batches
from calibre.local.site import Site
from calibre.settings import Settings


class SGD(Settings):
    """Stochastic gradient descent; the optimizer is made anew for every client and round."""

    lr: Annotated[float, Field(gt=0)] = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    batch: Annotated[int, Field(ge=2)] = 64
    schedule: Literal["constant", "cosine"] = "cosine"  # over the global epochs of the whole run

    def rate(self, epoch: int, epochs: int) -> float:
        """The learning rate in global epoch ``epoch`` of ``epochs``."""
        if self.schedule == "constant" or epochs <= 0:
            return self.lr
        return self.lr * (1 + math.cos(math.pi * min(epoch / epochs, 1))) / 2


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
    velocities: list[Tensor | None] = [None] * len(chosen)
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
            _descend(chosen, velocities, rate, sgd)
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


@torch.no_grad()
def _descend(
    parameters: list[nn.Parameter], velocities: list[Tensor | None], rate: float, sgd: SGD
) -> None:
    """A step of ``torch.optim.SGD``, to the bit. Its class would load torch's compiler, a second of
    every process; and on Flower every message has a process of its own."""
    gradients = {i: part.grad for i, part in enumerate(parameters) if part.grad is not None}
    moving = [velocities[i] for i in gradients]  # made by torch in the first step
    step_of_sgd(
        [parameters[i] for i in gradients],
        list(gradients.values()),
        moving,
        foreach=True,
        weight_decay=sgd.weight_decay,
        momentum=sgd.momentum,
        lr=rate,
        dampening=0,
        nesterov=False,
        maximize=False,
    )
    for i, velocity in zip(gradients, moving, strict=True):
        velocities[i] = velocity


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
