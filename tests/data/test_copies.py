"""Equal images in training and test data, whoever holds them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from calibre.data.copies import find_copies
from calibre.data.pool import TRAIN_AT_LEAST


def found(train, test, unlabelled=(), unreadable=()):
    """Each image is (print, owner)."""
    images = [*train, *test, *unlabelled]
    return find_copies(
        [bytes([value]) for value, _ in images],
        len(train),
        len(test),
        [owner for _, owner in images],
        unreadable,
    )


def test_a_client_that_is_dropped_does_not_take_another_s_image_along():
    """Anna has one image to train on, and is no client; her test image is Ben's training image."""
    train = [(1, "anna"), (7, "ben"), (8, "ben"), (9, "ben")]
    test = [(7, "anna"), (20, "ben")]
    copies = found(train, test)
    assert copies.training == []
    assert copies.tests == [4]


def test_a_client_that_stays_does():
    train = [(1, "anna"), (2, "anna"), (7, "ben"), (8, "ben"), (9, "ben")]
    assert found(train, [(7, "anna"), (20, "ben")]) == ([2], [])


def test_who_is_dropped_because_of_copies_counts_too():
    """Anna's second image is a test image of Ben: what is left is too little."""
    train = [(1, "anna"), (5, "anna"), (7, "ben"), (8, "ben"), (9, "ben")]
    test = [(7, "anna"), (5, "ben")]
    assert found(train, test) == ([1], [5])


def test_unlabelled_and_unreadable_images():
    train, test = [(1, "a"), (2, "a"), (3, "a")], [(4, "a"), (0, "a")]
    assert found(train, test, [(4, "a"), (6, "a")]).training == [5]
    assert found(train, test, [(0, "a")], unreadable={4, 5}).training == []


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc")), max_size=30),
       st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc")), max_size=12))  # fmt: skip
def test_nothing_is_ever_in_both_and_no_more_goes_than_must(train, test):
    copies = found(train, test)
    images = [*train, *test]
    left_train = {images[i][0] for i in range(len(train)) if i not in copies.training}
    left_test = {images[i][0] for i in range(len(train), len(images)) if i not in copies.tests}
    assert not left_train & left_test
    tested = {value for value, _ in test}
    assert all(images[i][0] in tested for i in copies.training)
    scored = {
        value for value, owner in test
        if sum(o == owner and value not in tested for value, o in train) >= TRAIN_AT_LEAST
    }  # fmt: skip
    assert scored <= left_test  # tests of clients that take part in any case stay


def test_without_owners_the_training_image_goes():
    prints = [np.void(bytes(16)).tobytes(), b"x", b"x"]
    assert find_copies(prints, 2, 1, None, ()) == ([1], [])
