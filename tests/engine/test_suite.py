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


def test_a_suite_is_sorted_and_what_is_finished_is_not_run_again(tiny, tmp_path, monkeypatch):
    base = tiny("training.rounds=1", 'personal.floors=["untrained"]')
    chosen = suite.variants(base, ["calibre", "fedavg-ft", "fedrep"], [0])
    results = suite.run(chosen, tmp_path, lambda event: None)
    assert len({result["federation"] for result in results}) == 1
    monkeypatch.setattr(rounds, "run", lambda *a: pytest.fail("it was finished"))
    assert suite.run(chosen, tmp_path, lambda event: None) == results

    groups = suite.by_method(results)
    assert set(groups) == {"Calibre (SimCLR)", "FedAvg-FT", "FedRep", "untrained encoder"}
    means = [runs[0]["train"]["mean"] for runs in groups.values()]
    assert means == sorted(means, reverse=True)
    table = suite.markdown(results).splitlines()
    assert len(table) == 2 + 4
    assert all(line.count("|") == 11 for line in table)


def test_unlike_federations_are_not_compared(tiny, tmp_path):
    one = suite.run([tiny("training.rounds=1")], tmp_path, lambda event: None)
    other = suite.run(
        [tiny("method.name=fedavg", "training.rounds=1", "federation.alpha=5.0")],
        tmp_path,
        lambda event: None,
    )
    with pytest.raises(UserError, match="not on the same federations"):
        suite.markdown([*one, *other])


def test_spread_over_seeds():
    figures = {"mean": 0.5, "variance": 0.01, "worst_tenth": 0.3}
    runs = [
        {"method": "M", "seed": s, "federation": str(s), "floors": {}, "seconds": 10.0,
         "failures": 1, "train": {**figures, "mean": m}, "novel": dict.fromkeys(figures)}
        for s, m in ((0, 0.5), (1, 0.7))
    ]  # fmt: skip
    (line,) = suite.markdown(runs).splitlines()[2:]
    assert "| M | 2 | 60.00 ± 14.14 |" in line  # sd of .5 and .7 with n - 1
    assert line.endswith("| 10 | 2 |")
