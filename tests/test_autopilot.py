"""Settings for a user's own data: from facts alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibre.autopilot import choose, fill, for_data
from calibre.data.facts import Facts
from calibre.data.sources import facts
from calibre.errors import UserError
from calibre.experiment import Experiment, read
from calibre.sections import DataSettings
from calibre.settings import validate
from tests.data.test_intake import fill as draw_federation
from tests.data.test_intake import picture, put

HOSPITALS = Facts(
    name="scans", known=False, table=np.full((5, 4), 100), owned=True, tested=False,
    unlabelled=0, size=(32, 32), sizes="32 x 32", common_size=32, channels=1,
)  # fmt: skip


def chosen(facts: Facts) -> dict:
    return {choice.key: choice.value for choice in choose(facts)}


def test_owners_are_the_clients():
    values = chosen(HOSPITALS)
    assert values["federation.scheme"] == "natural"
    assert "federation.clients" not in values
    assert values["federation.novel"] == 0
    assert values["training.clients_per_round"] == 5  # few: all of them
    assert values["data.size"] is None
    assert values["method.prototypes.clusters"] == 4
    assert values["method.sgd.batch"] == 64  # 320 images to train on each
    assert values["views.flip"] == 0


def test_clients_are_made_up_where_nobody_owns_anything():
    values = chosen(replace(HOSPITALS, owned=False, table=np.array([[100, 100, 100]])))
    assert (values["federation.scheme"], values["federation.clients"]) == ("dirichlet", 5)


def test_of_many_clients_a_part_trains_in_a_round():
    values = chosen(replace(HOSPITALS, table=np.full((60, 4), 10)))
    assert values["training.clients_per_round"] == 12
    assert values["method.sgd.batch"] == 32  # 32 images to train on each
    assert values["personal.epochs"] > 10  # so few images make a step or two an epoch


@pytest.mark.parametrize(
    ("size", "common", "expected", "encoder"),
    [
        ((28, 28), 28, None, "cnn"),
        ((60, 40), 40, None, "cnn"),
        (None, 32, 32, "cnn"),
        ((224, 224), 64, 64, "resnet8"),
        (None, 64, 64, "resnet8"),
    ],
)
def test_large_and_unlike_images_are_made_small(size, common, expected, encoder):
    values = chosen(replace(HOSPITALS, size=size, common_size=common))
    assert (values["data.size"], values["network.encoder"]) == (expected, encoder)


def test_views_of_known_data_sets_are_left_to_them():
    assert not [key for key in chosen(replace(HOSPITALS, known=True)) if key.startswith("views")]


def test_one_class_is_refused():
    with pytest.raises(UserError, match="scans has one class only"):
        choose(replace(HOSPITALS, table=np.full((5, 1), 10)))


@given(
    st.integers(1, 300), st.integers(2, 30), st.integers(1, 500), st.integers(8, 64),
    st.booleans(), st.booleans(), st.integers(0, 5000),
)  # fmt: skip
@settings(deadline=None)
def test_any_choice_is_a_sound_experiment_of_bounded_cost(
    clients, classes, each, side, owned, tested, unlabelled
):
    facts = replace(
        HOSPITALS,
        table=np.full((clients if owned else 1, classes), each),
        owned=owned, tested=tested, unlabelled=unlabelled, size=(side, side),
    )  # fmt: skip
    values, counted = fill({"data": {"source": "x"}}, choose(facts))
    experiment = validate(Experiment, values)
    assert all(choice.why for choice in counted)
    training = experiment.training
    holders = len(facts.table) if owned else experiment.federation.clients
    assert 1 <= training.clients_per_round <= holders
    assert experiment.method.prototypes.clusters * 4 <= experiment.method.sgd.batch
    # in images of 32 x 32, which two cores train on 740 times a second (docs/results.md)
    images = (facts.table.sum() + unlabelled) / holders * training.clients_per_round
    cost = (side / 32) ** 2 if side < 64 else 2.4  # a ResNet, which halves large images early
    rounds = training.rounds - experiment.method.labels.last_rounds  # of two views
    passes = images * training.epochs * rounds * cost
    if rounds > 10:
        assert passes <= 740 * 60 * 6


def test_what_the_user_sets_goes_first():
    given_ = {"data": {"source": "x"}, "training": {"rounds": 3}, "method": {"sgd": {"batch": 8}}}
    values, counted = fill(given_, choose(HOSPITALS))
    assert values["training"]["rounds"] == 3
    assert values["method"]["sgd"] == {"batch": 8}
    assert values["method"]["prototypes"] == {"clusters": 4}
    assert not {"training.rounds", "method.sgd.batch"} & {choice.key for choice in counted}
    assert given_["training"] == {"rounds": 3}  # not changed


@pytest.mark.parametrize("method", ["fedavg-ft", {"name": "fedavg-ft"}])
def test_another_method_keeps_its_own_settings(method):
    values, counted = fill({"method": method}, choose(HOSPITALS))
    assert values["method"] == method
    assert not [choice for choice in counted if choice.key.startswith("method")]
    validate(Experiment, values)


def test_own_classifiers_take_enough_steps_on_the_labels_there_are():
    few = replace(HOSPITALS, table=np.full((5, 4), 16), tested=True, unlabelled=2000)
    assert chosen(few)["personal.epochs"] == 50  # 64 labels each: two steps an epoch
    many = replace(HOSPITALS, table=np.full((5, 4), 200), tested=True)
    assert chosen(many)["personal.epochs"] == 10


def test_labels_weigh_more_the_more_there_are():
    none = replace(HOSPITALS, table=np.zeros((5, 4), int), tested=True, unlabelled=500)
    half = replace(HOSPITALS, table=np.full((5, 4), 25), tested=True, unlabelled=500)
    every = replace(HOSPITALS, table=np.full((5, 4), 25), tested=True, unlabelled=0)
    weights = [chosen(facts)["method.labels.weight"] for facts in (none, half, every)]
    assert weights == [1.0, 2.5, 4.0]


def test_test_images_are_not_counted_as_images_to_train_on(tmp_path):
    draw_federation(tmp_path / "x" / "train", 24)
    draw_federation(tmp_path / "x" / "test", 12)
    found = facts(DataSettings(source=str(tmp_path / "x")))
    assert found.tested
    assert found.table.tolist() == [[6, 6], [6, 6]]


def test_facts_come_from_names_and_headers(tmp_path):
    draw_federation(tmp_path / "x", 24)
    for i in range(3):
        put(tmp_path / f"x/ben/unlabelled/{i}.png", picture(100 + i, size=(20, 10)))
    found = facts(DataSettings(source=str(tmp_path / "x")))
    assert found.table.tolist() == [[6, 6], [6, 6]]
    assert (found.owned, found.tested, found.unlabelled) == (True, False, 3)
    assert (found.size, found.sizes, found.common_size) == (None, "from 8 x 8 to 20 x 10", 8)
    assert found.channels == 3
    assert facts(DataSettings(source=str(tmp_path / "x"), size=12)).size == (12, 12)


def test_a_run_ends_on_labels_where_its_rounds_are_open(tmp_path):
    """Of rounds that somebody has counted, none is taken from self-supervision."""
    draw_federation(tmp_path)
    place = str(tmp_path)
    open_ = for_data({}, place).experiment
    last = open_.method.labels.last_rounds
    assert 0 < last < open_.training.rounds
    counted = for_data({"training": {"rounds": 3}}, place).experiment
    assert (counted.training.rounds, counted.method.labels.last_rounds) == (3, 0)
    without = for_data({"method": {"labels": {"weight": 0}}}, place).experiment
    assert (without.method.labels.last_rounds, without.method.labels.second) == (0, 0)
    assert without.training.rounds == open_.training.rounds - last


def test_a_second_network_goes_over_the_labels_as_often_as_time_allows():
    few = replace(HOSPITALS, table=np.full((8, 5), 12), tested=True, unlabelled=8 * 340)
    values = chosen(few)
    rounds, epochs = values["training.rounds"], values["training.epochs"]
    assert 500 < values["method.labels.second"] * rounds * epochs < 700
    every = replace(HOSPITALS, table=np.full((8, 5), 80), tested=True)
    values = chosen(every)
    first = values["training.rounds"] - values["method.labels.last_rounds"]
    passes = values["method.labels.second"] * values["training.rounds"] * values["training.epochs"]
    # a pass over two views takes twice as long; all of it about twice as long as all of that
    assert 200 < passes <= 2 * 2.5 * first * values["training.epochs"]


@pytest.mark.parametrize(("rounds", "epochs"), [(None, None), (60, 1), (60, 3), (400, 1), (5, 3)])
def test_it_goes_over_the_labels_as_often_whatever_the_rounds_are(rounds, epochs):
    few = replace(HOSPITALS, table=np.full((8, 5), 12), tested=True, unlabelled=8 * 340)
    values = {c.key: c.value for c in choose(few, True, rounds, epochs)}
    passes = values["training.rounds"] * values["training.epochs"] * values["method.labels.second"]
    assert 450 < passes <= 800 or values["method.labels.second"] == 10  # the most in an epoch
    assert (rounds is None) == ("method.labels.last_rounds" in values)


def test_the_example_for_sites_is_what_would_be_chosen_for_them():
    table = np.zeros((8, 10), int)
    table[:, :5] = 6
    sites = replace(HOSPITALS, table=table, tested=True, unlabelled=8 * 340, channels=3)
    filled, _ = fill({}, choose(sites))
    example = read(Path("examples/sites.toml")).model_dump()
    chosen = validate(Experiment, filled).model_dump()
    for section in ("network", "training", "method", "views", "personal"):
        assert example[section] == chosen[section]


def test_a_second_network_is_chosen_with_the_users_rounds_but_not_in_vain(tmp_path):
    draw_federation(tmp_path)

    def second(**values):
        return for_data(values, str(tmp_path)).experiment.method.labels.second

    assert second() > 0
    assert second(training={"rounds": 3}) > 0
    assert second(training={"rounds": "3", "epochs": 2.0}) > 0  # numbers, as settings read them
    assert second(training={"rounds": 0}) == 0  # nothing would train it
    assert second(privacy={"clip": 1.0}) == 0  # noise on twice as much
    assert second(method={"exchange": "encoder"}) == 0  # nor would it travel
    assert second(personal={"head": "paper"}) == 0  # nor be looked at
    assert second(method={"labels": {"second": 7}}) == 7
