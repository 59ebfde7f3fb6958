from contextlib import contextmanager

import pytest

from calibre.pages.server import Server
from calibre.pages.watch import Watched
from calibre.report.live import LiveRun
from tests.pages.calls import ask
from tests.report.made_run import make_run
from tests.report.test_live import beginning


@contextmanager
def watched(folder):
    with Server(Watched(LiveRun(folder)).routes, port=0).in_background() as running:
        yield running


def test_the_state_is_told_as_it_is_now(tmp_path):
    folder = beginning(tmp_path / "run", 6)
    with watched(folder) as server:
        status, _, said = ask(server, path="/state")
        assert (status, said["round"]) == (200, 6)
        status, _, said = ask(server, path="/report")
        assert status == 404
        assert "before the run has ended" in said["error"]
        make_run(folder, 4, 2, rounds=6)
        _, _, said = ask(server, path="/state")
        assert said["finished"]


def test_the_report_of_a_run_that_ended_may_run_its_own_scripts_only(tmp_path):
    with watched(make_run(tmp_path / "run", 4, 2)) as server:
        status, headers, text = ask(server, path="/report")
        assert status == 200
        assert "Mean and fairness" in text
        assert "script-src 'sha256-" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]


def test_damage_is_told_in_words(tmp_path):
    folder = make_run(tmp_path / "run", 4, 2)
    (folder / "metrics.json").write_text("{")
    with watched(folder) as server:
        status, _, said = ask(server, path="/report")
        assert status == 422
        assert "metrics.json is damaged" in said["error"]


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_other_sites_learn_nothing(tmp_path, headers):
    with watched(beginning(tmp_path / "run", 6)) as server:
        status, _, said = ask(server, path="/state", **headers)
        assert status in (400, 403, 421)
        assert "rounds" not in said
