"""What `run --data` comes to on folders, told from the ledger."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.folders import ENOUGH, experiment_on
from benchmarks.folders import folders as make_folders
from calibre import experiment as experiments
from calibre.errors import UserError
from calibre.evidence.kept import Evidence
from calibre.recipes.folders import FOLDER, conclude, draw_of, passage
from calibre.report.metrics import ByGroup, summary
from tests.recipes.made_up import made_up


def on(folder, method):
    return experiments.read(None, [f"data.source={folder}", f"method.name={method}"])


def runs_on(folder, ours, rival, floors):
    """Both methods' runs; a floor's clients all fare the same."""
    by_method = {"calibre": ours, "fedavg-ft": rival}
    made = made_up([on(folder, name) for name in by_method], lambda e: by_method[e.choice[0]])
    measured = {name: ByGroup(train=summary([x] * 20), novel=summary([])) for name, x in floors}
    return [
        replace(
            run,
            metrics=run.metrics.model_copy(update={"floors": measured}),
            clients=tuple(replace(client, floors=dict(floors)) for client in run.clients),
        )
        for run in made
    ]


ROOT = Path(__file__).parents[2]
FLOORS = [("local", 0.4), ("pixels", 0.3)]


def test_a_line_tells_means_of_draws_and_by_how_much_we_are_ahead():
    runs = [
        *runs_on("folders/cifar10-30-0", 0.7001, 0.6001, FLOORS),
        *runs_on("folders/cifar10-30-1", 0.8001, 0.7001, FLOORS),
        *runs_on("folders/digits-60-0", 0.5001, 0.5001, FLOORS),
    ]
    text = conclude(runs)
    lines = {tuple(line.split(" | ")[:2]): line.split(" | ") for line in text.splitlines()}
    cells = lines["| cifar10", "30"]
    assert cells[2] == "2"  # draws
    # clients are 0 to 19 thousandths better than the first one, 0.95 on average
    assert cells[3] == "76.0, worst 75.0"
    assert cells[4] == "66.0, worst 65.0"
    assert cells[5] == "40.0, worst 40.0"  # the better floor
    assert cells[6] == "**+10.0 ± 0.0**"
    # 30.96 and 40.96: 12.706 times half the range; so other draws may say otherwise: not bold
    assert cells[7] == "+36.0 ± 63.5 |"
    assert lines["| digits", "60"][6] == "+0.0 ± 0.0"
    assert "Single draws: +0.0 to +10.0 points from FedAvg-FT, +11.0 to +41.0 points" in text


@pytest.mark.parametrize(
    ("source", "found"),
    [("folders/fashion-mnist-60-2", ("fashion-mnist", 60, 2)), ("cifar10", None),
     ("other/cifar10-30-0", None), ("/folders/cifar10-30-0", None), ("folders/mine", None)],
)  # fmt: skip
def test_only_such_folders_count(source, found):
    assert draw_of(on(source, "calibre")) == found


def held(runs):
    entries = {run.experiment.hash(): SimpleNamespace(run=run, origin=origin()) for run in runs}
    return SimpleNamespace(entries=entries)


def origin():
    return SimpleNamespace(commit="abc", machine="2 cores", seconds=60.0, code="1", results=3)


def test_a_draw_waits_for_both_methods(monkeypatch):
    whole = runs_on("folders/cifar10-30-0", 0.7, 0.6, FLOORS)
    half = runs_on("folders/cifar10-30-1", 0.7, 0.6, FLOORS)[:1]
    made = passage(held([*whole, *half]))
    assert [entry.run for entry in made.shown] == whole
    assert len(made.held) == 3
    assert "2 runs, 2 min in all on 2 cores" in made.conclusion.text
    assert "still missing: cifar10 with 60 labels, fashion-mnist with 30" in made.conclusion.text
    assert "Not run yet: `python -m benchmarks.folders" in passage(held(half)).conclusion.text
    assert passage(held(made_up([on("digits", "calibre")], lambda e: 0.5))).held == ()


def test_what_cannot_be_compared_is_named():
    one, other = runs_on("folders/cifar10-30-0", 0.7, 0.6, FLOORS)
    unlike = replace(other, metrics=other.metrics.model_copy(update={"federation": "another"}))
    with pytest.raises(UserError, match=f"{one.folder} and {other.folder} are not on the same im"):
        conclude([one, unlike])
    with pytest.raises(UserError, match="are of one draw: remove the older"):
        conclude([one, other, replace(one, folder=Path("again"))])
    (strange,) = made_up([on("folders/cifar10-30-0", "fedper")], lambda e: 0.5)
    with pytest.raises(UserError, match=f"{strange.folder} is not of python -m benchmarks.folders"):
        conclude([strange])


def test_what_the_ledger_holds_is_what_would_be_chosen_today(tmp_path, monkeypatch):
    """Where it fails, others are chosen now:  python -m benchmarks.folders --ledger evidence"""
    ledger = Evidence(ROOT / "evidence")
    monkeypatch.chdir(tmp_path)
    place = make_folders("digits", 30, 0, False, Path(FOLDER))
    for changes in ({}, ENOUGH):
        entry = ledger.find(experiment_on(place, **changes))
        assert entry is not None
        assert {client.test_samples for client in entry.run.clients} <= set(range(18, 25))
