"""Runs on folders enter the ledger as of the code that ran them."""

import json

import pytest

import calibre
from benchmarks import folders
from calibre.errors import UserError
from calibre.evidence.kept import Evidence
from calibre.evidence.origin import Source


def test_who_runs_it_is_noted_and_enters_once(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment, source = tiny("training.rounds=1"), Source.here()
    run = folders._reached(experiment, None, source)
    told = json.loads((run.folder / "source.json").read_text())
    assert told == {"sources": [source.model_dump()]}
    monkeypatch.setattr(calibre, "run", lambda *a: pytest.fail("it has finished"))
    kept = Evidence(tmp_path / "evidence")
    assert folders._reached(experiment, kept, source).clients == run.clients
    assert kept.find(experiment).origin.code == source.code
    assert folders._reached(experiment, kept, source).folder.parent == kept.folder


def test_a_run_of_unknown_code_does_not_enter(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = tiny("training.rounds=1")
    calibre.run(experiment, f"runs/{experiment.folder_name}")
    with pytest.raises(UserError, match="does not say which code ran it"):
        folders._reached(experiment, Evidence(tmp_path / "evidence"), Source.here())


@pytest.mark.parametrize("inside", ["", "runs", "folders"])
def test_the_ledger_lies_apart(tmp_path, inside):
    with pytest.raises(UserError, match="nothing but entries"):
        folders._ledger(tmp_path / inside, tmp_path)
    assert folders._ledger(tmp_path / "evidence", tmp_path).folder.is_dir()
