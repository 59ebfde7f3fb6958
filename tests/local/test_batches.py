import pytest

from calibre.local.batches import balanced_batches


@pytest.mark.parametrize(
    ("n", "batch", "sizes"),
    [
        (33, 32, [17, 16]),
        (64, 32, [32, 32]),
        (65, 32, [22, 22, 21]),
        (2, 32, [2]),
        (1, 32, [1]),
        (0, 32, []),
        (3, 1, [1, 1, 1]),
        (5, 2, [2, 2, 1]),
    ],
)
def test_examples(n: int, batch: int, sizes: list[int]) -> None:
    assert balanced_batches(n, batch) == sizes


def test_every_sample_once_in_the_fewest_even_batches() -> None:
    for batch in range(1, 40):
        for n in range(1, 200):
            sizes = balanced_batches(n, batch)
            assert sum(sizes) == n
            assert max(sizes) <= batch
            assert (len(sizes) - 1) * batch < n  # one batch fewer would not hold them
            assert max(sizes) - min(sizes) <= 1
            assert sizes == sorted(sizes, reverse=True)


def test_a_single_sample_is_never_left_over() -> None:
    for batch in range(3, 40):
        assert all(min(balanced_batches(n, batch)) >= 2 for n in range(2, 200))
