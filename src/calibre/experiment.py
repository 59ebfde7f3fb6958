"""The whole configuration of a run: read from TOML, checked once, hashed, saved beside the results.

    [data]          which images                      [method]    what is computed
    [federation]    who holds which of them           [training]  for how long, by whom
    [views]         how they are augmented            [personal]  each client's own classifier
    [network]       what encodes them                 [privacy]   noise that hides each client
    [robust]        limits to what one can do         [engine]    where it runs, not what comes out

The defaults are the demonstration: handwritten digits, few labels, about a minute on two cores.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from calibre.errors import UserError
from calibre.methods.method import Method
from calibre.models.start import completed
from calibre.registry import DATA_SETS, DEFAULT_METHOD, METHODS, PRESETS
from calibre.sections import (
    DataSettings,
    EngineSettings,
    FederationSettings,
    NetworkSettings,
    ParentSettings,
    PersonalSettings,
    PrivacySettings,
    RobustSettings,
    TrainingSettings,
    ViewSettings,
)
from calibre.settings import Settings, named, validate
from calibre.tables import changed, drop, gather, overlay

# What the same experiment comes to: raised by the commit that changes it on purpose. Runs of unlike
# versions are not compared in published tables (docs/evidence.md).
RESULTS = 3
LONGEST_NAME = 100
LETTERS = re.compile(r"[\w \-+.,=:()\[\]@#%]*")


def _one_name(name: str) -> str:
    """It becomes part of a folder's name, here and at sites, and must not lead out of theirs."""
    if not name or len(name) > LONGEST_NAME or name.startswith(".") or not LETTERS.fullmatch(name):
        raise UserError(
            f"name = {name[:200]!r}: it becomes the name of a folder, so it takes at most "
            f"{LONGEST_NAME} letters, digits, spaces and any of _ - + . , = : ( ) [ ] @ # %, and "
            "does not begin with a dot; say where to write with --out"
        )
    return name


FolderName = Annotated[str, AfterValidator(_one_name)]


# Settings that came later. With these values a run is what it was before there were any, and its
# folder keeps its name.
LATER = {
    "method.sgd.kind": "sgd", "method.sgd.beta2": 0.999, "method.sgd.warmup": 0,
    "method.prototypes.h": "projection", "method.model": "network", "method.labels.second": 0,
    "views.extra": 0, "views.extra_size": None, "views.extra_crop": None,
}  # fmt: skip


class Experiment(Settings):
    """Everything that decides a run's numbers."""

    name: FolderName | None = None  # of the run folder; default from data source and method
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    data: DataSettings = DataSettings()
    federation: FederationSettings = FederationSettings()
    views: ViewSettings = ViewSettings()
    network: NetworkSettings = NetworkSettings()
    method: Annotated[
        SerializeAsAny[Method],
        BeforeValidator(named("method", Method, METHODS, DEFAULT_METHOD, PRESETS)),
    ] = Field(default=DEFAULT_METHOD, validate_default=True)
    training: TrainingSettings = TrainingSettings()
    personal: PersonalSettings = PersonalSettings()
    privacy: PrivacySettings = PrivacySettings()
    robust: RobustSettings = RobustSettings()
    engine: EngineSettings = EngineSettings()
    parent: ParentSettings | None = None  # of a run that goes on from another one

    @model_validator(mode="before")
    @classmethod
    def _started(cls, values: Any) -> Any:
        return completed(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _stays_frozen(self) -> "Experiment":
        if self.network.frozen and self.training.rounds:
            raise UserError(
                f"network.frozen and training.rounds = {self.training.rounds}: a frozen encoder "
                "trains for no round; set training.rounds = 0"
            )
        if self.network.frozen and self.personal.finetune_encoder:
            raise UserError("network.frozen and personal.finetune_encoder: leave one of them out")
        return self

    @model_validator(mode="after")
    def _has_use_for_small_views(self) -> "Experiment":
        objective = getattr(self.method, "objective", None)
        if self.views.extra and not getattr(objective, "multi_crop", False):
            trained_by = f"objective '{objective.name}'" if objective else f"'{self.method.name}'"
            raise UserError(
                f"views.extra = {self.views.extra}: {trained_by} has no use for small views; "
                "set it to 0"
            )
        return self

    @model_validator(mode="after")
    def _has_novel_clients(self) -> "Experiment":
        if self.personal.clients == "novel" and not self.federation.novel:
            raise UserError(
                'personal.clients = "novel": there are none; set federation.novel to how many'
            )
        return self

    @property
    def choice(self) -> list[str]:
        """The method's name, and that of its objective where it has one."""
        chosen = self.method.model_dump(include={"name", "objective"})
        return [chosen["name"], *([chosen["objective"]["name"]] if "objective" in chosen else [])]

    @property
    def folder_name(self) -> str:
        """Unlike for unlike experiments, so that each has a folder of its own."""
        name = self.name or "-".join([Path(self.data.source).stem, *self.choice])[:LONGEST_NAME]
        safe = "".join(letter if LETTERS.fullmatch(letter) else "_" for letter in name)
        return f"{safe.replace(':', '-')}-{self.hash()[:8]}"

    def extended(self, rounds: int) -> "Experiment":
        """The same for more rounds. Not what a run of so many from the start would give: learning
        rates that follow a schedule have been down already."""
        if rounds <= self.training.rounds:
            raise UserError(
                f"training.rounds = {rounds}: the run has {self.training.rounds} already; give more"
            )
        ended = (*self.training.ended, self.training.rounds)
        training = self.training.model_copy(update={"rounds": rounds, "ended": ended})
        return self.model_copy(update={"training": training})

    def extends(self, other: "Experiment") -> bool:
        """Whether this is the other, extended."""
        more = self.training.rounds > other.training.rounds
        return more and other.extended(self.training.rounds).hash() == self.hash()

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    def hash(self) -> str:
        """Of all that can change a bit of the result: not of its name, place or engine."""
        values = self.model_dump(mode="json", exclude={"name": True, "engine": True})
        del values["data"]["root"]
        if self.federation.scheme == "auto" and self.data.source in DATA_SETS:
            values["federation"]["scheme"] = "dirichlet"  # what it means there
        if self.network.weights is not None:  # what is in the file counts, not where it lies
            del values["network"]["weights"]["name"]
        if not self.training.ended:
            del values["training"]["ended"]
        if self.parent is None:
            del values["parent"]
        else:
            del values["parent"]["folder"]
        if self.privacy.clip is None:  # off: its other settings change nothing
            del values["privacy"]
        if not self.robust.on:
            del values["robust"]
        if not self.federation.novel_classes:
            del values["federation"]["novel_classes"]
        if self.personal.clients == "all":
            del values["personal"]["clients"]
        if self.personal.labels is None:
            del values["personal"]["labels"], values["personal"]["label_choice"]
        for key, value in LATER.items():
            drop(values, key, value)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    def training_hash(self) -> str:
        """Of what decides the course of training, however long: runs that differ in their rounds or
        their personal models alone can go on from the same state. Data has a hash of its own."""
        return self.model_copy(
            update={
                "data": DataSettings(),
                "training": self.training.model_copy(update={"rounds": 0, "ended": ()}),
                "personal": PersonalSettings(),
            }
        ).hash()


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
    if isinstance(base, Experiment):
        values = changed(base.model_dump(), changes)
    else:
        values = gather(base, changes)
    experiment: Experiment = validate(Experiment, overlay(values, sections))
    return experiment


def method_named(name: str) -> Method:
    """A method with its defaults, such as a floor."""
    return Experiment(method={"name": name}).method
