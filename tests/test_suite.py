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
