"""The limit: processes of one thread doing only forward, backward and SGD on views in memory.

``python -m benchmarks.bare`` is one such process; :class:`BareLoops` starts and times several.
"""

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from calibre.engine.child import ENVIRONMENT
from calibre.experiment import Experiment
from calibre.methods.self_supervised import build_objective
from calibre.models.network import Classifier, Problem, build_classifier, to_fast_layout
from calibre.ssl.objective import Objective, ObjectiveSettings, Sample
from calibre.ssl.objective import Step as Told

Step = Callable[[], None]


def steps(experiment: Experiment, batch: int) -> list[Step]:
    """The bare steps that one batch costs in each local epoch of this experiment's method."""
    method = experiment.method
    problem = Problem(32, 3, 10, experiment.network, experiment.seed)
    epochs = experiment.training.epochs
    if hasattr(method, "objective"):
        both = method.name == "calibre"  # where Calibre will use both views' z and h
        return [_objective_step(method.objective, problem, batch, both)] * epochs
    full, head = _classifier_steps(problem, batch)
    return {
        "fedavg": [full] * epochs,
        "fedrep": [head] * (epochs - 1) + [full],  # its default: one epoch for the encoder
        "ditto": [full, full] * epochs,  # the global and the personal model
        "apfl": [full, full] * epochs,  # likewise
    }[method.name]


def _objective_step(objective: ObjectiveSettings, problem: Problem, batch: int, both: bool) -> Step:
    """A step of the objective alone; with ``both``, the z and h of both views are computed."""
    built = build_objective(objective, problem)
    network = cast(Objective, to_fast_layout(built, torch.device("cpu")).train())
    a, b = (_images(batch) for _ in range(2))
    network.begin_round(lambda count: _sample(min(count, batch)))
    told = Told(
        rows=torch.arange(batch),
        labels=torch.full((batch,), -1),
        progress=0.0,
        random=lambda purpose: torch.Generator(),
        both=both,
    )
    optimizer = _sgd(network)

    def step() -> None:
        optimizer.zero_grad()
        pair = network(a, b, told)
        loss = pair.loss
        if both:
            loss = loss + 0 * (pair.h_a.sum() + pair.h_b.sum())
        loss.backward()
        optimizer.step()

    return step


def _classifier_steps(problem: Problem, batch: int) -> tuple[Step, Step]:
    """A step of all parameters, and one of the head on the frozen encoder."""
    network = cast(
        Classifier, to_fast_layout(build_classifier(problem), torch.device("cpu")).train()
    )
    images, labels = _images(batch), torch.randint(10, (batch,))
    optimizer, head_optimizer = _sgd(network), _sgd(network.head)

    def full() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()

    def head() -> None:
        head_optimizer.zero_grad()
        with torch.no_grad():
            features = network.encoder.eval()(images)
        F.cross_entropy(network.head(features), labels).backward()
        head_optimizer.step()
        network.encoder.train()

    return full, head


def _sample(count: int) -> Sample:
    return Sample(torch.arange(count), _images(count))


def _images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32).contiguous(memory_format=torch.channels_last)


def _sgd(network: nn.Module) -> torch.optim.SGD:
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return torch.optim.SGD(trained, 0.05, momentum=0.9, weight_decay=5e-4, foreach=True)


def loop(experiment: Experiment, batch: int) -> None:
    """Read for how many batches, make all their steps, answer; all stays in memory."""
    torch.set_num_threads(1)
    made = steps(experiment, batch)
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            for step in made:
                step()
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

    def seconds(self, batches_each: int) -> float:
        """Of all local epochs over so many batches, in each process."""
        began = time.perf_counter()
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{batches_each}\n")
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
    given: dict[str, Any] = json.loads(sys.argv[1])
    loop(Experiment.model_validate(tomllib.loads(given["toml"])), given["batch"])
