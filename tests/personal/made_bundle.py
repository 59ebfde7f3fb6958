"""Bundles to test with, made in a moment: squares in colours on an untrained encoder."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from calibre import rng
from calibre.data.augment import Normalization
from calibre.local.features import encode
from calibre.models.network import Head, Problem, build_encoder
from calibre.personal.assemble import assemble
from calibre.personal.bundle import Bundle
from calibre.personal.card import Preprocessing
from calibre.personal.heads import Samples
from calibre.personal.holdout import HeldOut, cross_validate
from calibre.personal.making import Making
from calibre.personal.solve import HeadProblem, fold, scaling, solve_heads, standardise
from calibre.sections import NetworkSettings

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 60, 220)}
STRANGER = (120, 120, 40)  # refused for its distance, not for its pixels
SIZE = 12
NETWORK = NetworkSettings(encoder="cnn", width=8)
NORMALIZATION = Normalization((0.3, 0.3, 0.3), (0.25, 0.25, 0.25))


def square(colour, seed: int, size: int = SIZE) -> np.ndarray:
    """A noisy square of a colour on dark ground, uint8 [size, size, 3]."""
    rng = np.random.default_rng([seed, *colour])
    pixels = rng.integers(0, 60, (size, size, 3))
    edge, side = size // 6, 2 * (size // 3)
    pixels[edge : edge + side, edge : edge + side] = colour + rng.integers(-25, 25, (side, side, 3))
    return pixels.clip(0, 255).astype(np.uint8)


def images(per_class: int, first_seed: int = 0):
    """Squares of all colours, and their labels."""
    drawn = [
        (square(colour, first_seed + i), label)
        for label, colour in enumerate(COLOURS.values())
        for i in range(per_class)
    ]
    return np.stack([image for image, _ in drawn]), np.array([label for _, label in drawn])


def fit_head(labelled: Samples, classes: int, strength: float = 1.0) -> tuple[Head, HeldOut]:
    """A solved head, and what such heads say of images held out."""
    by = scaling(labelled.features)
    x = standardise(labelled.features, by)

    def solved(rows: torch.Tensor) -> Head:
        (head,) = solve_heads([HeadProblem(x[rows], labelled.labels[rows], strength)], classes)
        raw = fold(head, by)
        return Head(raw.weight.float(), raw.bias.float())

    def refit(trained):
        for rows in trained:
            yield labelled.features, torch.nn.functional.linear(labelled.features, *solved(rows))

    everything = torch.arange(len(labelled.labels))
    return solved(everything), cross_validate(labelled.labels, refit, rng.stream(0, "folds"))


def making(per_class: int = 12, test: int | None = 10, client: str = "clinic", classes=None,
           parts: int = 1, **changes) -> Making:  # fmt: skip
    problem = Problem(SIZE, 3, 3, NETWORK, seed=0)
    built = [build_encoder(problem).eval() for _ in range(parts)]

    def samples(count: int, first_seed: int) -> Samples:
        pixels, labels = images(count, first_seed)
        parts = [encode(encoder, torch.from_numpy(pixels), NORMALIZATION) for encoder in built]
        return Samples(torch.cat(parts, 1), torch.from_numpy(labels))

    labelled = samples(per_class, 0)
    head, held_out = fit_head(labelled, 3)
    pixels, tested = (torch.from_numpy(images(*of)[0]) for of in ((per_class,), (test or 1, 1000)))
    facts = {
        "client": client,
        "novel": True,
        "method": "untrained",
        "classes": classes or tuple(COLOURS),
        "network": NETWORK,
        "preprocessing": Preprocessing.of((SIZE, SIZE, 3), NORMALIZATION),
        "encoders": built,
        "head": head,
        "labelled": labelled,
        "held_out": held_out,
        "fitted": "each answered by a head that was trained without it",
        "test": samples(test, 1000) if test else None,
        "images": pixels,
        "test_images": tested if test else None,
        "foreign": torch.from_numpy(np.stack([square(STRANGER, i) for i in range(20)])),
        "fairness": {"train": {"clients": 0, "mean": None}, "novel": {"clients": 0, "mean": None}},
        "run": {"seed": 0},
    }
    return Making(**{**facts, **changes})


def make_bundle(**changes) -> Bundle:
    return assemble(making(**changes))


def make_gray_bundle(pixels: np.ndarray) -> Bundle:
    """Of gray images [3 n, SIZE, SIZE, 1]: as many of each class."""
    norm = Normalization((0.3,), (0.25,))
    encoder = build_encoder(Problem(SIZE, 1, 3, NETWORK, seed=0)).eval()
    images = torch.from_numpy(pixels)
    labels = torch.arange(3).repeat_interleave(len(pixels) // 3)
    labelled = Samples(encode(encoder, images, norm), labels)
    head, held_out = fit_head(labelled, 3)
    gray = Preprocessing.of((SIZE, SIZE, 1), norm)
    return make_bundle(
        preprocessing=gray, encoders=[encoder], head=head, labelled=labelled, held_out=held_out,
        images=images, test=None, foreign=None,
    )  # fmt: skip


def write_folder(folder: Path, per_class: int, first_seed: int = 0, size: int = SIZE) -> Path:
    """The same squares as files, one sub-folder per class."""
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            drawn = square(colour, first_seed + i, size)
            Image.fromarray(drawn).save(folder / name / f"{i}.png")
    return folder
