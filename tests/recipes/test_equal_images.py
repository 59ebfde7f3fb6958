"""Methods on labels alone look at as many images as Calibre on two networks, and are run longer."""

from pathlib import Path

import pytest

from calibre.evidence.kept import Evidence
from calibre.recipes import all_recipes
from calibre.recipes.claims import TWO
from calibre.recipes.equal_images import CONTENDERS, LABELS, TWO_ALONE, rounds_on_labels
from tests.recipes.made_up import made_up

ROOT = Path(__file__).parents[2]
RECIPE = all_recipes.find("equal-images")


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_the_usual_runs_are_those_of_the_label_budget_and_the_others_are_longer(scale):
    made = RECIPE.experiments(scale, [0, 1])
    assert len({e.hash() for e in made}) == len(made) == 2 * 2 * len(CONTENDERS)
    curve = {e.hash() for e in all_recipes.find("label-budget").experiments(scale, [0, 1])}
    usual = [e for e in made if e.hash() in curve]
    assert len(usual) == len(made) / 2
    (rounds,) = {e.training.rounds for e in usual}
    assert all(e.training.rounds > rounds for e in made if e not in usual)


@pytest.mark.parametrize("name", list(LABELS))
def test_as_many_images_are_looked_at_as_the_ledger_says_of_ours(name):
    ledger, labels = Evidence(ROOT / "evidence"), LABELS[name]
    ours = ledger.find(CONTENDERS[TWO].experiment("cpu", 0, labels))
    usual = ledger.find(CONTENDERS["FedAvg-FT"].experiment("cpu", 0, labels))
    in_a_round = usual.origin.images / 40
    assert abs(rounds_on_labels("cpu", labels, 1) * in_a_round - ours.origin.images) < in_a_round
    alone = rounds_on_labels("cpu", labels, 2) * 2 * in_a_round
    assert abs(alone - ours.origin.images) <= in_a_round


def test_two_networks_on_labels_alone_never_look_at_another_image():
    alone = [e for e in RECIPE.experiments("cpu", [0]) if e.method.name == "pfl-ssl"]
    assert [e.training.rounds for e in alone] == [332, 51]
    for e in alone:
        on_all_images, on_labels = e.method.stages(e.training.rounds)
        assert len(on_all_images) == 0
        assert len(on_labels) == e.training.rounds
        assert e.method.labels.second == 1


def test_who_is_ahead_of_whom_with_how_many_labels():
    def accuracy(e):
        if e.method.name == "calibre":
            return 0.6
        return 0.5 + 0.2 * (e.training.rounds > 40) * (e.federation.label_count is None)

    text = RECIPE.conclude(made_up(RECIPE.experiments("cpu", [0, 1]), accuracy), "cpu").text
    *measured, looks = [line for line in text.splitlines() if line.startswith(f"| {TWO_ALONE} |")]
    # mean and worst tenth of trained clients: each adds a tenth of a point
    starts = [line.split(" ± ")[0].removeprefix(f"| {TWO_ALONE} | ") for line in measured[:2]]
    assert starts == ["50.9", "50.0"]
    assert looks == f"| {TWO_ALONE} | 240 | 240 |"
    assert (
        "Calibre (SimCLR) with labels, two networks against FedAvg-FT, as many images, novel "
        "clients: ahead with 40 labels; behind with 400 labels (the means cross between 40 "
        "and 400)." in text
    )
    assert (
        "- FedAvg-FT, as many images against FedAvg-FT, trained clients: ahead with 400 labels; "
        "not told apart with 40 labels" in text
    )


def test_a_part_of_the_runs_is_concluded_too():
    some = RECIPE.experiments("cpu", [0])[:1]
    text = RECIPE.conclude(made_up(some, lambda e: 0.5), "cpu").text
    assert "40 labels" in text
    assert "400 labels" not in text
