"""What labels are worth: who is measured with which, and who is ahead, in words."""

import pytest

from calibre.finished.again import training_of
from calibre.recipes import all_recipes
from calibre.recipes.label_budget import budget_of, series_of
from tests.recipes.made_up import made_up

RECIPE = all_recipes.find("label-budget")


def test_one_training_serves_all_budgets_where_it_needs_no_label():
    made = RECIPE.experiments("cpu", [0])
    assert len({e.hash() for e in made}) == len(made)
    for e in made:
        if e.personal.labels:  # few labels for its models: none may have been used before
            assert not (e.method.federated and e.method.uses_labels)
            assert e.method.label != "local only"
            assert e.federation.label_count is None
    free = [e for e in made if e.method.label == "Calibre (SimCLR)"]
    assert len({training_of(e) for e in free}) == 1
    assert len(free) == 5 * 2 + 1  # both choices of each budget, and all
    needing = [e for e in made if e.method.label == "Calibre (SimCLR) with labels"]
    assert len({training_of(e) for e in needing}) == len(needing) == 6
    assert all(e.federation.label_draw is None for e in needing)  # at random
    main = {e.hash() for e in all_recipes.find("main-comparison").experiments("cpu", [0])}
    whole = [e for e in made if not (e.personal.labels or e.federation.label_count)]
    assert {e.hash() for e in whole} <= main  # runs of the main comparison, not run twice


def test_labels_at_novel_clients_alone():
    for e in all_recipes.find("labels-at-novel").experiments("cpu", [0, 1]):
        assert e.personal.clients == "novel"
        assert not (e.method.federated and e.method.uses_labels)


def accuracy(e):
    """Calibre gains little from labels, FedAvg-FT much: they cross between 20 and 40."""
    labels = e.personal.labels or e.federation.label_count or 400
    steps = [5, 10, 20, 40, 80, 400].index(labels)
    if e.method.name == "calibre":
        return 0.5 + 0.01 * steps + 0.02 * (e.personal.label_choice == "typical")
    return 0.4005 + 0.055 * steps if e.method.label == "FedAvg-FT" else 0.3


def test_who_is_ahead_with_how_many_labels_and_where_the_means_cross():
    found = RECIPE.conclude(made_up(RECIPE.experiments("cpu", [0, 1, 2]), accuracy), "cpu")
    assert (
        "- Calibre (SimCLR), typical labels against FedAvg-FT, trained clients: ahead with 5, 10 "
        "and 20 labels; behind with 40, 80 and 400 labels (the means cross between 20 and 40)."
    ) in found.text
    assert (
        "against FedPer, novel clients: ahead with 5, 10, 20, 40, 80 and 400 labels." in found.text
    )
    assert (
        "typical labels against Calibre (SimCLR), trained clients: ahead with 5, 10, 20, 40 and 80 "
        "labels.\n"
    ) in found.text  # with all labels, both are the same runs
    lines = [line for line in found.text.splitlines() if line.startswith("| FedAvg-FT |")]
    cells = lines[0].split(" | ")  # trained clients, mean: the clients add 0.95 points
    assert [cell.split(" ")[0] for cell in cells[1:]] == [
        "41.0", "46.5", "52.0", "57.5", "63.0", "68.5",
    ]  # fmt: skip


def test_all_labels_are_the_end_of_both_choices():
    runs = made_up(RECIPE.experiments("cpu", [0]), accuracy)
    series = series_of(runs)
    typical, drawn = series["Calibre (SimCLR), typical labels"], series["Calibre (SimCLR)"]
    assert list(typical) == list(drawn) == [5, 10, 20, 40, 80, 400]
    assert typical[400].entries == drawn[400].entries
    assert typical[5].entries != drawn[5].entries


def test_the_curve_is_drawn():
    found = RECIPE.conclude(made_up(RECIPE.experiments("cpu", [0, 1]), accuracy), "cpu")
    panels = found.pictures["curve"]().axes
    assert len(panels) == 6
    lines = panels[0].get_lines()
    assert len(lines) == 12  # as many as there are series
    assert lines[0].get_xdata().tolist() == [5, 10, 20, 40, 80, 400]


@pytest.mark.parametrize("name", ["label-budget", "labels-at-novel"])
def test_some_of_the_runs_are_concluded_too(name):
    recipe = all_recipes.find(name)
    runs = made_up(recipe.experiments("cpu", [0]), lambda e: 0.5)
    one = budget_of(runs[0])
    alone = recipe.conclude([run for run in runs if budget_of(run) == one], "cpu")
    assert "no curve" in alone.text
    assert not alone.pictures
    last = recipe.conclude([runs[0], runs[-1]], "cpu")
    assert f"{one} labels" in last.text
