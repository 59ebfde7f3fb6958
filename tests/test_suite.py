import pytest

from calibre.engine import rounds, suite
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
    assert len({result["federation"] for result in results}) == 1
    monkeypatch.setattr(rounds, "run", lambda *a: pytest.fail("it was finished"))
    assert suite.run(chosen, tmp_path, lambda event: None) == results
