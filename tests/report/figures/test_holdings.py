import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from calibre.data.federation import Federation
from calibre.data.parts import Parts
from calibre.report.figures.holdings import (
    TOTALS,
    by_main_class,
    columns,
    compose,
    draw,
    means_in_order,
    totals,
)


def make(counts: np.ndarray, training: int, classes: tuple[str, ...]) -> Federation:
    nothing = Parts.of([], [], len(counts))
    return Federation("f00d", classes, training, (), nothing, nothing, nothing, counts, counts, {})


def naive_columns(counts: np.ndarray, per_column: int) -> list[list[float]]:
    groups = [counts[i : i + per_column] for i in range(0, len(counts), per_column)]
    return [[sum(row[k] for row in g) / len(g) for k in range(counts.shape[1])] for g in groups]


def test_clients_in_order_stay_as_they_are():
    counts = np.array([[0, 5], [7, 1], [3, 3]])
    assert columns(counts, True, 1).tolist() == counts.tolist()


@pytest.mark.parametrize("per_column", [1, 2, 3, 7])
def test_neighbours_share_a_column_and_keep_the_mean(per_column):
    counts = np.random.default_rng(0).integers(0, 9, (7, 4))
    np.testing.assert_allclose(columns(counts, True, per_column), naive_columns(counts, per_column))


def test_many_clients_come_by_their_main_class_then_its_share_then_the_second():
    counts = np.array([[0, 4, 6], [5, 0, 5], [9, 1, 0], [1, 8, 1], [5, 5, 0]])
    assert columns(counts, False, 1).tolist() == [
        [9, 1, 0],
        [5, 5, 0],
        [5, 0, 5],
        [1, 8, 1],
        [0, 4, 6],
    ]


@pytest.mark.parametrize(("clients", "novel", "classes"), [(6, 3, 4), (3000, 40, 1), (5, 0, 120)])
def test_pictures_are_drawn(tmp_path, clients, novel, classes):
    counts = np.random.default_rng(0).integers(1, 9, (clients + novel, classes))
    names = ("$5 to $10", "<&>", "a name that is far too long for a label", "ordinary")
    federation = make(counts, clients, (names * classes)[:classes])
    png, svg = draw(federation, tmp_path / "new" / "fed.v1")
    assert (png.name, svg.name) == ("fed.v1.png", "fed.v1.svg")
    with Image.open(png) as picture:
        assert picture.width > picture.height / 2
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 5
    assert ET.parse(svg).getroot().tag.endswith("svg")


def test_the_picture_shows_the_counts(tmp_path):
    dark = make(np.array([[9, 1], [1, 9]]), 2, ("a", "b"))
    light = make(np.array([[1, 9], [9, 1]]), 2, ("a", "b"))
    pixels = []
    for name, federation in (("dark", dark), ("light", light)):
        with Image.open(draw(federation, tmp_path / name)[0]) as picture:
            gray = np.asarray(picture.convert("L"), float)
        pixels.append(gray[gray.shape[0] // 4, gray.shape[1] // 4])  # client 0, class a
    assert pixels[0] < pixels[1] - 50
    again = draw(light, tmp_path / "again")[1]
    assert again.read_bytes() == (tmp_path / "light.svg").read_bytes()


def test_names_stand_below_and_what_clients_hold_in_all():
    counts = np.array([[3, 1], [0, 4], [2, 2]])
    parts = [Parts.of(np.repeat(range(3), sizes), range(sum(sizes)), 3)
             for sizes in ([4, 3, 4], [0, 7, 1], [2, 2, 5])]  # fmt: skip
    names = ("hospital-2", "praxis", "$5 or $6")
    federation = Federation("f00d", ("a", "b"), 2, names, *parts, counts, counts, {})
    assert totals(federation).tolist() == [[4, 0, 2], [3, 7, 2], [4, 1, 5]]
    figure = compose(federation)
    trained, novel, below, below_novel, _ = figure.axes
    shown = [[text.get_text() for text in panel.get_xticklabels()] for panel in figure.axes]
    assert (shown[2], shown[3]) == (["hospital-2", "praxis"], ["$5 or $6"])
    assert not below_novel.get_xticklabels()[0].get_parse_math()
    assert [text.get_text() for text in below.get_yticklabels()] == [*TOTALS]
    assert [text.get_text() for text in below.texts] == ["4", "2", "3", "7", "2"]  # no empty cell
    assert trained.get_title() == "2 training clients"
    assert novel.get_title() == "1 novel client"


def test_of_many_clients_totals_stand_in_the_columns_of_their_classes():
    counts = np.array([[0, 4], [5, 1], [1, 3], [9, 0]])
    order = by_main_class(counts)
    sizes = counts.sum(1, keepdims=True)
    by_class = columns(counts, False, 2).sum(1)
    assert means_in_order(sizes, order, 2)[:, 0].tolist() == by_class.tolist()
