import re
import time
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibre.data import partition
from calibre.data.dealing import deal
from calibre.errors import UserError
from calibre.rng import numpy_stream

CIFAR = np.repeat(np.arange(10), 5000)
NAMES = tuple("abcdefghijklmnop")

class_sizes = st.lists(st.integers(1, 60), min_size=1, max_size=8).map(np.array)
quick = settings(max_examples=60, deadline=None)


def streams(purpose: str, seed: int = 0) -> partial:
    return partial(numpy_stream, seed, purpose)


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Total variation between the rows' proportions."""
    return 0.5 * np.abs(a / a.sum(1, keepdims=True) - b / b.sum(1, keepdims=True)).sum(1)


def naive_largest_remainder(wanted: list[float]) -> list[int]:
    whole = [int(x) for x in wanted]
    while sum(whole) < round(sum(wanted)):
        whole[max(range(len(wanted)), key=lambda k: wanted[k] - whole[k])] += 1
    return whole


# Tables -------------------------------------------------------------------------------------------


@given(class_sizes, st.integers(1, 20), st.floats(1e-4, 50), st.booleans(), st.data())
@quick
def test_dirichlet_rows_and_columns_fit(sizes, clients, alpha, disjoint, data):
    most = sizes.sum() // clients if disjoint else sizes.sum()
    samples = data.draw(st.integers(1, max(1, most)))
    make = lambda: partition.dirichlet(
        sizes, clients, samples, disjoint, streams("mix"), numpy_stream(0, "round"), alpha
    )
    if not 2 <= samples <= most:
        with pytest.raises(UserError):
            make()
        return
    counts = make()
    assert counts.min() >= 0
    assert (counts.sum(1) == samples).all()
    assert ((counts.sum(0) if disjoint else counts.max(0)) <= sizes).all()
    assert (counts == make()).all()


def test_paper_sized_dirichlet_stays_near_the_proportions_and_is_fast():
    mix = np.array([numpy_stream(3, "mix", c).dirichlet(np.full(10, 0.3)) for c in range(150)])
    start = time.process_time()
    counts = partition.dirichlet(
        np.full(10, 5000), 150, 333, True, streams("mix", 3), numpy_stream(3, "round"), 0.3
    )
    parts = deal(counts, CIFAR, numpy_stream(3, "deal"))
    assert time.process_time() - start < 0.5
    away = distance(counts, mix)
    assert away.mean() <= 0.08
    assert away.max() <= 0.2
    assert away[-10:].mean() <= 0.1  # the last clients do not get what the others left over
    assert len(np.unique(parts.indices)) == 150 * 333


def test_alpha_reaches_from_iid_to_one_class_per_client():
    def main_share(alpha: float) -> float:
        counts = partition.dirichlet(
            np.full(10, 500), 20, 200, False, streams("mix"), numpy_stream(0, "round"), alpha
        )
        return float((counts.max(1) / 200).mean())

    assert main_share(1e4) == pytest.approx(0.1, abs=0.02)
    assert main_share(1e-3) == pytest.approx(1, abs=0.01)


def test_fit_leaves_a_table_that_already_fits():
    wanted = numpy_stream(0, "x").random((6, 4))
    for disjoint in (True, False):
        fitted = partition.fit(wanted, np.full(4, 100), disjoint)
        np.testing.assert_allclose(fitted, wanted, rtol=1e-12)


def test_fit_solves_a_case_worked_by_hand():
    # Both clients want class 0 only, which has 4 images: the sweeps split it, room does the rest.
    fitted = partition.fit(np.array([[6.0, 0, 0], [2.0, 0, 0]]), np.array([4, 3, 1]), True)
    np.testing.assert_allclose(fitted.sum(1), [6, 2])
    np.testing.assert_allclose(fitted.sum(0), [4, 3, 1])
    np.testing.assert_allclose(fitted[:, 0], [3, 1])
    # Alone, each has the class to itself; what does not fit keeps the proportions of the others.
    alone = partition.fit(np.array([[6.0, 2, 1], [2.0, 0, 0]]), np.array([4, 9, 9]), False)
    np.testing.assert_allclose(alone, [[4, 10 / 3, 5 / 3], [2, 0, 0]], atol=1e-6)


