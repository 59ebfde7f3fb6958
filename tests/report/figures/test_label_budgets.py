"""What labels are worth, drawn: nothing is covered, and the lead is over the same clients."""

import numpy as np
import pytest

from calibre.recipes import all_recipes
from calibre.recipes.label_budget import series_of
from calibre.report.figures.label_budgets import label_budgets, lead_over
from tests.recipes.made_up import made_up
from tests.report.figures.pictures import check

NAMES = ("FedAvg-FT", "FedPer", "Calibre (SimCLR) with labels, two networks")


@pytest.fixture(scope="module")
def series():
    def accuracy(e):
        seed = 0.02 * e.seed
        labels = e.federation.label_count or 400
        return 0.4 + seed + labels / 1000 + 0.1 * (e.method.label == "FedPer") * (1 + seed)

    runs = made_up(all_recipes.find("label-budget").experiments("cpu", range(3)), accuracy)
    return {name: by_budget for name, by_budget in series_of(runs).items() if name in NAMES}


@pytest.mark.parametrize("draw", [label_budgets, lambda series: lead_over("FedAvg-FT", series)])
def test_every_word_can_be_read(draw, series):
    check(draw(series))


def test_the_lead_is_the_difference_on_the_same_clients_with_its_own_interval(series):
    panel = lead_over("FedAvg-FT", series).axes[1]
    assert panel.get_title(loc="left") == "trained: points above FedAvg-FT"
    (_, fedper, *_), zero = panel.get_lines(), panel.get_lines()[-1]
    np.testing.assert_allclose(fedper.get_ydata(), 0.102)  # the mean of 0.100, 0.102 and 0.104
    assert np.allclose(zero.get_ydata(), 0)
    # Student's t with two degrees of freedom: 4.303 standard errors, and these are 0.002 / sqrt(3)
    heights = [line[1, 1] - line[0, 1] for line in panel.collections[1].get_segments()]
    np.testing.assert_allclose(heights, 2 * 4.3027 * 0.002 / 3**0.5, rtol=1e-4)


def test_the_reference_has_no_line_where_it_would_be_compared_with_itself(series):
    levels, leads, worst, *_ = lead_over("FedAvg-FT", series).axes
    lines = [len(panel.get_lines()) for panel in (levels, leads, worst)]
    assert lines == [3, 2 + 1, 3]  # and a line at zero
