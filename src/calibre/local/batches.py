"""How a client's samples are dealt into batches."""


def balanced_batches(n: int, batch: int) -> list[int]:
    """Sizes of the fewest batches of at most ``batch`` that hold ``n`` samples; they differ by 1.

    33 samples at batch 32 are 17 + 16, not 32 + 1: no step follows a handful of samples, and none
    is a single one that batch norm cannot take (unless ``batch`` is 1, or 2 with an odd ``n``).
    """
    count = -(-n // batch)
    return [n // count + (i < n % count) for i in range(count)]