@given(st.lists(st.floats(0, 30), min_size=1, max_size=8), st.booleans())
@quick
def test_rounding_is_by_largest_remainder_when_there_is_room(row, disjoint):
    row[-1] += round(sum(row)) + 1 - sum(row)  # a whole sum
    sizes = np.full(len(row), 1000)
    counts = partition.round_rows(np.array([row]), sizes, disjoint, numpy_stream(0, "ties"))
    assert np.abs(counts[0] - row).max() < 1 + 1e-6
    wanted = np.array(row)
    gaps = np.sort(np.abs(np.subtract.outer(wanted % 1, wanted % 1)))[:, 1:]
    if len(row) == 1 or gaps.min() > 1e-6:  # no ties: one answer
        assert counts[0].tolist() == naive_largest_remainder(row)


def test_rounding_breaks_ties_differently_for_different_clients():
    expected = np.full((200, 10), 0.1)  # one image each, of any class
    counts = partition.round_rows(expected, np.full(10, 1000), False, numpy_stream(0, "ties"))
    assert (counts.sum(1) == 1).all()
    assert counts.sum(0).min() >= 5  # 20 expected


def test_the_client_that_is_due_most_of_the_last_image_gets_it():
    for expected, given_ in (
        ([[0.6, 0.4], [0.9, 0.1]], [[0, 1], [1, 0]]),
        ([[0.9, 0.1], [0.6, 0.4]], [[1, 0], [0, 1]]),
    ):
        counts = partition.round_rows(
            np.array(expected), np.array([1, 1]), True, numpy_stream(0, "ties")
        )
        assert counts.tolist() == given_


# Schemes ------------------------------------------------------------------------------------------


