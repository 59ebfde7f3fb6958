from subprocess import CompletedProcess

import pytest

from calibre.deploy import launch
from calibre.report.events import Warned


def said(text, code=0):
    return lambda arguments, home: CompletedProcess(arguments, code, text, "")


@pytest.mark.parametrize(
    ("answer", "running"),
    [
        (said('a note\n{"runs": [{"status": "running"}]}'), True),
        (said('{"runs": [{"status": "finished:completed"}]}'), False),
        (said('{"runs": [{"status": "finished:failed"}]}'), False),
        (said("cannot be read"), True),
        (said("no connection", code=1), False),
    ],
    ids=["running", "completed", "failed", "unreadable", "gone"],
)
def test_whether_a_run_goes_on_is_asked_of_flower(monkeypatch, tmp_path, answer, running):
    monkeypatch.setattr(launch, "flwr", answer)
    assert launch.is_running("7", tmp_path) is running


def test_a_coordinator_that_is_gone_without_a_word_is_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr(launch, "ALIVE_SECONDS", 0)
    events = tmp_path / "events.jsonl"
    events.write_text('{"event": "warning", "text": "x"}\n')
    heard = []
    ended = launch.follow(events, None, tmp_path / "none", lambda: False, heard.append)
    assert ended == {"ended": "stopped", "message": "the coordinator ended without a word"}
    assert heard == [Warned(text="x")]
