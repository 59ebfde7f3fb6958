"""The whole configuration of a run: read from TOML, checked once, hashed, saved beside the results.

    [data]          which images                      [method]    what is computed
    [federation]    who holds which of them           [training]  for how long, by whom
    [views]         how they are augmented            [personal]  each client's own classifier
    [network]       what encodes them                 [privacy]   noise that hides each client
                                                      [engine]    where it runs, not what comes out

The defaults are the demonstration: handwritten digits, few labels, about a minute on two cores.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BeforeValidator, Field, SerializeAsAny

from calibre.errors import UserError
from calibre.files import read_toml
from calibre.registry import DATA_SETS, METHODS
from calibre.settings import Importable, Settings, named, validate

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
    """Each client's own classifier on the frozen encoder (the paper: 10 epochs, SGD .05, 32)."""

    epochs: Count = 10
    lr: Annotated[float, Field(gt=0)] = 0.05
    batch: Positive = 32
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    finetune_encoder: bool = False  # true: trained along, the published code's habit (A.2 #18)
    floors: tuple[Literal["untrained", "local"], ...] = ("untrained", "local")


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


class Experiment(Settings):
    """Everything that decides a run's numbers."""

    name: str | None = None  # of the run folder; default from data source and method
    seed: int = 0
    data: DataSettings = DataSettings()
    federation: FederationSettings = FederationSettings()
    views: ViewSettings = ViewSettings()
    network: NetworkSettings = NetworkSettings()
    method: Annotated[
        SerializeAsAny[Settings], BeforeValidator(named("method", METHODS, default="calibre"))
    ] = Field(default="calibre", validate_default=True)
    training: TrainingSettings = TrainingSettings()
    personal: PersonalSettings = PersonalSettings()
    privacy: PrivacySettings = PrivacySettings()
    engine: EngineSettings = EngineSettings()

    @property
    def choice(self) -> list[str]:
        """The method's name, and that of its objective where it has one."""
        chosen = self.method.model_dump(include={"name", "objective"})
        return [chosen["name"], *([chosen["objective"]["name"]] if "objective" in chosen else [])]

    @property
    def folder_name(self) -> str:
        """Unlike for unlike experiments, so that each has a folder of its own."""
        name = self.name or "-".join([Path(self.data.source).stem, *self.choice])
        return f"{name.replace(':', '-')}-{self.hash()[:8]}"

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    def hash(self) -> str:
        """Of all that can change a bit of the result: not of its name, place or engine."""
        values = self.model_dump(mode="json", exclude={"name": True, "engine": True})
        del values["data"]["root"]
        if self.federation.scheme == "auto" and self.data.source in DATA_SETS:
            values["federation"]["scheme"] = "dirichlet"  # what it means there
        if self.privacy.clip is None:  # off: its other settings change nothing
            del values["privacy"]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def read(
    base: "Path | str | Experiment | None" = None, changes: Iterable[str] = (), **sections: Any
) -> Experiment:
    """The experiment of a TOML file, another one, or the demonstration's (None), with changes.

    They are written ``"section.key=value"`` as on the command line, or given as ``sections``,
    where a class or a function of your own may stand for its name.

    >>> import calibre
    >>> experiment = calibre.read_experiment(changes=["method.name=fedrep", "training.rounds=5"])
    >>> experiment.method.label, experiment.training.rounds
    ('FedRep', 5)
    >>> calibre.read_experiment(training={"rounds": 7}, method="fedbabu").method.label
    'FedBABU'
    >>> calibre.read_experiment(experiment, seed=3).method.label
    'FedRep'
    """
    experiment: Experiment = validate(Experiment, _merged(gather(base, changes), sections))
    return experiment


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Tables within tables, the new over the old."""
    merged = dict(old)
    for key, given in new.items():
        held = merged.get(key)
        if isinstance(held, Mapping) and isinstance(given, Mapping):
            # what was set for another method is not meant for this one
            another = given.get("name", held.get("name")) != held.get("name")
            given = dict(given) if another else _merged(held, given)
        merged[key] = given
    return merged


def gather(
    base: "Path | str | Experiment | None" = None, changes: Iterable[str] = ()
) -> dict[str, Any]:
    """The values of an experiment, read but not yet checked."""
    values: dict[str, Any] = {}
    if isinstance(base, Experiment):
        values = base.model_dump()
    elif base is not None:
        values = read_toml(Path(base))
    for change in sorted(changes, key=_order):
        _apply(values, change)
    return values


# what is chosen by name, in the order in which choices are made, and what an absent name means
CHOICES = ("method", "method.name", "method.objective", "method.objective.name")
DEFAULTS = {"method.name": "calibre", "method.objective.name": "simclr"}


def _order(change: str) -> int:
    """Which method, then which objective, then the rest, in whatever order they were typed."""
    key = change.partition("=")[0].strip()
    return CHOICES.index(key) if key in CHOICES else len(CHOICES)


def _apply(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UserError(f"--set {change}: write section.key=value, e.g. --set training.rounds=10")
    for name in path[:-1]:
        inner = values.get(name, {})
        # method = "fedavg" and method = {name = "fedavg"} say the same; so does an objective
        values[name] = dict(inner) if isinstance(inner, Mapping) else {"name": inner}
        values = values[name]
    old = values.get(path[-1])
    value = _parse(text.strip())
    if isinstance(old, Mapping) and isinstance(value, str):
        value = {"name": value}
    if (default := DEFAULTS.get(".".join(path))) and value != (old or default):
        values.clear()  # what was set for another method is not meant for this one
    values[path[-1]] = value


def _parse(text: str) -> Any:
    """A TOML value; a bare word is a string, so that ``--set method.name=fedavg`` just works."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
