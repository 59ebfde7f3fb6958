"""All fuzzers, seeded: ``python -m tests.attack [NAME ...] [--seed 0] [--part 1.0]``.

10,000 cases in at most ten minutes on two cores; none may end in a traceback, a hang or another
result without a word. Each case is found again by its seed and number.
"""

import argparse
import sys
import time

import torch

from tests.attack import data_formats, http, replies, run_folders, settings

COUNTS = {http: 2000, settings: 4000, replies: 2700, run_folders: 300, data_formats: 1000}
SECONDS = 600


def main() -> int:
    names = {fuzzer.__name__.rpartition(".")[2]: fuzzer for fuzzer in COUNTS}
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument("names", nargs="*", choices=[*names, []], help="default: all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=float, default=1.0, help="of the usual number of cases")
    given = parser.parse_args()
    torch.set_num_threads(1)
    began, total = time.monotonic(), 0
    for name in given.names or names:
        count = round(given.part * COUNTS[names[name]])
        since = time.monotonic()
        for ending, cases in names[name].attack(given.seed, count).most_common():
            print(f"{cases:6d}  {name}: {ending}")
        total += count
        print(f"{count} cases of {name} in {time.monotonic() - since:.0f} s", file=sys.stderr)
    seconds = time.monotonic() - began
    print(f"{total} cases in {seconds:.0f} s", file=sys.stderr)
    return int(seconds > SECONDS)


if __name__ == "__main__":
    sys.exit(main())
