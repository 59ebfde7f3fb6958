import torch

from calibre import rng


def test_a_stream_depends_on_every_key_and_on_nothing_else():
    base = torch.rand(4, generator=rng.stream(0, "views", 3, 7))
    torch.rand(100)  # what the global generator did before does not matter
    assert torch.equal(base, torch.rand(4, generator=rng.stream(0, "views", 3, 7)))
    for other in [(1, "views", 3, 7), (0, "batches", 3, 7), (0, "views", 7, 3), (0, "views", 37)]:
        assert not torch.equal(base, torch.rand(4, generator=rng.stream(*other)))


def test_keys_do_not_run_together():
    assert rng.derive(0, "a", 1, 23) != rng.derive(0, "a", 12, 3)
    assert rng.derive(1, "2/a") != rng.derive(12, "a")


def test_seeds_spread_over_the_whole_range():
    seeds = torch.tensor([rng.derive(0, "x", i) for i in range(2000)], dtype=torch.float64)
    assert abs(float(seeds.mean()) / 2**62 - 1) < 0.05


def test_isolated_is_reproducible_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    with rng.isolated(5, "init"):
        first = torch.nn.Linear(3, 3).weight
    assert torch.equal(before, torch.get_rng_state())
    with rng.isolated(5, "init"):
        assert torch.equal(first, torch.nn.Linear(3, 3).weight)


def test_numpy_streams_are_keyed_too():
    assert rng.numpy_stream(0, "p", 1).integers(1 << 40) == rng.numpy_stream(0, "p", 1).integers(
        1 << 40
    )
    assert rng.numpy_stream(0, "p", 1).integers(1 << 40) != rng.numpy_stream(0, "p", 2).integers(
        1 << 40
    )
