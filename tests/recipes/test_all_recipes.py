import json

import numpy as np
import pytest

from calibre.data.federation import build
from calibre.data.pool import Pool
from calibre.engine import rounds
from calibre.errors import UserError
from calibre.recipes import all_recipes, reproduce
from calibre.recipes.claims import OURS, Claim
from calibre.recipes.figures34 import BEYOND_THE_PAPER, METHODS
from calibre.recipes.rates import RATES
from calibre.recipes.recipe import Conclusion, Recipe
from calibre.recipes.scales import experiment, method
from tests.report.in_memory import metrics

OURS_ALONE = (
    "learning-rates", "digits", "main-comparison", "objectives", "larger-scale", "label-budget",
    "labels-at-novel", "novel-classes", "calibration-forms", "equal-images",
)  # fmt: skip
PAPER = {name: r for name, r in all_recipes.recipes().items() if name not in OURS_ALONE}


@pytest.mark.parametrize("name", sorted(PAPER.keys() - {"few-labels-cifar10"}))
def test_the_paper_s_setting_exactly(name):
    made = PAPER[name].experiments("paper", [0])
    for e in made:
        assert (e.federation.clients, e.federation.alpha) == (100, 0.3)
        assert e.federation.novel == {"quantity": 0, "dirichlet": 50}[e.federation.scheme]
        assert (e.training.rounds, e.training.clients_per_round, e.training.epochs) == (200, 10, 3)
        assert (e.network.encoder, e.network.width) == ("resnet18", 64)
        assert (e.personal.epochs, e.personal.lr, e.personal.batch) == (10, 0.05, 32)
        values = e.method.model_dump()
        if values.get("objective"):
            assert values["sgd"]["batch"] == 256
            steps = values["sgd"]["lr"], values["sgd"]["weight_decay"]
            assert steps == {
                "simclr": (0.05, 5e-4), "byol": (0.05, 5e-4), "simsiam": (0.03, 5e-4),
                "moco": (0.03, 1e-4), "swav": (0.05, 1e-6), "smog": (0.05, 1e-6),
            }[values["objective"]["name"]]  # fmt: skip
        elif "sgd" in values:
            assert values["sgd"]["batch"] == 32
        if values["name"] == "calibre" and name != "table-1":
            assert values["prototypes"]["alpha_p"] == values["prototypes"]["alpha_n"] == 0.3
        if e.federation.scheme == "quantity":
            assert e.federation.classes == {"cifar10": 2, "cifar100": 5, "stl10": 2}[e.data.source]
    assert len({e.hash() for e in made}) == len(made)


@pytest.mark.parametrize("scale", ["cpu", "paper"])
@pytest.mark.parametrize(
    ("source", "classes", "train", "test", "unlabelled"),
    [
        ("cifar10", 10, 5000, 1000, 0),
        ("cifar100", 100, 500, 100, 0),
        ("stl10", 10, 500, 800, 100_000),
    ],
)
def test_the_data_sets_have_enough_images(scale, source, classes, train, test, unlabelled):
    parts = [np.arange(classes * each) % classes for each in (train, test)]
    labels = np.concatenate([*parts, np.full(unlabelled, -1)])
    ends = np.cumsum([classes * train, classes * test, unlabelled]).tolist()
    pool = Pool(
        name=source,
        images=np.zeros((len(labels), 1, 1, 1), np.uint8),
        labels=labels,
        classes=tuple(map(str, range(classes))),
        train=range(ends[0]),
        test=range(ends[0], ends[1]),
        unlabelled=range(ends[1], ends[2]),
        fingerprint="",
    )
    for scheme in ("quantity", "dirichlet"):
        made = experiment(source, scheme, scale, {"name": "fedavg"}, 0)
        federation = build(pool, made.federation, 0)
        assert (federation.labelled.sizes == made.federation.samples).all()
        if (scale, source, scheme) == ("paper", "stl10", "quantity"):
            assert (federation.unlabelled.sizes == 1000).all()


