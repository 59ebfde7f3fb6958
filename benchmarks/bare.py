"""The limit: processes of one thread doing only forward, backward and SGD on views in memory.

``python -m benchmarks.bare`` is one such process; :class:`BareLoops` starts and times several.
"""

import json
import os
import subprocess
import sys
import time

import torch

from calibre.engine.process import ENVIRONMENT
from calibre.experiment import Experiment
from calibre.methods.method import Method
from calibre.models.network import Problem, to_fast_layout


def loop(experiment: Experiment, batch: int) -> None:
    """Read a number of steps, make them, answer; views and network stay in memory."""
    torch.set_num_threads(1)
    method = experiment.method
    assert isinstance(method, Method)
    problem = Problem(32, 3, 10, experiment.network, experiment.seed)
    network = to_fast_layout(method.build(problem), torch.device("cpu")).train()
    optimizer = torch.optim.SGD(
        network.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, foreach=True
    )
    views = [
        torch.randn(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        for _ in range(2)
    ]
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            optimizer.zero_grad()
            network(*views).loss.backward()
            optimizer.step()
        print("done", flush=True)


class BareLoops:
    """Two bare loops side by side, started once, timed as often as asked."""

    def __init__(self, experiment: Experiment, batch: int, processes: int = 2) -> None:
        settings = json.dumps({"toml": experiment.to_toml(), "batch": batch})
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.bare", settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **ENVIRONMENT},  # as the workers have it
            )
            for _ in range(processes)
        ]
        self._wait()

    def seconds(self, steps_each: int) -> float:
        began = time.perf_counter()
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{steps_each}\n")
            process.stdin.flush()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.readline()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    import tomllib

    given = json.loads(sys.argv[1])
    loop(Experiment.model_validate(tomllib.loads(given["toml"])), given["batch"])
