import pytest

from benchmarks.regressions import regressions


def figure(ratio: float, target: str = "<= 20", machine: str = "x86, 2 cores", name: str = "heads"):
    return {"name": name, "ratio": ratio, "target": target, "machine": machine}


@pytest.mark.parametrize(
    ("target", "before", "now", "worse"),
    [
        ("<= 20", 10.0, 10.4, False),
        ("<= 20", 10.0, 10.6, True),  # more seconds, though the promise still holds
        ("<= 20", 10.0, 5.0, False),
        (">= 300", 1000.0, 960.0, False),
        (">= 300", 1000.0, 940.0, True),  # fewer answers a second
        (">= 300", 1000.0, 2000.0, False),
    ],
)
def test_worse_is_more_of_what_should_be_small_and_less_of_what_should_be_large(
    target, before, now, worse
):
    found = regressions([figure(now, target)], [figure(before, target)])
    assert [r.name for r in found] == (["heads"] if worse else [])


def test_it_says_what_was_and_what_is():
    (found,) = regressions([figure(12)], [figure(10)])
    assert str(found) == "heads: 12, was 10 (20 % worse)"


def test_another_kind_of_machine_and_a_new_figure_tell_nothing():
    kept = [figure(1, machine="arm64, 8 cores"), figure(1, name="other")]
    assert regressions([figure(100)], kept) == []


def test_nothing_is_measured_against_nothing():
    assert regressions([figure(1)], [figure(0)]) == []
