"""Who may take part as what."""

from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from calibre.deploy.admission import check, of_run, registered
from calibre.deploy.keys import make_keys

SITE, SHARE = "anna", (0, 3)


def hello(site=None, share=None):
    return SimpleNamespace(site=site and SimpleNamespace(name=site), share=share)


@pytest.mark.parametrize("names", [None, {7: "anna", 8: "bert"}])
def test_a_site_with_its_own_key_takes_part_among_sites(names):
    assert check(7, hello(site="anna"), shared=False, names=names) is None


def test_a_site_cannot_take_the_name_of_another():
    with pytest.raises(ValueError, match="calls itself 'anna' with the key of 'bert'"):
        check(8, hello(site="anna"), shared=False, names={7: "anna", 8: "bert"})


def test_a_site_whose_key_has_gone_does_not_take_part():
    with pytest.raises(ValueError, match="calls itself 'carl', and its key has gone"):
        check(9, hello(site="carl"), shared=False, names={7: "anna"})


def test_a_share_among_sites_is_refused_and_a_site_among_shares_too():
    with pytest.raises(ValueError, match="but sites take part here"):
        check(7, hello(share=SHARE), shared=False, names={7: "anna"})
    with pytest.raises(ValueError, match="site 'anna' has images of its own"):
        check(7, hello(site=SITE), shared=True, names={7: "anna"})
    check(7, hello(share=SHARE), shared=True, names={7: "anna"})  # shares have no names


@pytest.fixture
def grid(tmp_path):
    make_keys(tmp_path, "localhost", 8000, ["anna", "bert"])

    def pem(name):
        key = load_ssh_public_key((tmp_path / "sites" / f"{name}.pub").read_bytes())
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    nodes = [
        SimpleNamespace(node_id=7, public_key=pem("anna")),
        SimpleNamespace(node_id=8, public_key=pem("bert")),
        SimpleNamespace(node_id=9, public_key=b"another"),
    ]
    return SimpleNamespace(get_nodes=lambda: nodes)


def test_the_coordinator_knows_a_node_by_the_file_of_its_key(grid, tmp_path):
    assert registered(grid, tmp_path) == {7: "anna", 8: "bert"}
    (tmp_path / "sites" / "bert.pub").unlink()
    assert registered(grid, tmp_path) == {7: "anna"}


def test_a_run_takes_the_nodes_that_it_was_submitted_for(grid, tmp_path):
    among_sites = of_run(grid, {"keys": str(tmp_path), "shared": False, "simulation": False})
    among_sites(7, hello(site="anna"))
    with pytest.raises(ValueError, match="with the key of 'bert'"):
        among_sites(8, hello(site="anna"))
    with pytest.raises(ValueError, match="sites take part here"):
        among_sites(8, hello(share=SHARE))
    of_run(grid, {"keys": str(tmp_path), "shared": True})(8, hello(share=SHARE))
    of_run(grid, {"simulation": True})(12345, hello(share=SHARE))
