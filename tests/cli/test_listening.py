import pytest

from calibre.cli.listening import is_this_machine


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.8.9.1", True),
     ("0.0.0.0", False), ("192.168.0.7", False), ("::", False), ("clinic.example", False)],
)  # fmt: skip
def test_only_loopback_is_this_machine(host, own):
    assert is_this_machine(host) == own
