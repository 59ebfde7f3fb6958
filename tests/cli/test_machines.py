"""What a person types at a site or a coordinator, and what goes wrong, in words."""

import contextlib
import datetime
import json
import subprocess
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import psutil
import pytest
from typer.testing import CliRunner

from calibre.cli import app
from calibre.deploy import launch, superlink
from calibre.deploy.superlink import missed
from calibre.deploy.supernode import share_command, site_command
from calibre.errors import UserError
from calibre.report.events import Warned
from tests.deploy.folders import write_folders, write_site


def calibre(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_site_check_shows_all_that_would_leave(tmp_path):
    write_folders(tmp_path, ["anna"])
    file = write_site(tmp_path, "anna")
    shown = calibre("site", "check", file, "--set", "method.name=fedper", "--json")
    assert shown.exit_code == 0, shown.exception
    content = json.loads(shown.stdout)
    assert set(content["told"]) == {
        "name", "novel", "shape", "classes", "labelled", "test", "unlabelled",
        "total", "squares", "values",
    }  # fmt: skip
    assert [row["part"] for row in content["sent"]] == ["model: encoder"]
    words = calibre("site", "check", file, "--set", "method.name=fedper").stdout
    assert "personal model only" not in words
    assert "model: encoder" in words
    assert "model: head" not in words


def test_a_node_is_started_with_tls_its_own_key_and_its_own_file(tmp_path):
    write_folders(tmp_path, ["anna"])
    calibre("deploy", "keys", tmp_path / "keys", "--site", "anna", "--port", "8123")
    file = write_site(tmp_path, "anna", 8123, keys=tmp_path / "keys")
    command, environment = site_command(file)
    keys = tmp_path / "keys"
    assert command[-5:-1] == [
        "calibre.deploy.node", "localhost:8123", str(keys / "ca.crt"), str(keys / "sites/anna")
    ]  # fmt: skip
    assert json.loads(command[-1]) == {"site": str(file)}
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert (tmp_path / "anna" / "state").stat().st_mode & 0o077 == 0


def test_a_share_is_told_its_part_and_its_place(tmp_path):
    calibre("deploy", "keys", tmp_path / "keys", "--site", "anna")
    keys = tmp_path / "keys"
    command, _ = share_command(
        "1/3", "localhost:1", keys / "ca.crt", keys / "sites" / "anna", tmp_path / "state"
    )
    assert json.loads(command[-1]) == {
        "partition-id": 1, "num-partitions": 3, "state": str(tmp_path / "state")
    }  # fmt: skip


BAD = {
    "both": (["site", "start"], "give the site's file, or --share"),
    "share": (["site", "start", "--share", "3/3"], "write i/n with i from 0"),
    "bare share": (["site", "start", "--share", "0/3"], "--share needs --superlink"),
    "no site": (["site", "check", "nowhere.toml"], "cannot read nowhere.toml"),
    "no keys": (["deploy", "start", "nokeys"], "holds no keys: make them with"),
    "run": (["deploy", "run", "--keys", "nokeys"], "holds no keys: make them with"),
    "renew": (["deploy", "renew", "nokeys"], "holds no keys: make them with"),
    "name": (["deploy", "keys", "nokeys", "--site", "a/b"], "use letters, digits"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_told_in_words_and_leave_nothing_behind(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, message = BAD[case]
    error = calibre(*arguments).exception
    assert isinstance(error, UserError)
    assert message in str(error)
    assert list(tmp_path.iterdir()) == []


NEED_FLOWER = [
    ["deploy", "keys", "keys"], ["deploy", "start", "keys"], ["deploy", "run"],
    ["deploy", "renew", "keys"],
    ["site", "check", "site.toml"], ["site", "start", "site.toml"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", NEED_FLOWER, ids=" ".join)
def test_without_flower_every_command_says_what_to_install(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # as a package that is not there: it is neither found nor imported
    monkeypatch.setitem(sys.modules, "flwr", None)
    error = calibre(*arguments).exception
    assert isinstance(error, UserError)
    assert str(error) == "Flower is not installed: pip install calibre-fl[flower]"
    assert list(tmp_path.iterdir()) == []


def test_a_site_without_connection_or_keys_cannot_start(tmp_path):
    write_folders(tmp_path, ["anna"])
    with pytest.raises(UserError, match=r"has no \[connection\]"):
        site_command(write_site(tmp_path, "anna"))
    with pytest.raises(UserError, match=r"ca.crt is missing: the coordinator makes it"):
        site_command(write_site(tmp_path, "anna", 8000, keys=tmp_path / "keys"))
    with pytest.raises(UserError, match="is missing"):
        share_command("0/2", "localhost:1", tmp_path / "x", tmp_path / "y", tmp_path)


def test_the_events_of_a_run_are_followed_and_an_earlier_attempt_is_not_shown(tmp_path):
    events, outcome = tmp_path / "events.jsonl", tmp_path / "flower.json"
    events.write_text('{"event": "warning", "text": "old"}\n')
    before = launch.identity(events)
    heard = []
    outcome.write_text('{"ended": "stopped", "message": "no quorum"}')
    assert (
        launch.follow(events, before, outcome, lambda: True, heard.append)["message"] == "no quorum"
    )
    assert heard == []
    (tmp_path / "new").write_text('{"event": "warning", "text": "x"}\n{"event": "ro')
    (tmp_path / "new").replace(events)
    launch.follow(events, before, outcome, lambda: True, heard.append)
    assert heard == [Warned(text="x")]  # a line that is being written is not read yet


def test_who_missed_what(tmp_path):
    (tmp_path / "federation.json").write_text('{"sites": ["anna", "bert"]}')
    rows = [
        {"event": "failure", "client": 1, "round": round_, "cause": f"reason {round_}"}
        for round_ in (2, 5)
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert missed(tmp_path) == {"bert": {"rounds": [2, 5], "cause": "reason 5"}}


def test_a_program_and_all_below_it_end_together(tmp_path):
    """Also a grandchild that leads a session of its own, as Flower's do."""
    inner = "import time; time.sleep(100)"
    outer = (
        "import subprocess, sys, time;"
        f"p = subprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session=True);"
        "print(p.pid, flush=True); time.sleep(100)"
    )
    process = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE)
    child = int(process.stdout.readline())
    launch.stop(process)
    assert process.returncode is not None
    end = time.monotonic() + 30
    while running(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not running(child)
    launch.stop(process)  # once more does no harm


def running(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_a_run_before_the_coordinator_was_started_is_told_in_words(tmp_path):
    calibre("deploy", "keys", tmp_path / "keys")
    error = calibre("deploy", "run", "--keys", tmp_path / "keys", "--out", tmp_path / "r").exception
    assert isinstance(error, UserError)
    assert "was never started: calibre-fl deploy start" in str(error)
    assert not (tmp_path / "r").exists()


def test_a_certificate_that_has_ended_or_ends_soon_is_told_of(tmp_path, monkeypatch):
    calibre("deploy", "keys", tmp_path / "keys")
    today, said = datetime.date.today(), []
    monkeypatch.setattr(launch, "running", lambda *_, **__: contextlib.nullcontext(SILENT))
    for days, start in ((-1, "the certificate ended on"), (20, "the SuperLink has ended")):
        monkeypatch.setattr(superlink, "last_day", lambda _, d=days: today + timedelta(days=d))
        with pytest.raises(UserError, match=start):
            superlink.serve(tmp_path / "keys", "127.0.0.1", said.append)
    assert [line.split(":")[0] for line in said] == ["warning"]


SILENT = SimpleNamespace(stdout=[])


def test_words_of_sites_reach_the_screen_without_steering_it(tmp_path):
    events, outcome = tmp_path / "events.jsonl", tmp_path / "flower.json"
    events.write_text(json.dumps({"event": "warning", "text": "\x1b[2Jgone"}) + "\n")
    outcome.write_text(json.dumps({"ended": "stopped", "message": "\x1b]0;title\x07"}))
    heard = []
    ended = launch.follow(events, None, outcome, lambda: True, heard.append)
    assert "\x1b" not in ended["message"] + heard[0].text
    (tmp_path / "log").write_text("\x1b[92mINFO\x1b[0m: a\x07bell\n")
    assert launch.tail(tmp_path / "log") == "INFO: a\N{REPLACEMENT CHARACTER}bell"
