"""What ten million clients would take: measured at some thousands, and scaled to all of them.

    python -m benchmarks.ten_million

Selection is carried out at full size. All else that grows with the clients is measured on
federations of two sizes, of which the difference tells the share of one client. Nothing is trained.
"""

import json
import time
from collections.abc import Callable

import numpy as np

from benchmarks.scale import build_seconds, made_up
from calibre.engine.messages import pack
from calibre.engine.selection import select
from calibre.models.network import Problem, build_classifier
from calibre.sections import NetworkSettings
from calibre.tensors import take

CLIENTS = 10_000_000
A_ROUND = 1_000  # clients that train in a round
ROUNDS = 1_000
ONLINE = 0.01  # of all clients at a time: idle, charged, on a network that costs nothing
STAY = 0.9  # of those asked that answer in time
LINE = 1e9 / 8  # bytes a second, of one coordinator's line
WINDOW = 60.0  # seconds in which a round's models come and go
SMALL, LARGE = 2_000, 8_000


def main() -> None:
    model = len(pack(take(build_classifier(Problem(32, 3, 10, NetworkSettings(), seed=0)))))
    began = time.perf_counter()
    chosen = select(0, 1, CLIENTS, A_ROUND)
    selecting = time.perf_counter() - began
    asked = int(np.ceil(A_ROUND / STAY))
    traffic = (asked + A_ROUND) * model
    rows = [
        ("model, small CNN", f"{model / 2**20:.2f} MiB"),
        ("clients asked for a round of " + f"{A_ROUND:,}", f"{asked:,}"),
        ("online at a time", f"{int(CLIENTS * ONLINE):,}"),
        ("traffic of a round, both ways", f"{traffic / 2**30:.2f} GiB"),
        ("traffic of all rounds", f"{ROUNDS * traffic / 2**40:.2f} TiB"),
        ("one line of 1 Gbit/s moves it in", f"{traffic / LINE:.0f} s"),
        ("coordinators for a window of 60 s", f"{max(1, int(np.ceil(traffic / LINE / WINDOW)))}"),
        ("rounds that a client takes part in", f"{ROUNDS * len(chosen) / CLIENTS:.2f}"),
        ("select a round's clients of all", f"{selecting:.2f} s"),
    ]
    measured: tuple[tuple[str, Callable[[int], int]], ...] = (
        ("hold who has which images", _federation_bytes),
        ("note after which round a client kept something", _note_bytes),
    )
    for what, size in measured:
        share = (size(LARGE) - size(SMALL)) / (LARGE - SMALL)
        rows.append((what, f"{share * CLIENTS / 2**30:.2f} GiB"))
    each = (build_seconds(LARGE) - build_seconds(SMALL)) / (LARGE - SMALL)
    rows.append(("share images out, one processor", f"{each * CLIENTS / 60:.0f} min"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value:>14}")


def _federation_bytes(clients: int) -> int:
    federation = made_up(clients)
    parts = (federation.labelled, federation.unlabelled, federation.test)
    arrays = [array for part in parts for array in (part.indices, part.offsets)]
    return sum(a.nbytes for a in [*arrays, federation.train_table, federation.test_table])


def _note_bytes(clients: int) -> int:
    return len(json.dumps(dict.fromkeys(range(CLIENTS - clients, CLIENTS), ROUNDS)))


if __name__ == "__main__":
    main()
