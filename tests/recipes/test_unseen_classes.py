from calibre.data.formats.cifar import CIFAR10
from calibre.recipes import all_recipes
from calibre.recipes.unseen_classes import TRIPLES, complete_rows
from tests.recipes.made_up import made_up

RECIPE = all_recipes.find("novel-classes")


def test_triples_rotate_over_classes_that_exist():
    names = [name for triple in TRIPLES for name in triple]
    assert len(set(names)) == 9
    assert set(names) <= set(CIFAR10)
    made = RECIPE.experiments("cpu", [0, 1])
    assert len({e.hash() for e in made}) == len(made) == 2 * 3 * 10
    assert {e.federation.novel_classes for e in made} == set(TRIPLES)
    assert all(e.personal.clients == "novel" and e.personal.head == "solved" for e in made)


def test_every_triple_and_all_of_them_over_seeds():
    def accuracy(e):
        level = {"calibre": 0.7, "fedavg": 0.5}.get(e.method.name.removesuffix("-ft"), 0.6)
        return level + 0.01 * TRIPLES.index(e.federation.novel_classes)

    text = RECIPE.conclude(made_up(RECIPE.experiments("cpu", [0, 1]), accuracy), "cpu").text
    (line,) = [line for line in text.splitlines() if line.startswith("| FedAvg-FT |")]
    # the novel clients 20 to 29 add 2.45 points on average, the worst tenth 2.0
    assert line.startswith("| FedAvg-FT | 52.45 ± 0.00 | 53.45 ± 0.00 | 54.45 ± 0.00 | 53.45 ± ")
    assert "**Calibre (SimCLR) is ahead of FedAvg-FT** on novel clients by 20.00" in text
    # the triples of a seed are one measurement: 60 pairs of clients, two seeds
    runs = made_up(RECIPE.experiments("cpu", [0, 1]), accuracy)
    (row,) = [row for row in complete_rows(runs) if row.label == "FedAvg-FT"]
    assert [len(entry.accuracies("novel")) for entry in row.entries] == [30, 30]
    part = RECIPE.conclude(made_up(RECIPE.experiments("cpu", [0])[:3], accuracy), "cpu").text
    assert part.count("\n| ") >= 3
