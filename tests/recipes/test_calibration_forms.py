import pytest

from calibre.recipes import all_recipes
from calibre.recipes.calibration_forms import FORMS, PLAIN_LONG
from tests.recipes.made_up import made_up

RECIPE = all_recipes.find("calibration-forms")


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_every_form_is_another_experiment_and_is_known_again(scale):
    made = RECIPE.experiments(scale, [0])
    assert len({e.hash() for e in made}) == len(made) == len(FORMS)
    assert all(e.federation.score_on == "validation" for e in made)
    table = RECIPE.conclude(made_up(made, lambda e: 0.5), scale).text.splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in table[: len(FORMS)]] == list(FORMS)


def test_what_gains_over_none_is_named():
    def accuracy(e):
        return {0.3: 0.6, 3: 0.4}.get(e.method.prototypes.alpha_n, 0.5)

    text = RECIPE.conclude(made_up(RECIPE.experiments("cpu", [0, 1]), accuracy), "cpu").text
    (line,) = [line for line in text.splitlines() if line.startswith("| as in the paper |")]
    assert line.split(" | ")[4] == "10.00 ± 0.00"
    assert (
        "4 gain significantly over none: the two terms alone; as in the paper; as in the paper, "
        "with labels in training; as in the paper, five times the rounds, and 4 lose: ten times as "
        "strong; " in text
    )


def test_nothing_is_said_of_what_was_not_run():
    runs = made_up(RECIPE.experiments("cpu", [0])[:1], lambda e: 0.5)
    assert "| none: pFL-SimCLR | 50.95 ± " in RECIPE.conclude(runs, "cpu").text
    assert RECIPE.conclude(runs, "cpu").text.endswith("Nothing to compare yet.")


def test_forms_with_labels_are_compared_with_labels():
    def accuracy(e):
        return 0.5 + 0.2 * e.method.labels.weight

    text = RECIPE.conclude(made_up(RECIPE.experiments("cpu", [0]), accuracy), "cpu").text
    (line,) = [line for line in text.splitlines() if line.startswith("| anchored by labels |")]
    assert line.split(" | ")[4] == "0.00 ± 0.00"
    assert "0 gain significantly" in text


def test_longer_training_is_compared_with_longer_training():
    def accuracy(e):
        return 0.5 + 0.2 * (e.training.rounds > 30)

    made = RECIPE.experiments("cpu", [0])
    assert [e.training.rounds for e in made][-2:] == [150, 150]
    text = RECIPE.conclude(made_up(made, accuracy), "cpu").text
    (plain,) = [line for line in text.splitlines() if line.startswith(f"| {PLAIN_LONG} |")]
    assert plain.split(" | ")[1].startswith("70.95")
    (line,) = [line for line in text.splitlines() if line.startswith("| as in the paper, five")]
    assert line.split(" | ")[4] == "0.00 ± 0.00"
