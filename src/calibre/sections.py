"""The sections of an experiment that say what, how long and where; the method's own is its class's.

The defaults are the demonstration: handwritten digits, few labels, about a minute on two cores.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from calibre.errors import UserError
from calibre.settings import Importable, Settings

Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
# methods without a federation that a run may be compared with
FloorName = Literal["majority", "pixels", "untrained", "local"]


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

    @property
    def title(self) -> str:
        """What figures call it: where it lies on this machine is nobody's business elsewhere."""
        return Path(self.source).name or self.source


class FederationSettings(Settings):
    """Who holds which images."""

    # auto: natural where the data says who owns an image, dirichlet where it does not
    scheme: Literal["auto", "iid", "quantity", "dirichlet", "natural"] = "auto"
    clients: Positive | None = None  # that train; default 16, or every owner but the novel ones
    novel: Count = 8  # that only personalise, after training
    samples: Positive | None = None  # training images per client; default as many as there are
    test_samples: Positive | None = None  # test images per client; default up to 200, or its share
    classes: Positive = 2  # S of quantity (Q-non-iid): classes per client
    alpha: Annotated[float, Field(gt=0)] = 0.3  # of dirichlet (D-non-iid)
    overlap: Literal["disjoint", "independent"] = "disjoint"  # may two clients hold one image?
    labels: Positive | None = None  # labels kept per class and client; the rest is unlabelled
    label_count: Positive | None = None  # or: labels kept per client
    label_fraction: Annotated[float, Field(gt=0, le=1)] | None = None  # or: share of its images
    label_draw: Literal["random", "class"] | None = None  # how these are drawn: like the client's
    # own mix (default of a count or a fraction), or evenly by class (default of ``labels``)
    unlabelled: Count | None = None  # images of the source's unlabelled part per training client
    novel_classes: tuple[str, ...] = ()  # that novel clients hold and no other client has seen
    score_on: Literal["test", "validation"] = "test"  # validation: a fifth of a client's training
    # images, held out by class; for choosing settings without a look at any test image

    @property
    def labels_by_class(self) -> bool:
        """Whether a client's labels say nothing of how frequent its classes are."""
        return self.label_draw == "class" or (self.labels is not None and self.label_draw is None)

    @model_validator(mode="after")
    def _novel_classes_are_held(self) -> "FederationSettings":
        if self.novel_classes and not self.novel:
            raise UserError(
                "federation.novel_classes are held by novel clients alone: set federation.novel to "
                "how many there are"
            )
        if self.novel_classes and self.scheme == "natural":
            raise UserError(
                "federation.novel_classes says what made-up clients hold: leave it out where the "
                "data has owners"
            )
        return self

    @model_validator(mode="after")
    def _one_number_of_labels(self) -> "FederationSettings":
        given = [key for key in ("labels", "label_count", "label_fraction") if getattr(self, key)]
        if len(given) > 1:
            raise UserError(f"federation.{given[0]} and federation.{given[1]}: give one of them")
        if self.label_draw and not given:
            raise UserError(
                "federation.label_draw says how some labels are drawn: say how many with "
                "federation.label_count, label_fraction or labels"
            )
        return self


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
    extra: Annotated[int, Field(ge=0, le=16)] = 0  # small views beside the two, of each image
    extra_size: Positive | None = None  # pixels of their height; default: half the image's
    extra_crop: tuple[Fraction, Fraction] | None = None  # default: as crop


class WeightsSettings(Settings):
    """The tensors that an encoder starts from."""

    name: str  # a safetensors file, or the folder of a run, of a bundle or of a model of timm's
    # of the tensors' file: filled in when the experiment is read, checked whenever they are loaded
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None


class NormalizationSettings(Settings):
    """(value / 255 - mean) / std, by channel."""

    mean: Annotated[tuple[float, ...], Field(min_length=1, max_length=3)]
    std: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1, max_length=3)]

    @model_validator(mode="after")
    def _paired(self) -> "NormalizationSettings":
        if len(self.mean) != len(self.std) or len(self.mean) == 2:
            raise UserError(
                f"network.normalization has {len(self.mean)} means and {len(self.std)} standard "
                "deviations: give 1 of each for gray images, 3 for colour"
            )
        return self


IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def _weights(value: Any) -> Any:
    return {"name": os.fspath(value)} if isinstance(value, str | os.PathLike) else value


def _normalization(value: Any) -> Any:
    named = value.get("name") if isinstance(value, Mapping) else value
    if isinstance(named, str):
        if named != "imagenet":
            raise UserError(
                f'network.normalization = {named!r}: write "imagenet", or the values as '
                "{mean = [...], std = [...]}"
            )
        return IMAGENET
    return value


