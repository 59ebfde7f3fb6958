"""The project's own comparisons: fair by construction, concluded in words."""

import pytest

from calibre.finished.again import training_of
from calibre.recipes import all_recipes, campaign
from tests.recipes.made_up import made_up


def test_everybody_is_on_the_same_federations_with_the_same_rounds_and_heads():
    for name in ("main-comparison", "objectives", "larger-scale"):
        made = all_recipes.find(name).experiments("cpu", [0, 1])
        assert len({e.hash() for e in made}) == len(made)
        assert len({e.training for e in made}) == 1
        assert len({e.network for e in made}) == 1
        for scheme in campaign.SCHEMES:
            own = {e.federation for e in made if e.federation.scheme == scheme}
            assert len(own) <= 1
        assert all(e.personal.floors == () for e in made)
        assert {e.personal.head for e in made} <= {"solved", "paper"}


def test_the_paper_s_heads_cost_no_training():
    made = all_recipes.find("main-comparison").experiments("cpu", [0])
    solved = {training_of(e) for e in made if e.personal.head == "solved"}
    paper = {training_of(e) for e in made if e.personal.head == "paper"}
    assert paper < solved
    assert len(solved) == 2 * len(campaign.METHODS)
    labels = {e.method.label for e in made if e.personal.head == "paper"}
    assert {"Calibre (SimCLR)", "FedAvg-FT", "untrained encoder"} <= labels
    assert not {"Ditto", "majority class", "own pixels"} & labels  # theirs are no such heads


def test_a_table_of_both_heads_and_the_tests_in_words():
    def accuracy(e):
        with_labels = e.method.label.endswith("with labels")
        level = {"calibre": 0.6, "pfl-ssl": 0.5}.get(e.method.name, 0.4)
        return level + 0.1 * with_labels - 0.05 * (e.personal.head == "paper") + 0.01 * e.seed

    recipe = all_recipes.find("main-comparison")
    found = recipe.conclude(made_up(recipe.experiments("cpu", [0, 1, 2]), accuracy), "cpu")
    lines = found.text.splitlines()
    best = next(line for line in lines if line.startswith("| Calibre (SimCLR) with labels"))
    # the mean of 0.70, 0.71 and 0.72, plus that of 0 to 0.019 by thousandths; 4.303 * 0.01 / 3^0.5
    assert best.startswith("| Calibre (SimCLR) with labels | 71.95 ± 2.48 |")
    assert "| 66.95 ± 2.48 |" in best  # by the paper's heads
    assert best.endswith("| 30 |")  # 240,000 images by 20 clients of 400
    assert "- **Calibre (SimCLR) is ahead of pFL-SimCLR** on trained clients by 10.00" in found.text
    # 60 and 70 against 40, in every seed, by both kinds of heads
    both = "| **reproduced** (+20.00 ± 0.00 points) | **reproduced** (+30.00 ± 0.00 points) "
    (c5,) = [line for line in lines if line.startswith("| C5: ") and both in line]
    assert c5.endswith(f"above FedAvg-FT's {both}{both}|")
    assert set(found.pictures) == {"dirichlet", "quantity"}
    assert found.pictures["dirichlet"]().axes


def test_what_makes_no_difference_is_said_so():
    recipe = all_recipes.find("objectives")
    found = recipe.conclude(made_up(recipe.experiments("cpu", [0]), lambda e: 0.5), "cpu")
    assert "Calibre (BYOL) and pFL-BYOL are not told apart on novel clients" in found.text
    assert "is ahead" not in found.text
    assert "ahead in 0 of 12 comparisons, behind in 0" in found.text


def test_where_calibration_gains_and_where_it_loses():
    def accuracy(e):
        kind = e.method.objective.name
        gain = {"byol": 0.1, "swav": -0.1}.get(kind, 0)
        return 0.5 + gain * (e.method.name == "calibre")

    recipe = all_recipes.find("objectives")
    found = recipe.conclude(made_up(recipe.experiments("cpu", [0, 1]), accuracy), "cpu")
    assert "ahead in 2 of 12 comparisons, behind in 2" in found.text


def test_objectives_are_told_apart_by_the_encoder_alone_too():
    """Calibration that gains in the encoder, and nothing beside patches and pixels."""

    def accuracy(e):
        alone = e.personal.features == "encoder"
        return 0.5 + 0.1 * (e.method.name == "calibre") * alone

    recipe = all_recipes.find("objectives")
    made = recipe.experiments("cpu", [0, 1])
    assert len({training_of(e) for e in made}) == len(made) / 2  # these heads cost no training
    text = recipe.conclude(made_up(made, accuracy), "cpu").text
    _, beside, alone = text.split("\n\nBy heads on ")
    assert beside.startswith("encoder, patches and pixels:")
    assert "ahead in 0 of 12" in beside
    assert alone.startswith("the encoder alone:")
    assert "ahead in 12 of 12" in alone
    (line,) = [line for line in text.splitlines() if line.startswith("| Calibre (BYOL) |")]
    columns = text.splitlines()[0].split(" | ")
    at = columns.index("by the encoder alone: trained")
    assert line.split(" | ")[at] == "60.95 ± 0.00"  # 60 %, and 0.95 points that the clients add
    assert line.split(" | ")[1] == "50.95 ± 0.00"


def test_what_seeds_do_not_agree_on_is_not_told_apart():
    """Every client of two seeds gains, but of one seed nine times as much as of the other."""

    def accuracy(e):
        return 0.5 + (0.09 if e.seed else 0.01) * (e.method.name == "calibre")

    recipe = all_recipes.find("objectives")
    found = recipe.conclude(made_up(recipe.experiments("cpu", [0, 1]), accuracy), "cpu")
    assert "ahead in 0 of 12 comparisons, behind in 0" in found.text
    assert (
        "not told apart on trained clients (+5.00 ± 50.82 points, p < 0.001, on these clients, but "
        "other seeds may say otherwise)" in found.text
    )


@pytest.mark.parametrize("name", ["main-comparison", "objectives", "larger-scale"])
def test_a_part_of_the_runs_is_concluded_too(name):
    recipe = all_recipes.find(name)
    some = recipe.experiments("cpu", [0])[:1]
    assert "| method |" in recipe.conclude(made_up(some, lambda e: 0.5), "cpu").text


def test_at_the_larger_scale_two_networks_are_told_apart_from_labels_alone():
    recipe = all_recipes.find("larger-scale")

    def accuracy(e):
        labels = e.method.model_dump().get("labels")
        return 0.6 if labels and labels["second"] else 0.5

    text = recipe.conclude(made_up(recipe.experiments("cpu", [0]), accuracy), "cpu").text
    assert "is ahead" not in text  # of one seed
    text = recipe.conclude(made_up(recipe.experiments("cpu", [0, 1]), accuracy), "cpu").text
    for other in ("FedAvg-FT", "FedPer"):
        ahead = f"**Calibre (SimCLR) with labels, two networks is ahead of {other}** on novel"
        assert ahead in text
    assert "Calibre (SimCLR) with labels and FedPer are not told apart on novel" in text


def test_what_is_far_below_all_others_is_in_the_table_and_not_in_the_picture():
    recipe = all_recipes.find("main-comparison")
    found = recipe.conclude(made_up(recipe.experiments("cpu", [0]), lambda e: 0.5), "cpu")
    words = [
        text.get_text() for panel in found.pictures["dirichlet"]().axes for text in panel.texts
    ]
    assert "FedPer" in words
    assert "majority class" not in words
    assert "| majority class |" in found.text