def test_every_experiment_of_a_recipe_is_on_the_same_federation():
    for recipe in PAPER.values():
        for scale in ("cpu", "paper"):
            made = recipe.experiments(scale, [0])
            assert len({(e.data, e.federation, e.training, e.network) for e in made}) == 1


def test_few_labels_are_few_in_one_recipe_alone():
    for name, recipe in PAPER.items():
        for e in recipe.experiments("cpu", [0]):
            few = name == "few-labels-cifar10"
            assert e.federation.labels == (5 if few else None)
            assert e.personal.epochs == (50 if few else 10)


def test_rates_are_chosen_without_test_images_or_novel_clients():
    for e in all_recipes.find("learning-rates").experiments("cpu", [0]):
        assert e.federation.score_on == "validation"


def test_every_method_of_a_recipe_has_a_rate_that_was_chosen():
    compared = {n for n in (*METHODS, *BEYOND_THE_PAPER) if n != "untrained"}
    for name in compared:
        method_name, _, objective = name.partition("/")
        assert RATES.get(method_name) or RATES.get(objective)
        made = experiment("cifar10", "quantity", "cpu", method(name, "cpu"), 0)
        assert rates_of(made) == {RATES.get(method_name) or RATES[objective]}


def rates_of(made):
    values = made.method.model_dump()
    return {values["alpha"], values["beta"]} if "beta" in values else {values["sgd"]["lr"]}


def test_a_method_s_learning_rate_by_its_own_name():
    assert method("perfedavg", "paper", alpha=0.5)["alpha"] == 0.5
    made = experiment("cifar10", "quantity", "cpu", method("calibre/byol", "cpu"), 3)
    assert (made.method.objective.name, made.method.sgd.batch, made.seed) == ("byol", 64, 3)
    assert made.method.prototypes.clusters == 5


def test_what_is_absent_is_named_with_the_command_that_gets_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRE_DATA", str(tmp_path))
    recipe = all_recipes.find("figure-3-stl10")
    with pytest.raises(UserError, match="calibre-fl data download stl10"):
        reproduce.announcement(recipe, recipe.experiments("cpu", [0]), tmp_path)


def test_a_recipe_is_run_once_and_concluded(tiny, tmp_path, monkeypatch):
    recipe = Recipe(
        "two",
        "Two runs",
        lambda scale, seeds: [tiny("training.rounds=1", f"seed={seed}") for seed in seeds],
        lambda results, scale: Conclusion(json.dumps([r.metrics.seed for r in results])),
    )
    made = recipe.experiments("cpu", [0, 1])
    assert "2 runs, 0 finished\nthe others should take about " in reproduce.announcement(
        recipe, made, tmp_path
    )
    assert reproduce.reproduce(recipe, "cpu", made, tmp_path, lambda event: None) == "[0, 1]"
    assert (tmp_path / "two-cpu" / "result.md").read_text() == "[0, 1]\n"
    assert reproduce.announcement(recipe, made, tmp_path) == "Two runs: 2 runs, 2 finished"
    monkeypatch.setattr(rounds, "run", lambda *a: pytest.fail("it was finished"))
    assert reproduce.reproduce(recipe, "cpu", made, tmp_path, lambda event: None) == "[0, 1]"


def test_unknown_names_and_scales():
    with pytest.raises(UserError, match="did you mean 'table-1'"):
        all_recipes.find("table-i")
    with pytest.raises(UserError, match="known: cpu, paper"):
        all_recipes.scale("gpu")


def runs(**by_method):
    """Metrics of two seeds: method -> (mean, variance) of each."""
    return {
        name: [metrics(train={"clients": 9, "mean": m, "variance": v}) for m, v in values]
        for name, values in by_method.items()
    }


