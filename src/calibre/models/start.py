"""What an experiment's ``network.weights`` brings along: its network, and its preprocessing.

    a safetensors file      the encoder that its tensors are those of
    a run's folder          the encoder that it trained, as it is built and as it saw images
    a bundle's folder       the same, of a personal model
    a folder of timm's      model.safetensors and config.json, as they are published

All of it is filled in once, when the experiment is read; what the user set stays. From then on the
settings are whole, and only the tensors are read from the file.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibre.errors import UserError
from calibre.files import read_toml, unsealed
from calibre.models.layouts import recognised, two_encoders
from calibre.models.tensorfile import located, sha256_of, shapes_of
from calibre.run_files import CARD, MODEL, RunFiles
from calibre.settings import Settings

LARGEST = 2**28  # bytes of a file beside the tensors
BUILT_BY = ("encoder", "width", "stem", "patch", "pooling")  # settings that decide a network
FROZEN: dict[str, dict[str, Any]] = {
    "training": {"rounds": 0},
    "personal": {"finetune_encoder": False},
}


@dataclass(frozen=True)
class Brought:
    """What comes with tensors, as settings; empty or None where nothing is said of it."""

    network: Mapping[str, Any] = field(default_factory=dict)
    normalization: Mapping[str, Any] | None = None  # mean and std
    size: int | None = None  # pixels of a side


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment's values with what ``network.weights`` and ``network.frozen`` mean by them."""
    network = _table(values.get("network", {}))
    weights = _table(network.get("weights"))
    name = weights.get("name", network.get("weights"))
    if isinstance(name, str | os.PathLike) and weights.get("sha256") is None:
        network, size = _with_weights(network, os.fspath(name))
        values = {**values, "network": network}
        if size is not None:
            values = _by_default(values, {"data": {"size": size}})
    if network.get("frozen") is True:
        values = _by_default(values, FROZEN)
    return dict(values)


def _with_weights(network: dict[str, Any], name: str) -> tuple[dict[str, Any], int | None]:
    """The settings of a network that starts from a file or folder, and the size of its images."""
    file = located(name)
    shapes = shapes_of(file)
    if two_encoders(shapes):
        raise UserError(
            f"{file} stands on two encoders: start from the folder of the run that it comes from"
        )
    sha256 = sha256_of(file)
    place = Path(os.path.expanduser(name))
    brought = _brought(file, sha256) if place.is_dir() else Brought()
    network = {**recognised(shapes), **brought.network, **network}
    if "encoder" not in network:
        known = ", ".join(sorted(shapes)[:3])
        raise UserError(
            f"{file} holds no encoder that Calibre has (it has tensors such as {known}): say which "
            'it is, network.encoder = "timm:NAME", "torchvision:NAME" or "module:function"'
        )
    # absolute, so that a run can be resumed from any folder
    network["weights"] = {"name": str(place.resolve()), "sha256": sha256}
    if brought.normalization is not None:
        network.setdefault("normalization", brought.normalization)
    return network, brought.size


def _brought(file: Path, sha256: str) -> Brought:
    folder = file.parent
    if (folder / CARD).is_file():
        return _by_bundle(folder, sha256)
    if (files := RunFiles(folder)).begun:
        return _by_run(files)
    if (folder / "config.json").is_file():
        return _by_timm(folder)
    return Brought()


def _by_run(files: RunFiles) -> Brought:
    """A run keeps its settings and its preprocessing in files of their own."""
    network = _table(read_toml(files.experiment).get("network", {}))
    noted = _read_json(files.preprocessing)
    return Brought(_built_by(network), *_preprocessing(noted))


def _by_bundle(folder: Path, sha256: str) -> Brought:
    card = _read_json(folder / CARD)
    if _table(card.get("files")).get(MODEL) != sha256:
        raise UserError(f"{folder / MODEL} is damaged or was changed: it is not its card's")
    network = _built_by(_table(card.get("network")))
    return Brought(network, *_preprocessing(_table(card.get("preprocessing"))))


def _by_timm(folder: Path) -> Brought:
    """timm's config.json names the architecture, and how the images were made ready for it."""
    config = _read_json(folder / "config.json")
    trained = _table(config.get("pretrained_cfg"))
    match trained.get("input_size"):
        case [_, height, width]:
            trained |= {"height": height, "width": width}
    name = config.get("architecture")
    ours = not isinstance(name, str) or recognised(shapes_of(folder / MODEL))
    return Brought({} if ours else {"encoder": f"timm:{name}"}, *_preprocessing(trained))


def _built_by(network: Mapping[str, Any]) -> dict[str, Any]:
    """Without "auto", which the tensors decide: images may have another size now."""
    return {key: network[key] for key in BUILT_BY if network.get(key, "auto") != "auto"}


def _preprocessing(noted: Mapping[str, Any]) -> tuple[dict[str, Any] | None, int | None]:
    """Normalisation and size; images that are not square are left at theirs."""
    norm = {key: noted[key] for key in ("mean", "std") if key in noted}
    side = noted.get("height")
    return norm or None, side if side == noted.get("width") else None


def _by_default(
    values: Mapping[str, Any], defaults: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Sections with what they leave out; nonsense is left for its own check to find."""
    given = {name: values.get(name, {}) for name in defaults}
    filled = {
        name: {**defaults[name], **_table(section)}
        for name, section in given.items()
        if isinstance(section, Mapping | Settings)
    }
    return {**values, **filled}


def _table(value: Any) -> dict[str, Any]:
    """What was set, as a plain table; an empty one where it is none."""
    if isinstance(value, Settings):
        return value.model_dump(exclude_unset=True)
    return dict(value) if isinstance(value, Mapping) else {}


def _read_json(path: Path) -> dict[str, Any]:
    _check_size(path)
    try:
        return unsealed(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _check_size(path: Path) -> None:
    if path.is_file() and path.stat().st_size > LARGEST:
        raise UserError(f"{path} has more than {LARGEST:,} bytes: that is no run, bundle or model")
