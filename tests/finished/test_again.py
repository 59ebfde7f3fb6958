"""Personal models made anew without training, and runs that are extended."""

import pytest

from calibre.engine import rounds
from calibre.errors import UserError
from calibre.experiment import read
from calibre.finished.again import anew
from calibre.report import runs


def test_personal_models_are_made_anew_on_the_same_training(tiny, tmp_path):
    rounds.run(tiny(), tmp_path / "run")
    experiment, place = anew(tmp_path / "run", ["personal.head=solved"], tmp_path / "again")
    trained = []
    rounds.run(experiment, place, lambda e: trained.append(e) if e.event == "round" else None)
    old, new = runs.read(tmp_path / "run"), runs.read(place)
    assert trained == []
    assert new.metrics.rounds == old.metrics.rounds
    assert new.metrics.personal.head == "solved"
    models = [(folder / "model.safetensors").read_bytes() for folder in (old.folder, place)]
    assert models[0] == models[1]
    whole = tiny("personal.head=solved")
    rounds.run(whole, tmp_path / "whole")  # as if it had been run so from the start
    assert (place / "clients.csv").read_bytes() == (tmp_path / "whole/clients.csv").read_bytes()


@pytest.mark.parametrize("known", [True, False])
def test_who_trained_it_is_told_of_the_copy_too(tiny, tmp_path, known):
    rounds.run(tiny("training.rounds=1"), tmp_path / "run")
    (tmp_path / "again").mkdir()
    (tmp_path / "again/source.json").write_text("of an attempt that did not begin")
    if known:
        (tmp_path / "run/source.json").write_text("of who trained it")
    _, place = anew(tmp_path / "run", ["personal.head=solved"], tmp_path / "again")
    if known:
        assert (place / "source.json").read_text() == "of who trained it"
    else:
        assert not (place / "source.json").exists()


def test_what_training_rests_on_cannot_change(tiny, tmp_path):
    rounds.run(tiny(), tmp_path / "run")
    with pytest.raises(UserError, match=r"training\.epochs.*run of its own"):
        anew(tmp_path / "run", ["training.epochs=2"], None)


def test_a_finished_run_is_extended_by_rounds(tiny, tmp_path):
    short = tiny("training.rounds=2")
    rounds.run(short, tmp_path / "run")
    longer = short.extended(4)
    seen = []
    rounds.run(
        longer, tmp_path / "run",
        lambda e: seen.append(e.round) if e.event == "round" else None,
    )  # fmt: skip
    assert seen == [3, 4]
    assert runs.read(tmp_path / "run").metrics.rounds == 4
    assert read(tmp_path / "run" / "experiment.toml").training.ended == (2,)


def test_an_extended_run_is_not_taken_for_one_of_so_many_rounds(tiny):
    assert tiny("training.rounds=2").extended(4).hash() != tiny("training.rounds=4").hash()
    with pytest.raises(UserError, match="give more"):
        tiny("training.rounds=4").extended(4)