def test_claims_are_judged_by_the_mean_gap_over_seeds():
    """Of two gaps, Student's t is 12.706 and the standard error half their distance."""
    seen = runs(**{OURS: [(0.8, 0.02), (0.6, 0.02)], "A": [(0.7, 0.01), (0.51, 0.01)]})
    assert Claim("x", "A", "train", "mean", 1.0).judge(seen) == (
        "reproduced", "+9.50 ± 6.35 points",  # +10 and +9 points
    )  # fmt: skip
    assert Claim("x", "A", "train", "mean", None, below=True).judge(seen)[0] == "not reproduced"
    told = Claim("x", "A", "train", "variance", 0.0031).judge(seen)
    assert told == ("not reproduced", "+0.0100 ± 0.0000")
    assert Claim("x", "A", "train", "variance", 0.02).judge(seen)[0] == "reproduced"
    told = Claim("x", "A", "train", "variance", -20.0, relative=True).judge(seen)
    assert told == ("not reproduced", "+100.00 ± 0.00 %")
    missing = Claim("x", "C", "train", "mean", 1.0).judge(seen)
    assert missing[0] == "not comparable at this scale"


def test_what_other_seeds_may_decide_is_open():
    seen = runs(**{OURS: [(0.8, 0.02), (0.6, 0.01)], "A": [(0.7, 0.01), (0.65, 0.01)]})
    assert Claim("x", "A", "train", "mean", 1.0).judge(seen) == (
        "open", "+2.50 ± 95.30 points",  # +10 and -5 points
    )  # fmt: skip
    assert Claim("x", "A", "train", "variance", 0.0031).judge(seen)[0] == "open"


def test_the_best_other_method_is_the_best_over_all_seeds_and_not_another_calibre():
    seen = runs(**{
        OURS: [(0.8, 0.02)] * 2, "A": [(0.7, 0.01), (0.5, 0.01)], "B": [(0.65, 0.01)] * 2,
        "Calibre (BYOL)": [(0.9, 0.01)] * 2,
    })  # fmt: skip
    told = Claim("x", None, "train", "mean", 1.0).judge(seen)
    assert told == ("reproduced", "+15.00 ± 0.00 points")  # not the mean of +10 and +15


def test_a_claim_that_a_method_falls_below_another():
    seen = runs(**{"pFL-SimCLR": [(0.6, 0.02), (0.61, 0.01)], "local only": [(0.7, 0.01)] * 2})
    claim = Claim("q6", "local only", "train", "mean", None, of="pFL-SimCLR", below=True)
    assert claim.judge(seen) == ("reproduced", "-9.50 ± 6.35 points")
    assert claim.text == "q6: pFL-SimCLR's mean over clients that trained is below local only's"
    seen |= runs(**{"local only": [(0.5, 0.01)] * 2})
    assert claim.judge(seen)[0] == "not reproduced"


def test_claims_say_in_words_what_the_paper_says():
    assert Claim("C1", None, "train", "mean", 1.71).text == (
        "C1: Calibre's mean over clients that trained is 1.71 points above the best other method's"
    )
    assert Claim("C10", "A", "train", "variance", -23.8, relative=True).text == (
        "C10: Calibre's variance over clients that trained is 23.8 % below A's"
    )
    assert Claim("C13", "A", "novel", "variance", -0.01).text == (
        "C13: Calibre's variance over novel clients is 0.01 below A's"
    )


def test_only_the_methods_that_are_asked_for():
    every = all_recipes.find("figure-3-cifar10").experiments("cpu", [0, 1])
    some = reproduce.only(["fedrep", "calibre/simclr"], every)
    assert [(e.choice[0], e.seed) for e in some] == [
        ("calibre", 0), ("fedrep", 0), ("calibre", 1), ("fedrep", 1),
    ]  # fmt: skip
    assert len(reproduce.only(["calibre"], every)) == 8  # with any objective
    assert reproduce.only([], every) == every
    with pytest.raises(UserError, match="did you mean 'fedrep'"):
        reproduce.only(["fedrap"], every)
