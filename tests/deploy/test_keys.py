"""Certificates and keys that other programs accept."""

import datetime
import ssl
import stat
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from calibre.deploy import certificates
from calibre.deploy.keys import coordinator, make_keys, private_key, public_keys, renew
from calibre.errors import UserError


def test_the_certificate_is_for_the_host_and_signed_by_the_authority(tmp_path):
    make_keys(tmp_path, "fl.example.org", 8000, [])
    authority, server = (
        x509.load_pem_x509_certificate((tmp_path / f"{name}.crt").read_bytes())
        for name in ("ca", "server")
    )
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    ssl.create_default_context().load_verify_locations(tmp_path / "ca.crt")
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
        tmp_path / "server.crt", tmp_path / "server.key"
    )


def test_a_site_gets_a_pair_of_its_own_that_only_its_owner_may_read(tmp_path):
    made = make_keys(tmp_path, "localhost", 8000, ["a", "b"])
    assert [file.name for file in made] == ["a", "b"]
    for file in made:
        private = load_ssh_private_key(file.read_bytes(), None)
        public = load_ssh_public_key(file.with_name(f"{file.name}.pub").read_bytes())
        assert isinstance(private.curve, ec.SECP384R1)
        assert private.public_key().public_numbers() == public.public_numbers()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600


def test_what_is_there_stays(tmp_path):
    make_keys(tmp_path, "localhost", 8000, ["a"])
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    assert [file.name for file in make_keys(tmp_path, "localhost", 8000, ["a", "b"])] == ["b"]
    assert all(file.read_bytes() == content for file, content in before.items())


@pytest.mark.parametrize("name", ["../x", "a b", ".hidden", ""])
def test_a_name_that_is_no_file_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="use letters"):
        make_keys(tmp_path, "localhost", 8000, [name])


@pytest.mark.parametrize(
    "host", ["", "x" * 65, "köln.example", "local\nhost", "*", "a b", "h\x1b[2J"]
)
def test_a_host_that_cannot_be_in_a_certificate_is_refused_before_anything_is_made(tmp_path, host):
    with pytest.raises(UserError, match="cannot be in a certificate"):
        make_keys(tmp_path / "keys", host, 8000, [])
    assert not (tmp_path / "keys").exists()


def test_ssh_keygen_reads_the_keys(tmp_path):
    make_keys(tmp_path, "localhost", 8000, ["a"])
    try:
        shown = subprocess.run(
            ["ssh-keygen", "-y", "-f", tmp_path / "sites" / "a"], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("there is no ssh-keygen here")
    public = (tmp_path / "sites" / "a.pub").read_text()
    assert shown.stdout.split()[:2] == public.split()[:2]


def certificate(file):
    return x509.load_pem_x509_certificate(file.read_bytes())


def test_a_renewed_certificate_is_good_for_those_who_trust_the_old_authority(tmp_path):
    make_keys(tmp_path, "fl.example.org", 8000, ["a"])
    before = {f.name: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    last = renew(tmp_path)
    after = {f.name: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    changed = {name for name in after if before[name] != after[name]}
    assert changed == {"server.crt", "server.key"}
    new = certificate(tmp_path / "server.crt")
    new.verify_directly_issued_by(certificate(tmp_path / "ca.crt"))
    assert new.not_valid_after_utc.date() == last == certificates.last_day(tmp_path)
    names = new.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fl.example.org" in names.get_values_for_type(x509.DNSName)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600


def test_the_authority_outlives_many_certificates_and_none_outlives_it(tmp_path, monkeypatch):
    make_keys(tmp_path, "localhost", 8000, [])
    end = certificate(tmp_path / "ca.crt").not_valid_after_utc
    assert end - certificate(tmp_path / "server.crt").not_valid_after_utc > datetime.timedelta(3000)
    monkeypatch.setattr(certificates, "_now", lambda: end - datetime.timedelta(days=5))
    assert renew(tmp_path) == end.date()
    monkeypatch.setattr(certificates, "_now", lambda: end + datetime.timedelta(days=5))
    with pytest.raises(UserError, match=r"ca\.crt ended on .* give every site its new ca\.crt"):
        renew(tmp_path)


def test_what_cannot_be_renewed_is_said_in_words(tmp_path):
    with pytest.raises(UserError, match="holds no keys"):
        renew(tmp_path)
    make_keys(tmp_path, "localhost", 8000, [])
    (tmp_path / "ca.key").write_text("nothing")
    with pytest.raises(UserError, match="is damaged"):
        renew(tmp_path)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(UserError, match="cannot read the authority"):
        renew(tmp_path)


def test_the_folders_are_for_their_owner_alone_also_those_that_were_there(tmp_path):
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o755)
    make_keys(keys, "localhost", 8000, ["a"])
    for folder in (keys, keys / "sites"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_first_host_and_port_stay(tmp_path):
    make_keys(tmp_path, "one.example.org", 8000, [])
    make_keys(tmp_path, "two.example.org", 9000, ["a"])
    where = coordinator(tmp_path)
    assert (where.host, where.port) == ("one.example.org", 8000)


def test_keys_of_other_kinds_and_copies_are_left_out_and_named(tmp_path):
    make_keys(tmp_path, "localhost", 8000, ["a", "b"])
    sites = tmp_path / "sites"
    (sites / "c.pub").write_text((sites / "a.pub").read_text())
    (sites / "d.pub").write_text("nothing")
    (sites / "e.pub").mkdir()
    names, problems = public_keys(tmp_path)
    assert sorted(names.values()) == ["a", "b"]
    assert [name in problem for name, problem in zip("cde", problems, strict=True)] == [True] * 3
    pem = (
        private_key(sites / "a")
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    assert names[pem] == "a"


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot read the key"), ("nothing", "is no private key")]
)
def test_a_private_key_that_is_none_is_said_in_words(tmp_path, content, message):
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=message):
        private_key(file)
