import itertools
import warnings

import numpy as np
import pytest
from scipy import stats

from calibre.report import inference
from calibre.report.inference import half_interval, holm, signed_rank

T_TABLE = {1: 12.7062, 2: 4.3027, 9: 2.2622, 30: 2.0423}  # two-sided 95 %, by degrees of freedom


@pytest.mark.parametrize("freedom", T_TABLE)
def test_students_interval_is_that_of_the_printed_table(freedom):
    values = np.random.default_rng(freedom).normal(size=freedom + 1).tolist()
    mean = sum(values) / len(values)
    sd = (sum((v - mean) ** 2 for v in values) / freedom) ** 0.5
    expected = T_TABLE[freedom] * sd / len(values) ** 0.5
    assert half_interval(values) == pytest.approx(expected, rel=1e-4)


def test_a_single_value_has_no_interval():
    assert half_interval([0.5]) is None


def by_enumeration(differences: list[float]) -> float:
    """Pratt's signed-rank test, over every way to put signs on the ranks."""
    sizes = [abs(d) for d in differences]
    ranks = [
        sum(s < size for s in sizes) + (sum(s == size for s in sizes) + 1) / 2 for size in sizes
    ]
    kept = [(rank, d > 0) for rank, d in zip(ranks, differences, strict=True) if d != 0]
    middle = sum(rank for rank, _ in kept) / 2
    observed = abs(sum(rank for rank, up in kept if up) - middle)
    signs = list(itertools.product([False, True], repeat=len(kept)))
    uneven = [
        abs(sum(rank for (rank, _), up in zip(kept, sign, strict=True) if up) - middle) >= observed
        for sign in signs
    ]
    return sum(uneven) / len(signs)


@pytest.mark.parametrize("seed", range(6))
def test_the_signed_rank_test_is_exact_with_ties_and_zeros(seed):
    draw = np.random.default_rng(seed)
    differences = draw.integers(-2, 5, 9).astype(float).tolist()  # small numbers: many ties
    assert signed_rank(differences) == pytest.approx(by_enumeration(differences))


def test_without_ties_it_is_the_textbook_test():
    differences = np.random.default_rng(0).normal(0.4, 1, 24)
    expected = stats.wilcoxon(differences, method="exact").pvalue
    assert signed_rank(differences) == pytest.approx(expected)


def test_many_pairs_take_the_normal_curve_which_is_close_to_exact(monkeypatch):
    differences = np.round(np.random.default_rng(1).normal(0.2, 1, 120), 1)
    exact = signed_rank(differences)
    monkeypatch.setattr(inference, "EXACT", 10)
    assert signed_rank(differences) != exact
    assert signed_rank(differences) == pytest.approx(exact, abs=0.005)


def test_equal_fractions_are_ties_however_they_are_rounded():
    thirds = [0.7 - 0.6, 0.3 - 0.2, 0.9 - 0.8, 0.1]  # unlike bits, all one tenth
    assert len(set(thirds)) > 1
    assert signed_rank([*thirds, -0.1]) == pytest.approx(2 * 6 / 32)


def test_no_difference_at_all_is_no_sign_of_one():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert signed_rank([0.0] * 7) == 1


def test_holm_as_in_his_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []
