"""What the README leads with."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from calibre.recipes import all_recipes
from calibre.recipes.gathered import Gathered
from calibre.recipes.summary import RESTS_ON, in_all, summary
from tests.recipes.made_up import made_up


def gathered(name, accuracy, seeds):
    recipe = all_recipes.find(name)
    runs = made_up(recipe.experiments("cpu", range(seeds)), accuracy) if seeds else []
    return Gathered(recipe, tuple(SimpleNamespace(run=run) for run in runs), (), seeds, 0)


@pytest.fixture
def found():
    return lambda accuracy, seeds: {name: gathered(name, accuracy, seeds) for name in RESTS_ON}


def test_of_nothing_only_the_commands(found):
    text = summary(found(None, 0)).text
    assert text.startswith("Not run yet: `calibre-fl reproduce label-budget --seeds 3`, ")
    assert "|" not in text


def test_the_best_of_every_setting_and_who_is_level_with_it(found):
    def accuracy(e):
        labels = e.personal.labels or e.federation.label_count or 400
        if e.method.label == "FedAvg-FT":
            return 0.8005 if labels > 20 else 0.4
        if e.method.label == "FedPer":
            return accuracy(e.model_copy(update={"method": fedavg}))
        return 0.6005 if e.method.label == "Calibre (SimCLR)" else 0.3

    fedavg = SimpleNamespace(label="FedAvg-FT")
    made = summary(found(accuracy, 2))
    lines = {line.split(" | ")[0]: line for line in made.text.splitlines() if line[:1] == "|"}
    few, many = lines["| 5"].split(" | "), lines["| 80"].split(" | ")
    assert few[1:3] == ["20 × 400, Dir(0.3), cnn of width 16", "11"]
    # 60 %, and 0.95 points that the clients add
    assert (
        few[3] == "**Calibre (SimCLR)**, 61.0 %. Not told apart: Calibre (SimCLR), typical labels"
    )
    assert many[3] == "**FedAvg-FT**, 81.0 %. Not told apart: FedPer"
    assert many[4].startswith("**FedAvg-FT**, 82.5 %")
    assert "new classes | 10 |  | **FedAvg-FT**" in made.text
    assert "resnet18 of width 16" in made.text
    assert (
        "| Calibre's mean over clients that trained is 2.97 points above FedAvg-FT's, class mixes "
        "from Dir(0.3) | not reproduced in 4 of 4 |"
    ) in made.text.splitlines()
    assert (
        "| L_n lowers the mean of SwAV and SMoG | not reproduced in 3 of 3 |"
        in made.text.splitlines()
    )
    assert made.pictures["curve"]().axes


def test_what_is_missing_is_said_and_claims_without_their_methods_are_not_told(found):
    """Of the main comparison, Calibre alone."""
    held = found(lambda e: 0.5, 1)
    main = held["main-comparison"]
    ours = tuple(e for e in main.entries if e.run.label.startswith("Calibre"))
    made = summary({**held, "main-comparison": replace(main, entries=ours, missing=57)})
    assert "`calibre-fl reproduce main-comparison --seeds 3`, 57 runs" in made.text
    assert "2.97 points above" not in made.text


def test_verdicts_that_differ_are_counted_the_most_frequent_first():
    measured = ["open", "reproduced", "not comparable at this scale", "open", "not reproduced"]
    assert in_all(measured) == "open in 2 of 4, reproduced in 1 of 4, not reproduced in 1 of 4"
    assert in_all(["not comparable at this scale"]) == ""


def test_a_method_is_ranked_by_each_kind_of_head(found):
    def accuracy(e):
        return 0.5 + 0.1 * (e.method.label == "FedPer" and e.personal.head == "paper")

    text = summary(found(accuracy, 2)).text
    (line,) = [line for line in text.splitlines() if line.startswith("| all | 20 × 400, Dir(0.3)")]
    assert line.split(" | ")[3].startswith("**FedPer, the paper's head**, 60.9")
