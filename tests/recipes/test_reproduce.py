"""A recipe is carried out, and what ran it is told."""

import json

import pytest

from calibre.engine import rounds
from calibre.errors import UserError
from calibre.evidence import origin
from calibre.evidence.kept import Evidence
from calibre.recipes import reproduce
from calibre.recipes.recipe import Conclusion, Recipe
from calibre.run_folder import RunFolder
from calibre.suite import run as run_suite


@pytest.fixture
def experiments(tiny):
    """Two that are trained alike."""
    return [tiny("training.rounds=1"), tiny("training.rounds=1", "personal.head=solved")]


@pytest.fixture
def carry_out(experiments, tmp_path):
    recipe = Recipe(
        "two", "Two", lambda scale, seeds: experiments,
        lambda runs, scale: Conclusion(str(len(runs))),
    )  # fmt: skip

    def carry_out(chosen=experiments, evidence=None, out=tmp_path / "runs"):
        heard = []
        reproduce.reproduce(recipe, "cpu", chosen, out, heard.append, evidence)
        return sum(event.event == "round" for event in heard)

    return carry_out


@pytest.fixture
def as_code(monkeypatch):
    """From now on, this process is of other code."""
    return lambda name: monkeypatch.setattr(origin, "code_hash", lambda: name)


@pytest.fixture
def codes(experiments, tmp_path):
    """Of every attempt at both runs."""

    def codes():
        places = [tmp_path / "runs" / e.folder_name / "source.json" for e in experiments]
        notes = [json.loads(place.read_text()) for place in places]
        return [[source["code"] for source in told["sources"]] for told in notes]

    return codes


def test_an_entry_tells_of_the_code_that_ran_it_and_not_of_who_enters_it(
    experiments, carry_out, as_code, tmp_path
):
    as_code("then")
    assert carry_out() == 1
    as_code("now")
    evidence = Evidence(tmp_path / "evidence")
    assert carry_out(evidence=evidence) == 0
    assert {entry.origin.code for entry in evidence.of(experiments)} == {"then"}


def test_training_that_is_taken_over_brings_along_who_did_it(experiments, carry_out, codes):
    here = origin.code_hash()
    assert carry_out() == 1
    assert codes() == [[here], [here, here]]


def test_training_by_other_code_is_not_taken_over(experiments, carry_out, as_code, codes):
    as_code("then")
    carry_out(experiments[:1])
    as_code("now")
    assert carry_out() == 1
    assert codes() == [["then"], ["now"]]


def test_what_other_code_began_does_not_go_on_into_the_ledger(
    experiments, carry_out, as_code, tmp_path, monkeypatch
):
    as_code("then")
    with monkeypatch.context() as patch:
        patch.setattr(rounds, "run", begun)
        with pytest.raises(InterruptedError):
            carry_out()
    as_code("now")
    evidence = Evidence(tmp_path / "evidence")
    with pytest.raises(UserError, match=r"was begun by other code.*give another one with --out"):
        carry_out(evidence=evidence)
    as_code("then")  # and who has it still can go on
    carry_out(evidence=evidence)
    assert {entry.origin.code for entry in evidence.of(experiments)} == {"then"}


def begun(experiment, folder, *others):
    """A run that is killed once it has its folder."""
    place = RunFolder(folder)
    place.open(experiment)
    place.close()
    raise InterruptedError


def test_runs_that_somebody_else_made_do_not_enter(experiments, carry_out, tmp_path):
    run_suite(experiments, tmp_path / "runs", lambda event: None)
    with pytest.raises(UserError, match="does not say which code ran it"):
        carry_out(evidence=Evidence(tmp_path / "evidence"))


def test_runs_in_the_ledger_are_refused_before_they_begin(experiments, carry_out, tmp_path):
    for out in (tmp_path / "evidence", tmp_path / "evidence" / "runs"):
        with pytest.raises(UserError, match="nothing but entries"):
            carry_out(evidence=Evidence(tmp_path / "evidence"), out=out)
    assert not (tmp_path / "evidence").exists()


def test_a_ledger_that_cannot_be_made_is_told_before_anything_runs(carry_out, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot use .*file/evidence as a ledger"):
        carry_out(evidence=Evidence(tmp_path / "file/evidence"))
    assert not (tmp_path / "runs").exists()


def test_a_ledger_among_the_runs_is_one(experiments, carry_out, tmp_path):
    evidence = Evidence(tmp_path / "runs" / "evidence")
    carry_out(evidence=evidence)
    assert len(Evidence(evidence.folder).entries) == 2
    assert all(RunFolder(tmp_path / "runs" / e.folder_name).finished for e in experiments)
