"""The coordinator's certificates: an authority that sites trust for years, and the server's own.

Only the server's certificate is renewed, each year, by the same authority: what sites were given
stays good.
"""

import datetime
import ipaddress
import re
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as ser
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from calibre.errors import UserError
from calibre.files import write_atomic

AUTHORITY = "Calibre coordinator CA"
AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
HOST = re.compile(r"[0-9A-Za-z._:-]+")


def make_authority(folder: Path) -> None:
    """``ca.crt`` and ``ca.key``."""
    key = ec.generate_private_key(ec.SECP384R1())
    end = _now() + datetime.timedelta(days=AUTHORITY_DAYS)
    certificate = _builder(AUTHORITY, key.public_key(), key.public_key(), end, ca=True)
    _write(folder / "ca", key, certificate.sign(key, hashes.SHA384()))


def certify(folder: Path, host: str) -> datetime.date:
    """``server.crt`` and ``server.key``, by the authority in the same folder; its last day."""
    try:
        ca_key = ser.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except OSError as error:
        raise UserError(f"cannot read the authority: {error}") from None
    except ValueError as error:
        raise UserError(f"ca.key or ca.crt in {folder} is damaged: {error}") from None
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{folder / 'ca.key'} is not the key that was made with ca.crt")
    if ca.not_valid_after_utc <= _now():
        raise UserError(
            f"{folder / 'ca.crt'} ended on {ca.not_valid_after_utc.date()}: make a new folder of "
            "keys, and give every site its new ca.crt"
        )
    key = ec.generate_private_key(ec.SECP384R1())
    end = min(_now() + datetime.timedelta(days=SERVER_DAYS), ca.not_valid_after_utc)
    names = [_alternative(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1", "::1"])]
    certificate = _builder(host, key.public_key(), ca_key.public_key(), end, ca=False)
    certificate = certificate.add_extension(x509.SubjectAlternativeName(names), False)
    _write(folder / "server", key, certificate.sign(ca_key, hashes.SHA384()))
    return end.date()


def last_day(folder: Path) -> datetime.date:
    """Until when the server's certificate is good."""
    file = folder / "server.crt"
    try:
        return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc.date()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the certificate {file}: {error}") from None


def check_host(host: str) -> None:
    """Raise UserError where a certificate cannot be made for a host of this name."""
    try:
        if host.isascii() and not HOST.fullmatch(host):
            raise ValueError("it is neither a name nor an address of a machine")
        _alternative(host)
        _named(host)
    except ValueError as error:
        raise UserError(f"--host {host!r} cannot be in a certificate: {error}") from None


def _builder(
    subject: str,
    key: ec.EllipticCurvePublicKey,
    authority: ec.EllipticCurvePublicKey,
    end: datetime.datetime,
    ca: bool,
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=ca, crl_sign=ca, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(_named(AUTHORITY))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(minutes=5))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), True)
        .add_extension(usage, True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), False)
    )


def _write(stem: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    """The key first: whoever sees the new certificate finds the key that belongs to it."""
    pem = key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.NoEncryption())
    write_atomic(stem.with_name(f"{stem.name}.key"), pem, private=True)
    public = certificate.public_bytes(ser.Encoding.PEM)
    write_atomic(stem.with_name(f"{stem.name}.crt"), public)


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
