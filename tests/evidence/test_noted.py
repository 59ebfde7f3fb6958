"""Who ran a run, and who goes on with it."""

import pytest

from calibre.errors import UserError
from calibre.evidence import origin
from calibre.evidence.noted import note, ran_all, who_ran
from calibre.evidence.origin import Source
from calibre.report import events
from calibre.run_folder import RunFolder
from tests.report.made_run import started


def by(code, commit="1"):
    return Source(code=code, commit=commit, machine="two cores")


@pytest.fixture(autouse=True)
def unchanged(monkeypatch):
    monkeypatch.setattr(Source, "check_unchanged", lambda self: None)


def begin(place, experiment):
    """As the engine does."""
    folder = RunFolder(place)
    folder.open(experiment)
    folder.close()
    events.append(folder.events, started())


def test_who_ran_it_is_who_was_noted_last(tiny, tmp_path):
    for commit in "123":
        note(tmp_path / "run", by("one", commit), enters=True)
        begin(tmp_path / "run", tiny())
    assert who_ran(tmp_path / "run") == by("one", "3")
    assert ran_all(by("one"), tmp_path / "run")
    assert not ran_all(by("two"), tmp_path / "run")


def test_a_run_of_two_codes_is_refused(tiny, tmp_path):
    for code in ("one", "two"):
        note(tmp_path / "run", by(code))
        begin(tmp_path / "run", tiny())
    with pytest.raises(UserError, match=r"run was run by unlike code \(one, two\).*remove.*--out"):
        who_ran(tmp_path / "run")
    assert not ran_all(by("two"), tmp_path / "run")


def test_what_could_not_enter_is_told_before_it_goes_on_and_left_as_it_was(tiny, tmp_path):
    note(tmp_path / "run", by("one"))
    begin(tmp_path / "run", tiny())
    with pytest.raises(UserError, match=r"begun by other code.*--out"):
        note(tmp_path / "run", by("two"), enters=True)
    assert who_ran(tmp_path / "run") == by("one")


@pytest.mark.parametrize("trace", ["an experiment", "checkpoints"])
def test_what_was_begun_without_a_note_stays_without(tiny, tmp_path, trace):
    if trace == "an experiment":
        begin(tmp_path, tiny())
        (tmp_path / "checkpoints").rmdir()
    else:
        (tmp_path / "checkpoints").mkdir()
    note(tmp_path, by("one"))
    assert not (tmp_path / "source.json").exists()
    with pytest.raises(UserError, match="does not say which code ran it"):
        note(tmp_path, by("one"), enters=True)


def test_who_goes_on_without_a_note_is_noticed(tiny, tmp_path):
    note(tmp_path, by("one"))
    begin(tmp_path, tiny())
    begin(tmp_path, tiny())
    with pytest.raises(UserError, match="went on without a note"):
        who_ran(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"sources": []}', '{"sources": [{"code": "1"}]}'])
def test_a_damaged_note_is_named(tmp_path, text):
    (tmp_path / "source.json").write_text(text)
    with pytest.raises(UserError, match=r"has a note that is damaged \(source.json: "):
        who_ran(tmp_path)
    assert not ran_all(by("one"), tmp_path)


def test_nobody_is_noted_while_another_process_runs_there(tiny, tmp_path):
    other = RunFolder(tmp_path)
    note(tmp_path, by("one"))
    other.open(tiny())
    with pytest.raises(UserError, match="another process is running"):
        note(tmp_path, by("two"))
    other.close()
    assert who_ran(tmp_path) == by("one")


def test_code_that_has_changed_since_is_not_noted(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr(origin, "code_hash", lambda: "new")
    with pytest.raises(UserError, match="has changed since this command began"):
        note(tmp_path / "run", by("old"))
    assert not (tmp_path / "run").exists()
