"""A tour of Calibre from Python: ``python examples/tour.py``, less than a minute on two cores.

It runs an experiment on drawings made here, with a network, a method and an objective that the
library does not know, compares methods, and takes a personal model away. Everything lands in the
folder ``tour``.

Worker processes import this file to find what it defines. So definitions come first, and what the
script does stands under ``if __name__ == "__main__"``.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import numpy as np
from barlow_twins import BarlowTwins  # the objective of docs/extending.md, a file beside this one
from torch import nn

import calibre
from calibre.methods.method import ServerState, Update
from calibre.methods.supervised import Supervised
from calibre.tensors import step_towards


def stripes() -> dict[str, np.ndarray]:
    """A data set: three kinds of stripes, as six clients see them, some of them darker."""
    draw = np.random.default_rng(0)
    count, size = 900, 12
    labels = draw.integers(0, 3, count)
    clients = draw.integers(0, 6, count)
    y, x = np.mgrid[:size, :size]
    waves = np.stack([np.sin(x), np.sin(y), np.sin(x + y)])[labels]
    light = 60 + 20 * clients[:, None, None]
    noise = draw.normal(0, 30, (count, size, size))
    images = np.clip(light + 40 * waves + noise, 0, 255).astype(np.uint8)
    return {"images": images, "labels": np.array(["upright", "lying", "slanted"])[labels],
            "clients": clients}  # fmt: skip


def two_layers(channels: int, width: int, stem: str) -> nn.Module:
    """A network: any module that turns images into vectors; how long they are is found out."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 4 * width, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class Cautious(Supervised):
    """A method: FedAvg whose server goes only a part of the way to the clients' mean."""

    title: ClassVar[str] = "Cautious FedAvg"
    paper: ClassVar[str] = "none: an example"
    eta: float = 0.5

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        mean = super().aggregate(server, updates)
        return server.next(model=step_towards(server.model, mean.model, self.eta))


def main() -> None:
    here = Path("tour")

    # An experiment is a value: checked when it is made, hashed, saved beside its results.
    experiment = calibre.read_experiment(
        data={"source": stripes},
        federation={"scheme": "natural", "novel": 2, "labels": 10},
        network={"encoder": two_layers, "width": 8},
        training={"rounds": 4, "clients_per_round": 4, "epochs": 2},
        method={"name": "calibre", "sgd": {"batch": 32}},
        personal={"floors": ["local"]},  # what a client reaches by itself
    )
    first = calibre.run(experiment, here / "calibre")
    print(f"{first.label}: {first.metrics.train.mean:.1%} over training clients,")
    print(f"{first.metrics.novel.mean:.1%} over novel ones, who only got the encoder")

    # The same federation with a method and with an objective of our own.
    cautious = calibre.read_experiment(experiment, method=Cautious(eta=0.7))
    twins = calibre.read_experiment(experiment, method={"objective": BarlowTwins})
    others = [calibre.run(cautious, here / "cautious"), calibre.run(twins, here / "twins")]
    print(calibre.compare([first, *others]))

    # Evidence: pictures, and a page with everything on it.
    calibre.draw("mean-variance", [first, *others]).savefig(here / "mean-variance.png")
    print("all about it:", calibre.write_report([first, *others], here / "report.html"))

    # Whom does it serve worst? Take that client's personal model away, and use it.
    worst = min(first.clients, key=lambda client: client.accuracy)
    calibre.make_bundle(first, worst.id).save(here / "bundle")
    model = calibre.load(here / "bundle", own_code=True)  # its network is code of our own
    images, labels = stripes()["images"][:3], stripes()["labels"][:3]
    for answer, truth in zip(model.predict(images), labels, strict=True):
        print(f"client {worst.name} says {answer.answer} ({answer.probability:.0%}): it is {truth}")


if __name__ == "__main__":
    main()
