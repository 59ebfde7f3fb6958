import subprocess

import numpy as np
import pytest

from calibre.wording import difference, duration, how_many, percent, quoted, rate, span


def test_shares_are_told_in_percent():
    assert percent(0.875) == "87.5 %"
    assert percent(1, 0) == "100 %"
    assert percent(None) == "–"
    assert span(0.7641, 0.938) == "76.4 to 93.8 %"
    assert rate(0.025) == "2.5 %"
    assert rate(0.05) == "5 %"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")],
)
def test_time_is_told_in_the_unit_that_reads_best(seconds, said):
    assert duration(seconds) == said


def test_a_difference_has_the_interval_of_many_draws():
    """95 of 100 intervals hold the true difference, when test images are drawn again and again."""
    draw = np.random.default_rng(0)
    clients = [(0.9, 0.7, 40), (0.8, 0.85, 25), (0.6, 0.5, 60)]
    true = np.mean([one - other for one, other, _ in clients])
    held = 0
    for _ in range(2000):
        drawn = [
            (draw.binomial(n, one) / n, draw.binomial(n, other) / n, n) for one, other, n in clients
        ]
        found = difference(drawn)
        held += found.low <= true <= found.high
    assert 0.94 <= held / 2000 <= 0.975


def test_a_difference_is_told_with_what_it_rests_on():
    assert difference([(0.9, 0.5, 100)]).words == "40.0 points (95 % interval 28.4 to 51.6)"
    few = difference([(0.8, 0.6, 3), (0.8, 0.8, 2)])
    assert few.words.startswith("10.0 points, but 5 test images: not established (95 % interval -")
    assert not few.established
    assert difference([(0.5, 0.9, 100)]).established  # the other is better


@pytest.mark.parametrize(
    "place", ["my runs/first", "it's", "$HOME", "a;b", "(1)", "", "plain/run-1"]
)
def test_a_shell_takes_a_quoted_path_as_one_word(place):
    said = subprocess.run(
        ["sh", "-c", f"printf '%s|' {quoted(place)}"], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"{place}|"
    assert quoted("plain/run-1") == "plain/run-1"


def test_one_is_no_plural():
    assert [how_many(n, "client") for n in (0, 1, 2)] == ["0 clients", "1 client", "2 clients"]
    assert how_many(1_200, "labelled image") == "1,200 labelled images"
