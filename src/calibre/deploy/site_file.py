"""A site's own file. To read it loads no torch: a node starts at once.

    name = "hospital-a"          # how the others call it: the name of its key
    novel = false                # true: it never trains, it only gets a personal model
    unlabelled = "more-images"   # more images to train on; labels in there are not read
    state = "state"              # what the site keeps: written here, never sent

    [data]                       # as in an experiment: a folder, .npz, .parquet or known name
    source = "images"

    [connection]
    superlink = "coordinator.example.org:8000"
    root_certificates = "keys/ca.crt"
    private_key = "keys/hospital-a"

Paths are relative to the file.
"""

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from calibre.data.formats.known import KNOWN
from calibre.files import read_toml
from calibre.sections import DataSettings
from calibre.settings import Settings, validate


class ConnectionSettings(Settings):
    """How the site reaches the coordinator."""

    superlink: str  # host:port
    root_certificates: Path  # whom the site trusts
    private_key: Path  # by which the coordinator knows the site


class SiteSettings(Settings):
    """A site's own file; nothing in it comes from the coordinator."""

    name: Annotated[  # that of its key's file; it gets onto others' screens
        str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")
    ]
    data: DataSettings
    novel: bool = False
    unlabelled: Path | None = None
    state: Path = Path("state")
    connection: ConnectionSettings | None = None


def read_site(path: Path) -> SiteSettings:
    """The settings of a site's file, with paths made absolute."""
    values = read_toml(path)
    home = path.resolve().parent
    values.setdefault("state", "state")
    for key in ("unlabelled", "state"):
        _anchor(values, key, home)
    if isinstance(data := values.get("data"), dict) and _is_place(data.get("source"), home):
        _anchor(data, "source", home)
    if isinstance(connection := values.get("connection"), dict):
        for key in ("root_certificates", "private_key"):
            _anchor(connection, key, home)
    settings: SiteSettings = validate(SiteSettings, values)
    return settings


def _is_place(source: Any, home: Path) -> bool:
    """Whether it is a file or folder: no known data set, no ``module:function``."""
    name = str(source)
    return name not in KNOWN and (":" not in name or os.path.exists(home / name))


def _anchor(values: dict[str, Any], key: str, home: Path) -> None:
    if isinstance(values.get(key), str):
        values[key] = str(home / os.path.expanduser(values[key]))
