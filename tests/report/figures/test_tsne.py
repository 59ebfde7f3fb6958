from dataclasses import replace

import numpy as np
import pytest

from calibre.report.figures.style import save
from calibre.report.figures.tsne import tsne, views
from calibre.report.representations import Representations, clusters
from tests.report.figures.pictures import check, texts


def representations(label="Method", classes=4, clients=3, n=60, seed=0):
    draw = np.random.default_rng(seed)
    labels, owners = np.arange(n) % classes, np.arange(n) % clients
    features = np.eye(classes)[labels] + 0.2 * draw.normal(size=(n, classes))
    names = tuple(f"class {k}" for k in range(classes))
    return Representations(label, features.astype("f4"), labels, owners, names)


def test_one_method_is_shown_by_class_and_by_client_with_its_measures(tmp_path):
    method = representations()
    figure = tsne(views([method]))
    check(figure)
    by_class, by_client = figure.axes
    for panel, groups in ((by_class, method.classes), (by_client, method.clients)):
        found = clusters(method.features, groups)
        assert panel.get_xlabel() == (
            f"silhouette {found.silhouette:.2f}\nNMI {found.nmi:.2f}, 5-NN {found.neighbours:.2f}"
        )
        assert len(panel.collections) == len(np.unique(groups))
        assert sum(len(dots.get_offsets()) for dots in panel.collections) == 60
    one, other = (save(tsne(views([representations()])), tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_clients_are_called_by_their_names():
    named = replace(representations(), client_names={0: "north", 1: "client-1", 2: "south"})
    (panel,) = tsne(views([named], by=("client",))).axes
    assert [text.get_text() for text in panel.get_legend().get_texts()] == [
        "north", "client 1", "south",
    ]  # fmt: skip


@pytest.mark.parametrize(("methods", "by", "shape"), [
    (2, ("class",), (1, 2)), (4, ("class", "client"), (4, 3)), (3, ("client",), (1, 3)),
])  # fmt: skip
def test_several_methods_are_a_grid(methods, by, shape):
    made = [
        representations(f"Calibre (SimCLR), prototypes.alpha_p=0.{i}", seed=i)
        for i in range(methods)
    ]
    figure = tsne(views(made, by))
    check(figure)
    grid = figure.axes[0].get_subplotspec().get_gridspec()
    assert (grid.nrows, grid.ncols) == shape
    drawn = [panel for panel in figure.axes if panel.axison]
    assert len(drawn) == methods * len(by)


def test_the_same_class_looks_the_same_whoever_holds_it():
    some, others = representations(), representations(seed=1)
    keep = others.classes > 0
    others = Representations(
        "B", others.features[keep], others.classes[keep], others.clients[keep], others.class_names
    )
    one, two = tsne(views([some, others], ("class",))).axes
    looks = [
        {c.get_label(): tuple(c.get_facecolor()[0]) for c in panel.collections}
        for panel in (one, two)
    ]
    assert looks[1].items() < looks[0].items()


def test_more_classes_than_a_legend_holds_are_counted():
    figure = tsne(views([representations(classes=30, n=90)], ("class",)))
    check_words = " ".join(text.get_text() for text in texts(figure))
    assert "30 classes" in check_words
    assert "class 3" not in check_words


def test_what_cannot_be_measured_is_a_dash():
    figure = tsne(views([representations(clients=1, n=12)], ("client",)))
    assert "silhouette –" in figure.axes[0].get_xlabel()
