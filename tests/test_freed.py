"""Memory that is given back to the system."""

import sys

import numpy as np
import psutil
import pytest

from calibre.freed import let_go, trim

LARGE = 2**26


def held():
    return psutil.Process().memory_info().rss


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give back when they please")
def test_what_was_read_of_a_mapped_array_is_given_back_and_read_again(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(LARGE, np.uint8))
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert array.sum() == LARGE
    before = held()
    let_go(array[1:])
    assert before - held() > LARGE / 2
    assert array.sum() == LARGE


def test_an_array_that_is_not_mapped_stays_as_it_is():
    array = np.arange(4)
    let_go(array)
    trim()
    assert array.tolist() == [0, 1, 2, 3]
