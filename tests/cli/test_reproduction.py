"""`reproduce --ledger`: what is refused before anything runs."""

import pytest
from typer.testing import CliRunner

from calibre import cli
from calibre.recipes import all_recipes, reproduce
from calibre.recipes.recipe import Conclusion, Recipe


@pytest.fixture
def invoke(tiny, monkeypatch):
    """The command of a recipe that must not begin to run."""
    made = Recipe("one", "One", lambda scale, seeds: [tiny()], lambda runs, scale: Conclusion(""))
    monkeypatch.setattr(all_recipes, "recipes", lambda: {"one": made})
    monkeypatch.setattr(reproduce, "seconds", lambda experiment: 1.0)
    monkeypatch.setattr(reproduce, "reproduce", lambda *a: pytest.fail("it ran"))
    monkeypatch.setattr(reproduce, "announcement", lambda *a: "announced")

    def invoke(*words):
        return CliRunner().invoke(cli.app, ["reproduce", "one", *map(str, words)])

    return invoke


@pytest.mark.parametrize("inside", ["", "runs"])
def test_a_ledger_is_no_place_for_runs(invoke, tmp_path, inside):
    (tmp_path / "a run").mkdir()
    done = invoke("--ledger", tmp_path, "--out", tmp_path / inside, "--dry-run")
    assert "nothing but entries" in str(done.exception)
    assert "announced" not in done.output


@pytest.mark.parametrize("kind", ["file", "dangling", "circle"])
def test_a_ledger_that_cannot_be_is_told_at_once(invoke, tmp_path, kind):
    place = tmp_path / "place"
    if kind == "file":
        place.write_text("")
    else:
        place.symlink_to(place if kind == "circle" else tmp_path / "nothing")
    for ledger in (place, place / "ledger"):
        done = invoke("--ledger", ledger, "--out", tmp_path / "runs")
        assert "ledger" in str(done.exception)
        assert "announced" not in done.output


def test_nothing_is_made_where_it_is_only_asked_what_would_run(invoke, tmp_path):
    done = invoke("--ledger", tmp_path / "ledger", "--out", tmp_path / "runs", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "announced" in done.output
    assert list(tmp_path.iterdir()) == []