class NetworkSettings(Settings):
    """What encodes an image, and where it starts (docs/pretrained.md)."""

    encoder: Importable = "cnn"  # resnet8, 10, 18, 34, 50, vit_tiny, vit_small, vit_base, cnn,
    # "timm:NAME", "torchvision:NAME", or "module:function" of your own
    width: Positive = 32  # channels of the first stage (ResNet-18 of the papers: 64)
    stem: Literal["auto", "cifar", "imagenet"] = "auto"  # auto: imagenet from 64 pixels on
    patch: Positive = 16  # pixels of a side of a ViT's patches
    pooling: Literal["token", "mean"] = "token"  # what a ViT answers: its class token, or the mean
    # of its patches
    weights: Annotated[WeightsSettings | None, BeforeValidator(_weights)] = None  # default: random
    normalization: Annotated[NormalizationSettings | None, BeforeValidator(_normalization)] = None
    # "imagenet", or {mean, std}; default: of the data
    frozen: bool = False  # true: no round trains it, only heads are made


class TrainingSettings(Settings):
    """The federated stage."""

    rounds: Count = 30
    clients_per_round: Positive = 8
    epochs: Positive = 3  # local epochs per round
    amp: bool = False  # automatic mixed precision (bfloat16), on cuda
    ended: tuple[Count, ...] = ()  # the rounds at which this run had ended before it was extended


class PersonalSettings(Settings):
    """Each client's own classifier on the frozen encoder."""

    head: Literal["solved", "paper"] = "solved"  # to convergence; or 10 epochs, SGD .05, 32
    features: Literal["encoder", "pixels", "patches"] = "patches"  # what a solved head sees: the
    # encoding; principal components of the pixels beside it; and patterns of patches beside both
    components: Positive = 60  # of the pixels
    patterns: Positive = 32  # of patches
    finetune_encoder: bool = False  # a client's own copy of it follows its labels, if that helps
    epochs: Count = 10  # of the paper's head, of fine-tuning, and of methods' own ways
    lr: Annotated[float, Field(gt=0)] = 0.05
    batch: Positive = 32
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    floors: tuple[FloorName, ...] = get_args(FloorName)  # methods to compare with
    clients: Literal["all", "novel"] = "all"  # who gets a model; novel: nobody else's label counts
    labels: Positive | None = None  # of a client's labels, how many make its model; default all
    label_choice: Literal["random", "class", "typical"] = "random"  # which: drawn, evenly by class,
    # or those that the encoder finds most typical (docs/running.md)

    @model_validator(mode="after")
    def _says_how_many(self) -> "PersonalSettings":
        if self.label_choice != "random" and self.labels is None:
            raise UserError(
                "personal.label_choice says which labels are used: say how many with "
                "personal.labels"
            )
        return self


class PrivacySettings(Settings):
    """Central differential privacy of clients (docs/protection.md); off unless ``clip`` is set."""

    clip: Annotated[float, Field(gt=0)] | None = None  # C: how far a client may move the model
    noise: Annotated[float, Field(ge=0)] = 1.0  # z: standard deviation of the noise, in units of C
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5


class RobustSettings(Settings):
    """Limits to what one client can do to the model (docs/protection.md); off by default."""

    bound: Annotated[float, Field(ge=1)] | None = None  # times the round's median: how far a
    # client may move the model
    mean: Literal["mean", "trimmed", "median"] = "mean"  # of the clients' models, by coordinate
    trim: Annotated[float, Field(gt=0, lt=0.5)] = 0.1  # part of the values that "trimmed" leaves
    # out at either end, at least one

    @property
    def on(self) -> bool:
        return self.bound is not None or self.mean != "mean"


class EngineSettings(Settings):
    """Where and how safely it runs, not what is computed (a GPU may round differently)."""

    workers: Count | None = None  # processes of one thread each; 0: this process; default: cores
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    quorum: Fraction = 0.5  # of a round's clients that must succeed
    checkpoint_every: Positive = 1  # rounds
    keep: Positive = 2  # checkpoints
    runtime: Literal["embedded", "flower-sim", "flower"] = "embedded"  # here, or through Flower:
    sites: Positive | None = None  # nodes to simulate (default: cores), or to wait for (default: 2)
    deadline: Annotated[float, Field(gt=0)] | None = None  # seconds a site, or a worker,
    # has for one client's job; default: a site has no limit, a worker 20 times the slowest so far
    transfer: Literal["exact", "half"] = "exact"  # half: float16 on the wire, which rounds


class ParentSettings(Settings):
    """The run that a run goes on from, with what it had learned: ``calibre-fl update`` says so."""

    experiment: str  # hash
    federation: str  # hash
    round: Count  # after which it goes on
    folder: str = ""  # what it was called; counts for nothing
