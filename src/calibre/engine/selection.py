"""Who trains in a round."""

from calibre import rng


def select(seed: int, round_: int, clients: int, count: int) -> list[int]:
    """The clients of a round, in order: the same for every method of the same seed."""
    chosen = rng.numpy_stream(seed, "selection", round_).choice(clients, count, replace=False)
    return sorted(int(client) for client in chosen)
