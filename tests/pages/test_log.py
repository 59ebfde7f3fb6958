import json

import pytest

from calibre.errors import UserError
from calibre.pages import log
from calibre.pages.log import RequestLog


def test_one_line_each_that_only_the_owner_can_read(tmp_path):
    lines = RequestLog(tmp_path / "l")
    lines(path="/predict", status=200)
    lines(path="other\n", status=404)
    lines.close()
    found = [json.loads(line) for line in (tmp_path / "l").read_text().splitlines()]
    assert found == [{"path": "/predict", "status": 200}, {"path": "other\n", "status": 404}]
    assert (tmp_path / "l").stat().st_mode & 0o777 == 0o600


def test_it_stays_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "LARGEST", 1000)
    monkeypatch.setattr(log, "KEPT", 2)
    lines = RequestLog(tmp_path / "l")
    for number in range(1000):
        lines(number=number)
    lines.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l", "l.1", "l.2"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert '"number":999' in (tmp_path / "l").read_text()


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(UserError, match="cannot write the log"):
        RequestLog(tmp_path / "nowhere" / "l")


def test_a_full_disk_costs_the_line_and_is_told_once(capsys):
    lines = RequestLog("/dev/full")
    lines(number=1)
    lines(number=2)
    assert capsys.readouterr().err.count("No space left on device") == 1
