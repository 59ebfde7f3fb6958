from typing import get_args

from calibre.report.floors import FLOORS, title_of
from calibre.sections import FloorName


def test_every_floor_that_an_experiment_may_ask_for_has_words_and_a_mark_of_its_own():
    assert set(FLOORS) == set(get_args(FloorName))
    for looks in zip(*FLOORS.values(), strict=True):
        assert len(set(looks)) == len(FLOORS)
    assert len({title_of(name) for name in FLOORS}) == len(FLOORS)


def test_a_floor_is_called_as_its_method_is():
    assert title_of("local") == "local only"
    assert title_of("majority") == "majority class"
