import numpy as np
import pytest

from calibre.data import purposes
from calibre.data.federation import build
from calibre.data.pool import Pool
from calibre.data.purposes import Earlier, Purposes, divided, prints_of, purposes_of
from calibre.errors import UserError
from calibre.sections import FederationSettings


def pool_of(values: list[int], train: int, test: int) -> Pool:
    """Images of one colour each: ``values`` are their pixels."""
    images = np.repeat(np.array(values, np.uint8), 4).reshape(-1, 2, 2, 1)
    labels = np.arange(len(values)) % 2
    ends = train, train + test
    parts = range(ends[0]), range(*ends), range(ends[1], len(values))
    return Pool("toy", images, labels, ("a", "b"), *parts, fingerprint="toy")


def purposes_for(
    train: list[int], test: list[int], validation: list[int] | None = None
) -> Purposes:
    parts = (prints_of(pool_of(part, 0, 0)) if part else np.empty(0, "S16")
             for part in (train, test, validation or []))  # fmt: skip
    return Purposes(*parts)


def values_of(pool: Pool, places: np.ndarray) -> list[int]:
    return sorted(pool.images[places, 0, 0, 0].tolist())


def test_equal_pixels_have_equal_prints_and_no_others():
    found = prints_of(pool_of([3, 0, 3, 255], 4, 0)).tolist()
    assert found[0] == found[2]
    assert len(set(found)) == 3


def test_without_an_earlier_run_the_parts_are_the_pools():
    pool = pool_of([*range(10)], 5, 3)
    division = divided(pool)
    assert [part.tolist() for part in division[:3]] == [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9]]
    assert not division.trained.any()
    assert not division.validation.any()


def test_what_was_held_stays_what_it_was_and_new_images_stay_where_the_source_has_them():
    pool = pool_of([10, 11, 12, 13, 20, 21, 22, 30], 4, 3)
    known = purposes_for(train=[20, 10], test=[11, 30], validation=[21])
    division = divided(pool, Earlier(known, None))
    assert values_of(pool, division.train) == [10, 12, 13, 20, 21]
    assert values_of(pool, division.test) == [11, 22]
    assert values_of(pool, division.unlabelled) == [30]  # whoever took its label away trains on it
    assert values_of(pool, np.flatnonzero(division.trained)) == [10, 20]


def test_nobody_trains_on_the_copy_of_a_test_image():
    pool = pool_of([10, 11, 12, 11], 3, 0)
    division = divided(pool, Earlier(purposes_for([10], [11]), 0.5))
    assert 11 in values_of(pool, division.test)
    assert 11 not in values_of(pool, np.concatenate([division.train, division.unlabelled]))


@pytest.mark.parametrize("new", range(1, 12))
def test_a_share_of_the_new_images_is_to_test_on(new):
    pool = pool_of([*range(40, 40 + new), *range(20)], new + 16, 4)
    known = purposes_for([*range(16)], [16, 17, 18, 19])
    tests = values_of(pool, divided(pool, Earlier(known, 0.25)).test)
    assert tests[:4] == [16, 17, 18, 19]
    assert abs(len(tests) - 4 - new / 4) < 1


def test_what_was_ever_trained_on_counts_as_that():
    pool = pool_of([*range(40)], 28, 12)
    federation = build(pool, FederationSettings(clients=2, novel=0, scheme="iid"), 0)
    before = Earlier(purposes_for(train=[99, 30], test=[88, 3]), None)
    found = purposes_of(
        pool, build(pool, FederationSettings(clients=2, novel=0), 0, before), before
    )
    whole = {99, *range(28), 30} - {3}
    assert set(found.train) == set(prints_of(pool_of(sorted(whole), 0, 0)))
    tests = {88, 3, *range(28, 40)} - {30}
    assert set(found.test) == set(prints_of(pool_of(sorted(tests), 0, 0)))
    fresh = purposes_of(pool, federation)
    assert set(fresh.train) == set(prints_of(pool_of([*range(28)], 0, 0)))


def test_it_is_kept_whole_for_one_federation(tmp_path):
    known = purposes_for([1, 2], [3])
    known.save(tmp_path, "abc")
    loaded = purposes.load(tmp_path, "abc")
    for name in ("train", "test", "validation"):
        assert np.array_equal(getattr(loaded, name), getattr(known, name))
    with pytest.raises(UserError, match="it is another run's"):
        purposes.load(tmp_path, "abd")
