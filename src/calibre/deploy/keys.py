"""Certificates and keys for a federation: made once by the coordinator, one private key per site.

    keys/ca.crt               whom everybody trusts; goes to every site
    keys/ca.key               signs the server's certificate; stays with the coordinator
    keys/server.crt .key      the coordinator's own
    keys/sites/NAME, .pub     one pair per site: the private half goes to the site, by a safe way
    keys/flwr/config.toml     where the coordinator is, for Flower's programs

A site may make its own pair (``ssh-keygen -t ecdsa -b 384``) and send the public half alone.
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from calibre.deploy.launch import write_connection
from calibre.errors import UserError

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

DAYS = 365


def make_keys(folder: Path, host: str, port: int, sites: Sequence[str]) -> list[Path]:
    """Whatever is not there yet; the site keys that were made."""
    from cryptography.hazmat.primitives import serialization as ser
    from cryptography.hazmat.primitives.asymmetric import ec

    for name in sites:
        if not name or name.startswith(".") or not all(c.isalnum() or c in "-_." for c in name):
            raise UserError(f"site '{name}': use letters, digits, '-', '_' and '.' in its name")
    try:
        (folder / "sites").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot use {folder} for keys: {error.strerror}") from None
    if not (folder / "ca.crt").exists():
        _make_certificates(folder, host)
    write_connection(folder / "flwr", f"{host}:{port}", folder / "ca.crt")
    made = []
    for name in sites:
        file = folder / "sites" / name
        if file.exists():
            continue
        key = ec.generate_private_key(ec.SECP384R1())
        _private(
            file, key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.OpenSSH, ser.NoEncryption())
        )
        public = key.public_key().public_bytes(ser.Encoding.OpenSSH, ser.PublicFormat.OpenSSH)
        file.with_name(f"{name}.pub").write_bytes(public + f" {name}\n".encode())
        made.append(file)
    return made


def _make_certificates(folder: Path, host: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as ser
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def builder(subject: str, key: ec.EllipticCurvePublicKey, ca: bool) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=ca, crl_sign=ca, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("Calibre coordinator CA"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=DAYS))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), True)
            .add_extension(usage, True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False
            )
        )

    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca = builder("Calibre coordinator CA", ca_key.public_key(), ca=True)
    names = x509.SubjectAlternativeName([_alternative(n) for n in _names(host)])
    server = builder(host, server_key.public_key(), ca=False).add_extension(names, False)
    for name, key in (("ca.key", ca_key), ("server.key", server_key)):
        pem = key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.NoEncryption())
        _private(folder / name, pem)
    for name, certificate in (("server.crt", server), ("ca.crt", ca)):
        signed = certificate.sign(ca_key, hashes.SHA384())
        (folder / name).write_bytes(signed.public_bytes(ser.Encoding.PEM))


def _names(host: str) -> list[str]:
    return list(dict.fromkeys([host, "localhost", "127.0.0.1", "::1"]))


def _alternative(name: str) -> "GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private(file: Path, content: bytes) -> None:
    """A file that only its owner may read, from its first byte on."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(content)