def test_disjoint_iid_takes_everything_and_independent_is_hypergeometric():
    sizes = np.array([300, 100, 50])
    disjoint = partition.iid(sizes, 45, None, True, streams("iid"))
    assert (disjoint.sum(1) == 10).all()
    assert (disjoint.sum(0) == sizes).all()
    drawn = partition.iid(sizes, 2000, 90, False, streams("iid"))
    mean = 90 * sizes / 450
    variance = mean * (1 - sizes / 450) * (450 - 90) / (450 - 1)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=5 * np.sqrt(variance.max() / 2000))
    np.testing.assert_allclose(drawn.var(0), variance, rtol=0.15)


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 10**6), st.data())
@quick
def test_classes_are_dealt_evenly(classes, clients, seed, data):
    held = data.draw(st.integers(1, classes))
    lists = partition.deal_classes(classes, clients, held, numpy_stream(seed, "classes"))
    assert all(len(set(row)) == held for row in lists.tolist())
    for first in (clients, max(1, clients // 2)):  # balanced among those that train, too
        taken = np.bincount(lists[:first].ravel(), minlength=classes)
        assert taken.max() - taken.min() <= 1


def test_classes_are_dealt_in_many_combinations():
    lists = partition.deal_classes(10, 450, 2, numpy_stream(0, "classes"))
    pairs = {tuple(sorted(row)) for row in lists.tolist()}
    assert len(pairs) == 45  # every pair of ten classes


@given(class_sizes, st.integers(1, 15), st.integers(1, 9), st.booleans(), st.data())
@quick
def test_quantity(sizes, clients, held, disjoint, data):
    samples = data.draw(st.none() | st.integers(1, 60))
    try:
        counts = partition.quantity(
            sizes, clients, samples, disjoint, numpy_stream(0, "q"), held, NAMES
        )
    except UserError:
        return
    holds = counts > 0
    assert (holds.sum(1) == held).all()
    assert (counts.sum(1) >= 2).all()
    if samples:
        assert (counts.sum(1) == samples).all()
    if samples or not disjoint:
        spread = np.where(holds, counts, counts.max(1, keepdims=True))
        assert (counts.max(1) - spread.min(1) <= 1).all()
    if not disjoint:
        assert (counts <= sizes).all()
        return
    assert (counts.sum(0) <= sizes).all()
    if not samples:
        for column, size, of in zip(counts.T, sizes, holds.T, strict=True):
            assert column.sum() == (size if of.any() else 0)  # to the last image
            assert not of.any() or column[of].max() - column[of].min() <= 1


@given(class_sizes, st.integers(1, 25), st.integers(1, 40), st.integers(0, 9))
@quick
def test_test_images_follow_the_training_images(sizes, clients, samples, seed):
    rng = numpy_stream(seed, "table")
    train = rng.integers(0, samples + 1, (clients, len(sizes)))
    train[:, rng.integers(len(sizes))] += 1
    counts = partition.follow(train, sizes, None, None, rng, NAMES)
    images = counts.sum(1)
    assert (images >= 1).all()
    assert (counts <= sizes).all()
    assert (train[counts > 0] > 0).all()
    assert (distance(train, counts) <= len(sizes) / (2 * images) + 1e-12).all()
    fewer = int(images.min())
    assert (partition.follow(train, sizes, None, fewer, rng, NAMES).sum(1) == fewer).all()
    assert (partition.follow(train, sizes, 3, None, rng, NAMES).sum(1) == images.clip(max=3)).all()
    with pytest.raises(UserError, match=rf"federation.test_samples up to {fewer}"):
        partition.follow(train, sizes, None, fewer + 1, rng, NAMES)


def test_a_client_takes_the_whole_test_split_when_it_fits():
    train = np.array([[30, 60, 10]])
    counts = partition.follow(train, np.array([3, 6, 1]), None, None, numpy_stream(0, "t"), NAMES)
    assert counts.tolist() == [[3, 6, 1]]


def test_a_class_that_cannot_be_tested_is_named():
    with pytest.raises(
        UserError, match=r"client 1 .* 90 % of those are of class 'b', .* 0 to test"
    ):
        partition.follow(
            np.array([[9, 0], [1, 9]]),
            np.array([5, 0]),
            None,
            None,
            numpy_stream(0, "t"),
            ("a", "b"),
        )


# Requests that cannot be met ----------------------------------------------------------------------


def test_too_many_samples_says_what_would_work():
    with pytest.raises(UserError) as error:
        partition.iid(np.array([1000, 437]), 30, 500, True, streams("iid"))
    assert str(error.value) == (
        "30 clients (novel ones included) x 500 samples needs 15000 training images, there are "
        '1437: at most 47 per client, or at most 2 clients, or federation.overlap = "independent"'
    )
    for clients, samples, disjoint in ((30, 47, True), (2, 500, True), (30, 500, False)):
        counts = partition.iid(np.array([1000, 437]), clients, samples, disjoint, streams("iid"))
        assert (counts.sum(1) == samples).all()


@pytest.mark.parametrize(
    ("clients", "samples", "disjoint", "message"),
    [
        (5, 1, True, "federation.samples = 1: a client needs 2 or more"),
        (900, None, True, "at most 718 clients, or .*independent.* with federation.samples"),
        (900, None, False, "federation.samples from 2 to 1437"),
        (3, 2000, False, "federation.samples = 2000: there are 1437 training images"),
        (3, 2000, True, "at most 479 per client$"),
    ],
)
def test_infeasible_iid(clients, samples, disjoint, message):
    with pytest.raises(UserError, match=message):
        partition.iid(np.array([1000, 437]), clients, samples, disjoint, streams("iid"))


@given(class_sizes, st.integers(1, 60), st.integers(1, 9), st.booleans(), st.data())
@quick
def test_what_an_infeasible_quantity_request_is_told_works(sizes, clients, held, disjoint, data):
    samples = data.draw(st.none() | st.integers(1, 200))
    make = lambda clients, samples, disjoint: partition.quantity(
        sizes, clients, samples, disjoint, numpy_stream(0, "q"), held, NAMES
    )
    try:
        make(clients, samples, disjoint)
    except UserError as error:
        message = str(error)
    else:
        return
    assert re.search(r"federation\.(classes|samples) = |another federation.scheme", message)
    if found := re.search(r"federation.samples from (\d+) to (\d+)", message):
        for works in map(int, found.groups()):
            make(clients, works, disjoint)
    if found := re.search(r"at most (\d+) clients", message):
        make(int(found[1]), samples, disjoint)
    if 'overlap = "independent"' in message:
        make(clients, samples or max(2, held), False)
