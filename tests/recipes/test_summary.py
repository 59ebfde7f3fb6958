"""What the README leads with."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from calibre.recipes import all_recipes
from calibre.recipes.gathered import Gathered
from calibre.recipes.summary import RESTS_ON, summary
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
    lines = {line.split(" | ")[0]: line.split(" | ") for line in made.text.splitlines()}
    few, many = lines["| 5"], lines["| 80"]
    # 60 %, and 0.95 points that the clients add; typical labels do as well
    assert few[1:4] == ["**Calibre (SimCLR)**, 61.0 %", "41.0 %", "1 of 11"]
    assert many[1:4] == ["**FedAvg-FT**, 81.0 %", "81.0 %", "1 of 11"]  # FedPer
    assert many[4].startswith("**FedAvg-FT**, 82.5 %")
    assert few[7] == "240, 240 |"
    assert lines["| all 200, classes that nobody trained on"][4].startswith("**FedAvg-FT**")
    assert "| all 500, resnet18 of width 16" in lines
    assert "- Calibre (SimCLR) with labels, two networks against FedAvg-FT, trained" in made.text
    assert lines[
        "| Calibre's mean over clients that trained is 2.97 points above FedAvg-FT's, class mixes "
        "from Dir(0.3)"
    ][1:] == ["not reproduced (-20.00 ± 0.00 points)", "not reproduced (-50.05 ± 0.00 points) |"]
    assert lines["| L_n lowers the mean of SwAV and SMoG"][1].startswith("open (0 of 4 signs")
    assert made.pictures["curve"]().axes


def test_what_is_missing_is_said_and_claims_without_their_methods_are_not_told(found):
    """Of the main comparison, Calibre alone."""
    held = found(lambda e: 0.5, 1)
    main = held["main-comparison"]
    ours = tuple(e for e in main.entries if e.run.label.startswith("Calibre"))
    made = summary({**held, "main-comparison": replace(main, entries=ours, missing=57)})
    assert "`calibre-fl reproduce main-comparison --seeds 3`, 57 runs" in made.text
    assert "2.97 points above" not in made.text


def test_a_method_is_ranked_by_each_kind_of_head(found):
    def accuracy(e):
        return 0.5 + 0.1 * (e.method.label == "FedPer" and e.personal.head == "paper")

    text = summary(found(accuracy, 2)).text
    (line,) = [line for line in text.splitlines() if line.startswith("| all | ")]
    assert line.split(" | ")[1].startswith("**FedPer, the paper's head**, 60.9")


def test_one_seed_tells_nothing_apart(found):
    text = summary(found(lambda e: 0.5 + 0.2 * (e.method.label == "FedPer"), 1)).text
    (line,) = [line for line in text.splitlines() if line.startswith("| 5 | ")]
    assert line.split(" | ")[1:4] == ["**FedPer**, 71.0 %", "50.9 %", "11 of 11"]
