"""The comparison with peers: everybody has the same network, and the table says what is known."""

import ast
from pathlib import Path

import pytest
import torch

from benchmarks import peers
from benchmarks.peer_drivers import calibre_fl, job
from calibre.models.network import Problem, build_classifier

DRIVERS = Path(job.__file__).parent
OURS = {"calibre_fl.py"}


def test_peers_train_the_network_that_calibre_trains(tmp_path, monkeypatch):
    monkeypatch.setenv(job.FOLDER, str(tmp_path))
    ours = build_classifier(Problem(32, 3, 10, calibre_fl.experiment("fedavg").network, 0))
    theirs = job.Network()
    for mine, other in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        other.copy_(mine)
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(theirs(images), ours(images))


@pytest.mark.parametrize("file", sorted(DRIVERS.glob("*.py")), ids=lambda file: file.stem)
def test_no_driver_of_a_peer_needs_calibre(file):
    imported = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert any(name.split(".")[0] == "calibre" for name in imported) == (file.name in OURS)


def test_every_peer_has_a_driver():
    assert all((DRIVERS / f"{peer.driver}.py").exists() for peer in peers.PEERS)


def row(**changes):
    return peers.Row(peers.Peer("Somebody", "some", "body", "2", ()), "1.0", **changes)


def test_a_ratio_is_of_what_was_measured_side_by_side():
    measured = row(bare=[1.0, 9.0, 2.0], rounds=[2.0, 10.0, 3.0], startup=[3, 1, 2], mebibytes=[7])
    line = peers.table([measured.summary()]).splitlines()[-1]
    assert line == "| Somebody | 1.0 | 2 | 0.67 | 2.0 s | 7 MiB |"


def test_what_could_not_be_measured_says_why():
    line = peers.table([row(reason="no such wheel").summary()]).splitlines()[-1]
    assert line == "| Somebody | 1.0 | 2 | not measured: no such wheel | | |"


def test_a_failure_is_told_by_its_last_line():
    code = "import sys; sys.exit('first\\nthe reason\\n')"
    with pytest.raises(peers.FailedError, match="the reason"):
        peers._call([peers.sys.executable, "-c", code])
