from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibre.data import dealing
from calibre.data.parts import Parts
from calibre.rng import numpy_stream

class_sizes = st.lists(st.integers(1, 60), min_size=1, max_size=8).map(np.array)
quick = settings(max_examples=60, deadline=None)


def streams(purpose: str, seed: int = 0) -> partial:
    return partial(numpy_stream, seed, purpose)


@given(class_sizes, st.integers(1, 12), st.integers(0, 10**6))
@quick
def test_dealing_is_disjoint_and_drawing_is_without_replacement(sizes, clients, seed):
    rng = numpy_stream(seed, "labels")
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    shared = np.stack([rng.multinomial(size, np.full(clients, 1 / clients)) for size in sizes], 1)
    own = rng.integers(0, sizes + 1, (clients, len(sizes)))
    dealt = dealing.deal(shared, labels, numpy_stream(seed, "deal"))
    drawn = dealing.draw(own, labels, streams("draw", seed)) if own.any() else None
    assert sorted(dealt.indices.tolist()) == list(range(len(labels)))
    assert (dealt.table(labels, len(sizes)) == shared).all()
    if drawn:
        assert (drawn.table(labels, len(sizes)) == own).all()
        assert all(len(set(drawn[c].tolist())) == len(drawn[c]) for c in range(clients))


def test_every_image_is_dealt_equally_often():
    labels = np.zeros(8, np.int64)
    dealt = [
        dealing.deal(np.array([[2]]), labels, numpy_stream(seed, "deal")).indices
        for seed in range(800)
    ]
    np.testing.assert_allclose(np.bincount(np.concatenate(dealt)) / 800, 1 / 4, atol=0.08)


def test_every_image_is_drawn_equally_often():
    labels = np.array([0, 1, 0, 1, 1, 0, 1])
    parts = dealing.draw(np.tile([1, 2], (2000, 1)), labels, streams("draw"))
    often = np.bincount(parts.indices) / 2000
    np.testing.assert_allclose(often, np.where(labels == 0, 1 / 3, 1 / 2), atol=0.05)


@given(class_sizes, st.integers(1, 9), st.integers(1, 7))
@quick
def test_labels_kept_per_class_and_client(sizes, clients, kept):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    parts = Parts.of(np.arange(len(labels)) % clients, np.arange(len(labels)), clients)
    keep = dealing.keep_of_each_class(parts, labels, kept, streams("labels"))
    classes = len(sizes)
    table = parts.where(keep).table(labels, classes)
    assert (table == parts.table(labels, classes).clip(max=kept)).all()


def test_which_labels_are_kept_is_random():
    parts = Parts.of(np.zeros(40), np.arange(40), 1)
    kept = [
        dealing.keep_of_each_class(parts, np.zeros(40, np.int64), 5, streams("labels", seed))
        for seed in range(300)
    ]
    assert np.mean(kept, axis=0).min() > 0.02  # 1/8 expected


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60).map(np.array))
@quick
def test_held_out_images(labels):
    held = dealing.held_out(labels, numpy_stream(0, "held"))
    sizes = np.bincount(labels)
    if sizes.max() == 1:
        assert not held.any()
        return
    assert 1 <= held.sum() <= max(1, round(len(labels) / 5))
    assert set(labels[held]) <= set(labels[~held])
    if sizes[sizes > 0].min() > 1:  # a class of one image gives none, and others give for it
        assert (np.bincount(labels[held], minlength=len(sizes)) < sizes / 5 + 1.5).all()


def test_labels_drawn_at_random_follow_the_clients_own_mix():
    labels = np.array([0] * 900 + [1] * 100)
    parts = Parts.of(np.zeros(1000, int), np.arange(1000), 1)
    ones = [
        labels[parts.indices[dealing.keep_labels(parts, labels, np.array([40]), False,
                                                    streams("labels", seed))]].sum()
        for seed in range(50)
    ]  # fmt: skip
    assert np.mean(ones) == pytest.approx(4, abs=1)  # a tenth of forty


@pytest.mark.parametrize("count", [1, 3, 7, 40])
def test_labels_drawn_by_class_are_as_even_as_the_images_allow(count):
    labels = np.array([0] * 30 + [1] * 2 + [2] * 8)
    parts = Parts.of(np.zeros(40, int), np.arange(40), 1)
    keep = dealing.keep_labels(parts, labels, np.array([count]), True, streams("labels"))
    held = np.bincount(labels[parts.indices[keep]], minlength=3)
    expected = np.zeros(3, int)  # deal one to each class that has any left, in turn
    while expected.sum() < count:
        for k in range(3):
            if expected.sum() < count and expected[k] < (30, 2, 8)[k]:
                expected[k] += 1
    assert held.sum() == count
    assert sorted(held) == sorted(expected)


@pytest.mark.parametrize("few", [dealing.FEW, 0])
def test_places_are_those_of_numpys_choice_bit_for_bit(few, monkeypatch):
    """Federations of earlier runs must come out the same: their hashes are compared."""
    monkeypatch.setattr(dealing, "FEW", few)
    draw = np.random.default_rng(0)
    streams = partial(numpy_stream, 3, "test-distinct")
    for largest in (2, 9, 60, 9000):
        sizes = draw.integers(1, largest, 8)
        counts = np.minimum(draw.integers(0, 30, (9, 8)), sizes)
        expected = []
        for client, row in enumerate(counts.tolist()):
            rng = streams(client)
            for size, wanted in zip(sizes.tolist(), row, strict=True):
                expected += rng.choice(size, wanted, replace=False, shuffle=False).tolist()
        assert dealing.distinct(sizes, counts, streams).tolist() == expected


def test_twenty_thousand_clients_are_drawn_without_a_call_for_each_class():
    """It counts draws, not seconds: one call for each client."""
    calls = 0

    class Counting:
        def __init__(self, client):
            self.rng = numpy_stream(0, "test-many", client)

        def integers(self, *bounds, **more):
            nonlocal calls
            calls += 1
            return self.rng.integers(*bounds, **more)

    counts = np.tile([1, 0, 2, 1, 3], (20_000, 1))
    places = dealing.distinct(np.array([50, 40, 30, 20, 10]), counts, Counting)
    assert calls == 20_000
    assert len(places) == counts.sum()
    three = places.reshape(20_000, 7)[:, 4:]
    assert (np.diff(np.sort(three, axis=1), axis=1) > 0).all()  # no image twice
