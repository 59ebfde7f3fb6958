import pytest

from calibre import suite
from calibre.deploy import simulation
from calibre.engine import rounds
from calibre.errors import UserError


def test_methods_and_objectives_by_name(tiny):
    base = tiny("method.prototypes.alpha_p=0.1")
    chosen = suite.variants(base, ["calibre", "pfl-ssl/byol", "fedrep"], [0, 1])
    assert [(e.method.name, e.seed) for e in chosen] == [
        ("calibre", 0), ("calibre", 1), ("pfl-ssl", 0), ("pfl-ssl", 1),
        ("fedrep", 0), ("fedrep", 1),
    ]  # fmt: skip
    assert chosen[0].method.prototypes.alpha_p == 0.1  # the experiment's own method as it is there
    assert chosen[2].method.objective.name == "byol"
    assert all(e.federation == base.federation for e in chosen)
    with pytest.raises(UserError, match="no method called 'fedreep'"):
        suite.variants(base, ["fedreep"], [0])


def test_methods_share_a_federation_and_none_is_run_twice(tiny, tmp_path, monkeypatch):
    base = tiny("training.rounds=1", 'personal.floors=["untrained"]')
    chosen = suite.variants(base, ["calibre", "fedavg-ft", "fedrep"], [0])
    results = suite.run(chosen, tmp_path, lambda event: None)
    assert len({result.federation for result in results}) == 1
    monkeypatch.setattr(rounds, "run", lambda *a: pytest.fail("it was finished"))
    assert suite.run(chosen, tmp_path, lambda event: None) == results


def test_every_run_is_carried_out_by_the_engine_that_its_experiment_names(
    tiny, tmp_path, monkeypatch
):
    asked = []

    def simulate(experiment, folder, emit):
        asked.append((experiment.method.name, folder))
        return rounds.run(experiment, folder, emit)  # the same bits, as simulations give them

    monkeypatch.setattr(simulation, "simulate", simulate)
    base = tiny("engine.runtime=flower-sim", "training.rounds=1")
    chosen = suite.variants(base, ["fedavg", "fedrep"], [0])
    results = suite.run(chosen, tmp_path, lambda event: None)
    assert asked == [(e.method.name, tmp_path / e.folder_name) for e in chosen]
    assert [result.method for result in results] == ["FedAvg", "FedRep"]
    at_sites = suite.variants(tiny("engine.runtime=flower"), ["fedavg"], [1])
    with pytest.raises(UserError, match="sites train this run"):
        suite.run(at_sites, tmp_path, lambda event: None)


def test_personal_models_of_another_kind_need_no_training_of_their_own(tiny, tmp_path):
    rounds_of = []

    def listen(event):
        if event.event == "round":
            rounds_of[-1] += 1
        elif event.event == "experiment":
            rounds_of.append(0)

    both = [tiny(), tiny("personal.head=solved")]
    suite.run(both, tmp_path, listen)
    assert rounds_of == [3, 0]
    alone = suite.run(both[1:], tmp_path / "alone", listen)
    assert rounds_of == [3, 0, 3]
    again = [tmp_path / both[1].folder_name, tmp_path / "alone" / both[1].folder_name]
    assert len({(place / "clients.csv").read_bytes() for place in again}) == 1
    assert alone[0].personal.head == "solved"


def test_who_runs_several_is_called_before_and_after_each(tiny, tmp_path):
    called = []
    both = suite.variants(tiny("training.rounds=1"), ["fedavg", "fedrep"], [0])
    places = [tmp_path / e.folder_name for e in both]
    hooks = {"before": lambda place: called.append(("before", place)), "after": called.append}
    suite.run(both[:1], tmp_path, lambda event: None, **hooks)
    suite.run(both, tmp_path, lambda event: None, **hooks)
    before = [("before", place) for place in places]
    assert called == [before[0], places[0], places[0], before[1], places[1]]


@pytest.mark.parametrize("finished_before", [True, False])
def test_training_is_taken_over_from_those_who_lend_it_alone(tiny, tmp_path, finished_before):
    both = [tiny("training.rounds=1"), tiny("training.rounds=1", "personal.head=solved")]
    asked, rounds_run = [], []

    def lends(place):
        asked.append(place)
        return False

    def listen(event):
        if event.event == "round":
            rounds_run.append(event.round)

    if finished_before:
        suite.run(both[:1], tmp_path, lambda event: None)
        suite.run(both[1:], tmp_path, listen, lends=lends)
        assert rounds_run == [1]
    else:
        suite.run(both, tmp_path, listen, lends=lends)
        assert rounds_run == [1, 1]
    assert tmp_path / both[0].folder_name in asked
