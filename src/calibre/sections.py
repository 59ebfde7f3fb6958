"""The sections of an experiment that say what, how long and where; the method's own is its class's.

The defaults are the demonstration: handwritten digits, few labels, about a minute on two cores.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from calibre.settings import Importable, Settings

Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class DataSettings(Settings):
    """Which images. ``calibre-fl data list`` names the known sources."""

    source: Importable = "digits"  # a known name, a folder, an .npz, .parquet or .csv file, or
    # "module:function" of your own
    root: Path | None = None  # where known data sets lie; default $CALIBRE_DATA or the user's cache
    size: Positive | None = None  # resize every image to size x size; default as they are
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2  # where the source has no test part
    image_column: str | None = None  # of a parquet file; default: found by its type
    label_column: str | None = None
    client_column: str | None = None  # who an image belongs to, for federation.scheme = "natural"


class FederationSettings(Settings):
    """Who holds which images (ALGORITHMS D)."""

    scheme: Literal["iid", "quantity", "dirichlet", "natural"] = "dirichlet"
    clients: Positive | None = None  # that train; default 16, or every owner but the novel ones
    novel: Count = 8  # that only personalise, after training
    samples: Positive | None = None  # training images per client; default as many as there are
    test_samples: Positive | None = None  # test images per client; default up to 200, or its share
    classes: Positive = 2  # S of quantity (Q-non-iid): classes per client
    alpha: Annotated[float, Field(gt=0)] = 0.3  # of dirichlet (D-non-iid)
    overlap: Literal["disjoint", "independent"] = "disjoint"  # may two clients hold one image?
    labels: Positive | None = None  # labels kept per class and client; the rest is unlabelled
    unlabelled: Count | None = None  # images of the source's unlabelled part per training client
    score_on: Literal["test", "validation"] = "test"  # validation: a fifth of a client's training
    # images, held out by class; for choosing settings without a look at any test image


class ViewSettings(Settings):
    """Augmentation of the two views; a value left out is chosen for the data set."""

    crop: tuple[Fraction, Fraction] | None = None  # area of the random resized crop
    flip: Fraction | None = None  # probability of a horizontal flip
    jitter: Fraction | None = None  # probability of colour jitter
    brightness: Fraction | None = None
    contrast: Fraction | None = None
    saturation: Fraction | None = None
    hue: Annotated[float, Field(ge=0, le=0.5)] | None = None
    gray: Fraction | None = None  # probability of turning gray
    blur: Fraction | None = None  # probability of a Gaussian blur
    solarize: Fraction | None = None  # probability of solarizing


class NetworkSettings(Settings):
    """What encodes an image."""

    encoder: Importable = (
        "cnn"  # resnet18, resnet10, resnet8, cnn, or "module:function" of your own
    )
    width: Positive = 32  # channels of the first stage (ResNet-18 of the papers: 64)
    stem: Literal["auto", "cifar", "imagenet"] = "auto"  # auto: imagenet from 64 pixels on


class TrainingSettings(Settings):
    """The federated stage."""

    rounds: Count = 30
    clients_per_round: Positive = 8
    epochs: Positive = 3  # local epochs per round
    amp: bool = False  # automatic mixed precision (bfloat16), on cuda


class PersonalSettings(Settings):
    """Each client's own classifier on the frozen encoder."""

    head: Literal["solved", "paper"] = "solved"  # to convergence; or 10 epochs, SGD .05, 32
    features: Literal["auto", "encoder", "pixels"] = "auto"  # what a solved head sees; pixels:
    # their principal components beside the encoding; auto: by cross-validation over all clients
    components: Positive = 60  # of the pixels
    finetune_encoder: bool = False  # a client's own copy of it follows its labels, if that helps
    epochs: Count = 10  # of the paper's head, of fine-tuning, and of methods' own ways
    lr: Annotated[float, Field(gt=0)] = 0.05
    batch: Positive = 32
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    floors: tuple[Literal["majority", "pixels", "untrained", "local"], ...] = (
        "majority", "pixels", "untrained", "local",
    )  # fmt: skip


class PrivacySettings(Settings):
    """Central differential privacy of clients (docs/deployment.md); off unless ``clip`` is set."""

    clip: Annotated[float, Field(gt=0)] | None = None  # C: how far a client may move the model
    noise: Annotated[float, Field(ge=0)] = 1.0  # z: standard deviation of the noise, in units of C
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5


class EngineSettings(Settings):
    """Where and how safely it runs, not what is computed (a GPU may round differently)."""

    workers: Count | None = None  # processes of one thread each; 0: this process; default: cores
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    quorum: Fraction = 0.5  # of a round's clients that must succeed
    checkpoint_every: Positive = 1  # rounds
    keep: Positive = 2  # checkpoints
    runtime: Literal["embedded", "flower-sim", "flower"] = "embedded"  # here, or through Flower:
    sites: Positive | None = None  # nodes to simulate (default: cores), or to wait for (default: 2)
    deadline: Annotated[float, Field(gt=0)] | None = None  # seconds a site has for its job
    transfer: Literal["exact", "half"] = "exact"  # half: float16 on the wire, which rounds
