import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibre.data.parts import Parts


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2**31 - 1)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_parts_hold_what_each_client_was_given(pairs):
    clients, indices = zip(*pairs, strict=True) if pairs else ((), ())
    parts = Parts.of(clients, indices, 5)
    assert len(parts) == 5
    for client in range(5):
        assert parts[client].tolist() == sorted(i for c, i in pairs if c == client)
    assert parts.clients.tolist() == sorted(clients)
    assert parts.indices.dtype == np.int32


def test_parts_join_select_shift_and_count():
    parts = Parts.of([0, 1, 1], [4, 2, 3], 3)
    both = parts.joined(Parts.of([2, 0], [0, 1], 3))
    assert [both[c].tolist() for c in range(3)] == [[1, 4], [2, 3], [0]]
    assert [parts.shifted(10)[c].tolist() for c in range(3)] == [[14], [12, 13], []]
    assert parts.where(parts.indices != 3)[1].tolist() == [2]
    assert both.table(np.array([0, 1, 1, 0, 1]), 2).tolist() == [[0, 2], [1, 1], [1, 0]]


def test_nobody_can_shuffle_the_federation_in_place():
    with pytest.raises(ValueError, match="read-only"):
        np.random.default_rng(0).shuffle(Parts.of([0, 0], [1, 2], 1)[0])
