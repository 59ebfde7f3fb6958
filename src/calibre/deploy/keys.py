"""A federation's keys: made once by the coordinator, one private key per site.

    keys/ca.crt               whom everybody trusts; goes to every site
    keys/ca.key               signs the server's certificate; stays with the coordinator
    keys/server.crt .key      the coordinator's own, renewed every year
    keys/coordinator.toml     by which name and port sites reach the coordinator
    keys/sites/NAME, .pub     one pair per site: the private half goes to the site, by a safe way
    keys/flwr                 what Flower's programs need to submit a run: for the coordinator alone

A site may make its own pair (``ssh-keygen -t ecdsa -b 384``) and send the public half alone. The
name of the file is the name of the site: only who holds the key may call itself so.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tomli_w
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as ser
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import Field

from calibre.deploy import certificates
from calibre.errors import UserError
from calibre.files import private_folder, read_toml, write_atomic
from calibre.settings import Settings, validate
from calibre.wording import quoted

OTHER_KIND = "it is a key of another kind: make one with  ssh-keygen -t ecdsa -b 384"


class Coordinator(Settings):
    """Where sites reach the coordinator."""

    host: Annotated[str, Field(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535)]


def coordinator(keys: Path) -> Coordinator:
    """Whom these keys were made for."""
    file = keys / "coordinator.toml"
    if not file.exists():
        raise UserError(
            f"{keys} holds no keys: make them with  calibre-fl deploy keys {quoted(keys)} "
            "--site NAME ..."
        )
    where: Coordinator = validate(Coordinator, read_toml(file))
    return where


def make_keys(folder: Path, host: str, port: int, sites: Sequence[str]) -> list[Path]:
    """Whatever is not there yet; the site keys that were made."""
    for name in sites:
        if not name or name.startswith(".") or not all(c.isalnum() or c in "-_." for c in name):
            raise UserError(f"site '{name}': use letters, digits, '-', '_' and '.' in its name")
    certificates.check_host(host)
    private_folder(folder)
    private_folder(folder / "sites")
    try:
        if not (folder / "ca.crt").exists():
            certificates.make_authority(folder)
        if not (folder / "coordinator.toml").exists():
            where = Coordinator(host=host, port=port)
            write_atomic(folder / "coordinator.toml", tomli_w.dumps(where.model_dump()))
        if not (folder / "server.crt").exists():
            certificates.certify(folder, coordinator(folder).host)
        missing = [name for name in sites if not (folder / "sites" / name).exists()]
        return [_make_pair(folder / "sites" / name) for name in missing]
    except OSError as error:
        raise UserError(f"cannot write keys into {folder}: {error.strerror}") from None


def renew(folder: Path) -> datetime.date:
    """A new certificate of the server by the same authority: sites need nothing new. Its last day.

    A coordinator that runs takes it up by itself.
    """
    host = coordinator(folder).host
    try:
        return certificates.certify(folder, host)
    except OSError as error:
        raise UserError(f"cannot write keys into {folder}: {error.strerror}") from None


def public_keys(folder: Path) -> tuple[dict[bytes, str], list[str]]:
    """Whose keys lie in ``sites``: names by key, as Flower writes keys; and what is wrong there."""
    names: dict[bytes, str] = {}
    problems = []
    for file in sorted((folder / "sites").glob("*.pub")):
        try:
            key = _public(file)
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            problems.append(f"{file} is no key of a site: {error}")
            continue
        if key in names:
            problems.append(f"{file} holds the key of {names[key]}: every site needs its own")
        else:
            names[key] = file.stem
    return names, problems


def private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """A site's own key."""
    try:
        key = ser.load_ssh_private_key(file.read_bytes(), None)
    except OSError as error:
        raise UserError(f"cannot read the key {file}: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"{file} is no private key that can be used here: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{file}: {OTHER_KIND}")
    return key


def _make_pair(file: Path) -> Path:
    key = ec.generate_private_key(ec.SECP384R1())
    pem = key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.OpenSSH, ser.NoEncryption())
    write_atomic(file, pem, private=True)
    public = key.public_key().public_bytes(ser.Encoding.OpenSSH, ser.PublicFormat.OpenSSH)
    write_atomic(file.with_name(f"{file.name}.pub"), public + f" {file.name}\n".encode())
    return file


def _public(file: Path) -> bytes:
    key = ser.load_ssh_public_key(file.read_bytes())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(OTHER_KIND)
    return key.public_bytes(ser.Encoding.PEM, ser.PublicFormat.SubjectPublicKeyInfo)
