import pytest

from calibre.wording import duration, percent, rate, span


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
