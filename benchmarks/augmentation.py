"""How many augmented views per second: SimCLR's set on 32x32 colour images.

python benchmarks/augmentation.py
"""

import time

import torch

from calibre.data.augment import Normalization, Views, two_views

IMAGES = 128  # per batch: 256 views
SIZE = 32
HALF = Normalization(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def measure(threads: int, seconds: float) -> float:
    """Views per second, by the fastest batch, the one that other programs disturbed least."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (IMAGES, SIZE, SIZE, 3), generator=generator).byte()
    # Once a block of this size was freed, glibc keeps memory instead of handing it back after every
    # call and faulting it in again: so it is in a process that trains, and so it shall be here.
    torch.zeros(7 * 2**20)  # 28 MiB
    durations = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        two_views(images, Views(), HALF, generator)
        durations.append(time.perf_counter() - start)
    torch.set_num_threads(before)
    return 2 * IMAGES / min(durations)


def main() -> None:
    print(f"{SIZE}x{SIZE} colour views, SimCLR's set without blur, batches of {IMAGES} images")
    print(f"{'threads':>7}  {'views/s':>8}  {'us/view':>7}")
    for threads in (1, 2):
        rate = measure(threads, seconds=3.0)
        print(f"{threads:7d}  {rate:8,.0f}  {1e6 / rate:7.1f}")


if __name__ == "__main__":
    main()
