from calibre.recipes import all_recipes
from calibre.recipes.learning_rates import GRIDS
from tests.recipes.made_up import made_up

RECIPE = all_recipes.find("learning-rates")


def conclude(accuracy):
    made = [e for e in RECIPE.experiments("cpu", [0]) if e.method.name in ("fedper", "pfl-ssl")]
    return RECIPE.conclude(made_up(made, accuracy), "cpu").text


def test_rates_are_chosen_on_validation_images_over_every_grid():
    made = RECIPE.experiments("cpu", [0])
    assert len({e.hash() for e in made}) == len(made) == sum(map(len, GRIDS.values()))
    assert all(e.federation.score_on == "validation" for e in made)


def test_a_better_rate_than_the_one_in_use_is_named():
    text = conclude(lambda e: 0.6 if e.method.sgd.lr == 0.1 else 0.5)
    (line,) = [line for line in text.splitlines() if line.startswith("| FedPer")]
    assert line == "| FedPer |  | 50.9 | 50.9 | 50.9 | 50.9 | **60.9**\\* |  |  | 0.03 |"
    assert "**FedPer at 0.1 is ahead of FedPer at 0.03** by 10.00" in text


def test_the_rate_in_use_stays_where_no_other_is_told_apart():
    assert conclude(lambda e: 0.5).endswith("Every method uses its best rate.")  # none is better
    text = conclude(lambda e: 0.5 + 1e-13 * (e.method.sgd.lr == 0.1))  # too little to be counted
    assert "Other rates than those in use were best for" in text
    assert "none of them is told apart" in text
