"""Certificates and keys that other programs accept."""

import ssl
import stat
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from calibre.deploy.keys import make_keys
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
