"""Labelling on encodings that a test can foresee: each class is a blob of its own."""

from pathlib import Path

import torch

from calibre import rng
from calibre.finished.collection import of_folder
from calibre.finished.labelling import Labelling
from calibre.finished.learner import Learner
from calibre.personal.encoded import Encoded, Expert
from calibre.personal.heads import Samples
from calibre.personal.solve import scaling, standardise
from tests.finished.made_labels import digits


def learner(truth: list[int], d: int = 16, apart: float = 4.0) -> Learner:
    centres = torch.randn(10, d, generator=rng.stream(0, "centres")) * apart
    noise = torch.randn(len(truth), d, generator=rng.stream(1, "noise"))
    return learner_of_features(centres[truth] + noise)


def learner_of_features(features: torch.Tensor) -> Learner:
    by = scaling(features)
    samples = Samples(standardise(features, by), torch.zeros(len(features), dtype=torch.int64))
    expert = Expert("encoder", torch.nn.Identity(), 1.0, by, samples, None)
    return Learner(Encoded([expert], 1, torch.zeros(len(features), dtype=torch.int64)))


def started(folder: Path, **options) -> Labelling:
    """On a folder of digits, whose names begin with their class."""
    held = of_folder(folder)
    truth = [int(Path(image.path).name[0]) for image in held.images]
    return Labelling("clinic", held.images, learner(truth), **options)


def truth_of(labelling: Labelling, index: int) -> str:
    return labelling.name(index)[0]


def label_all(labelling: Labelling, count: int) -> None:
    """As a person would who knows: the image that comes first, by its true class."""
    for _ in range(count):
        index = labelling.state()["queue"][0]["index"]
        labelling.label(index, truth_of(labelling, index), None)
        if labelling.low:
            labelling.refill()


def folder_of_digits(folder: Path, each: int = 12) -> Path:
    digits(folder, {0: each, 1: each, 2: each})
    return folder
