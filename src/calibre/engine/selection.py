"""Who trains in a round, and whose personal models are made together."""

from calibre import rng

LARGEST_GROUP = 32  # clients whose personal models are one job


def select(seed: int, round_: int, clients: int, count: int) -> list[int]:
    """The clients of a round, in order: the same for every method of the same seed."""
    chosen = rng.numpy_stream(seed, "selection", round_).choice(clients, count, replace=False)
    return sorted(int(client) for client in chosen)


def personal_group(clients: int, whole_networks: bool) -> int:
    """How many clients' personal models are made in one job.

    Heads are trained together; whole networks one by one. It must not depend on the number of
    workers, since who is in a group decides how sums are rounded.
    """
    if whole_networks:
        return 1
    return max(4, min(LARGEST_GROUP, -(-clients // 8)))
