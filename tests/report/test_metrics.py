import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from calibre.errors import UserError
from calibre.report.metrics import (
    MEASURES,
    ClientResult,
    read_clients_csv,
    summary,
    write_clients_csv,
)

ROW = ClientResult(
    id=3,
    name="",
    novel=False,
    samples=20,
    unlabelled=480,
    test_samples=100,
    classes=2,
    accuracy=0.1 + 0.2,  # 0.30000000000000004
    floors={"untrained": 1 / 3, "local": 0.5},
)
accuracies = st.floats(0, 1)


def test_evenly_spread_accuracies_in_closed_form() -> None:
    """0, 1/n .. 1 over n + 1 clients: variance (n + 2) / 12n; the worst tenth is 0, 1/n and 2/n."""
    n = 20
    got = summary([i / n for i in range(n + 1)])
    assert got.clients == 21
    assert got.mean == pytest.approx(1 / 2, abs=1e-15)
    assert got.variance == pytest.approx((n + 2) / (12 * n), abs=1e-15)
    assert got.std == pytest.approx(math.sqrt((n + 2) / (12 * n)), abs=1e-15)
    assert got.worst_tenth == pytest.approx(1 / n, abs=1e-15)  # 3 of 21 clients
    assert got.best_tenth == pytest.approx(1 - 1 / n, abs=1e-15)
    assert (got.min, got.max) == (0, 1)


def test_two_kinds_of_clients_in_closed_form() -> None:
    """A share p at 1 and the rest at 0 has mean p and variance p (1 - p)."""
    got = summary([1.0] * 30 + [0.0] * 10)
    assert (got.mean, got.variance) == (0.75, 0.1875)


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (11, 2), (100, 10)])
def test_a_tenth_is_rounded_up(clients: int, worst: int) -> None:
    values = [i / clients for i in range(clients)]
    assert summary(values).worst_tenth == pytest.approx(sum(values[:worst]) / worst)
    assert summary(values).best_tenth == pytest.approx(sum(values[-worst:]) / worst)


def test_equal_clients_are_perfectly_fair() -> None:
    got = summary([0.1] * 7)
    assert (got.variance, got.std) == (0, 0)
    assert got.mean == got.worst_tenth == got.best_tenth == 0.1


def test_an_empty_group_has_no_figures() -> None:
    got = summary([])
    assert got.clients == 0
    assert {getattr(got, name) for name in (*MEASURES, "interval")} == {None}
    with pytest.raises(ValueError, match="no mean of 0 clients"):
        got.measure("mean")


@given(st.lists(accuracies, min_size=1, max_size=60))
def test_agrees_with_numpy_in_any_order(values: list[float]) -> None:
    got = summary(values)
    ranked, tenth = np.sort(values), math.ceil(len(values) / 10)
    expected = {
        "clients": len(values),
        "mean": np.mean(values),
        "variance": np.var(values),
        "std": np.std(values),
        "worst_tenth": ranked[:tenth].mean(),
        "best_tenth": ranked[::-1][:tenth].mean(),
        "min": min(values),
        "max": max(values),
    }
    assert got.model_dump(exclude={"interval"}) == pytest.approx(expected, abs=1e-12)
    assert summary(values[::-1]) == got


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.text(), accuracies, accuracies, accuracies, st.booleans())))
@example([("line\rbreak\n", 0.1, 0.2, 0.3, True), (",", 0.1 + 0.2, 1e-300, 1 / 3, False)])
def test_a_table_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    clients: list[tuple[str, float, float, float, bool]],
) -> None:
    path = tmp_path_factory.mktemp("table") / "clients.csv"
    rows = [
        replace(
            ROW,
            id=i,
            name=name,
            novel=novel,
            accuracy=accuracy,
            floors={"untrained": untrained, "local": local},
        )
        for i, (name, accuracy, untrained, local, novel) in enumerate(clients)
    ]
    write_clients_csv(rows, path)
    assert read_clients_csv(path) == rows


def test_the_table_reads_like_a_table(tmp_path: Path) -> None:
    mary = replace(ROW, id=4, name='St. "Mary", Leeds', novel=True)
    write_clients_csv([ROW, mary], tmp_path / "a")
    assert (tmp_path / "a").read_text().splitlines()[:2] == [
        "client,name,novel,samples,unlabelled,test_samples,classes,accuracy,untrained,local",
        '3,"",0,20,480,100,2,0.30000000000000004,0.3333333333333333,0.5',
    ]
    with open(tmp_path / "a", newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["", 'St. "Mary", Leeds']
    assert [path.name for path in tmp_path.iterdir()] == ["a"]  # nothing temporary is left


def test_without_floors_there_are_no_columns_for_them(tmp_path: Path) -> None:
    write_clients_csv([replace(ROW, floors={})], tmp_path / "a")
    assert read_clients_csv(tmp_path / "a")[0].floors == {}


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"other\.csv is not a table of clients"):
        read_clients_csv(tmp_path / "other.csv")


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    write_clients_csv([ROW, ROW], path)
    path.write_text(path.read_text().replace(",0.5\n", ",high\n", 1))
    with pytest.raises(UserError, match=r"clients\.csv, line 2: .*'high'"):
        read_clients_csv(path)
