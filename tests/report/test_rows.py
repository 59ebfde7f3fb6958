import statistics

import pytest

from calibre.errors import UserError
from calibre.report.rows import arrange
from tests.report.in_memory import method, run

OURS = "Calibre (SimCLR) with labels"

WORSE, BETTER = [0.5, 0.6, 0.7], [0.6, 0.8, 0.9]


def test_seeds_of_a_method_are_one_row_in_their_order_and_the_best_comes_first():
    runs = [
        run(WORSE, [], method("fedavg"), seed=1),
        run(BETTER, seed=1),
        run(WORSE, [], method("fedavg"), seed=0),
        run(BETTER, [], "engine.workers=1", "name=other", seed=0),  # where it ran does not matter
    ]
    rows = arrange(runs)
    assert [row.label for row in rows] == [OURS, "FedAvg"]
    assert [[entry.run.seed for entry in row.entries] for row in rows] == [[0, 1], [0, 1]]


def test_the_same_method_with_unlike_settings_is_two_rows_that_say_so():
    runs = [run(BETTER), run(WORSE, [], "method.prototypes.alpha_p=0.1", "network.width=8")]
    labels = [row.label for row in arrange(runs)]
    assert labels == [
        f"{OURS}, prototypes.alpha_p=0.3, network.width=32",
        f"{OURS}, prototypes.alpha_p=0.1, network.width=8",
    ]


def test_estimates_are_over_seeds_or_else_over_clients():
    two = arrange([run([0.2, 0.4], [0.5], seed=0), run([0.6, 0.8], [0.9], seed=1)])[0]
    mean = two.estimate("train", "mean")
    assert mean.value == pytest.approx(0.5)  # of 0.3 and 0.7
    assert mean.half == pytest.approx(12.7062 * 0.2, rel=1e-4)  # sd/√2 = 0.2, one degree of freedom
    assert two.estimate("train", "variance").value == pytest.approx(0.01)
    assert two.estimate("novel", "min").value == pytest.approx(0.7)
    one = arrange([run([0.2, 0.4, 0.9])])[0]
    assert one.estimate("train", "mean").half == pytest.approx(
        4.3027 * statistics.stdev([0.2, 0.4, 0.9]) / 3**0.5, rel=1e-4
    )
    assert one.estimate("train", "std").half is None
    assert one.estimate("novel", "mean") is None


def test_costs_are_means_over_seeds_and_blank_for_runs_of_old():
    new = arrange([run(WORSE, seed=0, seconds=10.0), run(WORSE, seed=1, seconds=20.0)])[0]
    assert (new.cost("seconds"), new.cost("bytes_up")) == (15, 2000)
    old = arrange([run(WORSE, seed=0), run(WORSE, seed=1, bytes_up=None)])[0]
    assert old.cost("bytes_up") is None


FLOORS = {"untrained": [0.1, 0.2, 0.3], "local": [0.4, 0.5, 0.6]}


def test_floors_are_methods_and_one_with_a_run_of_its_own_is_that_run():
    with_floors = run(BETTER, floors=FLOORS)
    rows = arrange([with_floors])
    assert [row.label for row in rows] == [OURS, "local only", "untrained encoder"]
    assert rows[1].estimate("train", "mean").value == pytest.approx(0.5)
    assert rows[1].cost("seconds") is None
    assert [row.label for row in arrange([with_floors], floors=False)] == [OURS]
    # the local run has other rounds, which it does not use
    local = run([0.4, 0.5, 0.6], [], method("local"), "training.rounds=5")
    rows = arrange([with_floors, local])
    assert [row.label for row in rows] == [OURS, "local only", "untrained encoder"]
    assert rows[1].cost("seconds") == 10
    other = run([0.4, 0.5, 0.5], [], method("local"))
    labels = [row.label for row in arrange([with_floors, other])]
    assert labels[1:3] == ["local only (floor)", "local only"]


def test_a_floor_that_not_every_seed_has_is_left_out():
    rows = arrange([run(BETTER, seed=0, floors=FLOORS), run(BETTER, seed=1)])
    assert [row.label for row in rows] == [OURS]


def test_unlike_federations_are_refused_with_the_reason():
    one = run(BETTER, federation="a")
    other = run(WORSE, [], method("fedavg"), "federation.alpha=5.0", federation="b")
    with pytest.raises(UserError) as refused:
        arrange([one, other])
    assert "federation.alpha is 0.3 and 5.0" in str(refused.value)
    assert str(one.folder) in str(refused.value)
    assert str(other.folder) in str(refused.value)
    assert len(arrange([one, other], comparable=False)) == 2
    changed = run(WORSE, [], method("fedavg"), federation="b")
    with pytest.raises(UserError, match="the images have changed"):
        arrange([one, changed])


def test_a_seed_that_one_method_lacks_is_named():
    runs = [run(BETTER, seed=0), run(BETTER, seed=7), run(WORSE, [], method("fedavg"), seed=0)]
    with pytest.raises(UserError, match=r"with seed 7, but none of FedAvg"):
        arrange(runs)


def test_the_same_experiment_twice_is_refused():
    with pytest.raises(UserError, match="the same experiment"):
        arrange([run(BETTER), run(BETTER)])
