"""What a person types at a site or a coordinator, and what goes wrong, in words."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibre.cli import app
from calibre.deploy import launch
from calibre.deploy.superlink import missed
from calibre.deploy.supernode import share_command, site_command
from calibre.errors import UserError
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
    assert "head" not in words


def test_a_node_is_started_with_tls_its_own_key_and_its_own_file(tmp_path):
    write_folders(tmp_path, ["anna"])
    calibre("deploy", "keys", tmp_path / "keys", "--site", "anna", "--port", "8123")
    file = write_site(tmp_path, "anna", 8123, keys=tmp_path / "keys")
    command, environment = site_command(file)
    assert command[1:7] == [
        "--superlink", "localhost:8123", "--root-certificates", str(tmp_path / "keys/ca.crt"),
        "--auth-supernode-private-key", str(tmp_path / "keys/sites/anna"),
    ]  # fmt: skip
    assert "--insecure" not in command
    assert command[-1] == f'site="{file}"'
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"


BAD = {
    "both": (["site", "start"], "give the site's file, or --share"),
    "share": (["site", "start", "--share", "3/3"], "write i/n with i from 0"),
    "bare share": (["site", "start", "--share", "0/3"], "--share needs --superlink"),
    "no site": (["site", "check", "nowhere.toml"], "cannot read nowhere.toml"),
    "no keys": (["deploy", "start", "nokeys"], "holds no keys: make them with"),
    "run": (["deploy", "run", "--keys", "nokeys"], "holds no keys: make them with"),
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
    events.write_text('{"event": "old"}\n')
    before = launch.identity(events)
    heard = []
    outcome.write_text('{"ended": "stopped", "message": "no quorum"}')
    assert (
        launch.follow(events, before, outcome, lambda: True, heard.append)["message"] == "no quorum"
    )
    assert heard == []
    (tmp_path / "new").write_text('{"event": "start"}\n{"event": "ro')
    (tmp_path / "new").replace(events)
    launch.follow(events, before, outcome, lambda: True, heard.append)
    assert heard == [{"event": "start"}]  # a line that is being written is not read yet


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
    while (status := state_of(child)) not in ("gone", "Z", "X") and time.monotonic() < end:
        time.sleep(0.05)
    assert status in ("gone", "Z", "X")


def state_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
