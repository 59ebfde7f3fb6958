"""How many CPU seconds of training until the clients' solved heads reach a mean accuracy?

    python -m benchmarks.time_to_accuracy --draws 0 1 2 --target 58 --out time

Folders of eight sites with 40 labels each, made of CIFAR-10 and scored on training images that
nobody holds (``benchmarks.folders --rehearsal``). After every fourth round of a run, heads are
solved on the encoder as it then is; only the rounds count as time. All training runs in one process
with one thread. Beside the settings that `run --data` chooses: the same encoders with fewer
features for their heads; the first version's way, which trained without labels and had the paper's
heads; AdamW, small views, the paper's two terms left out, each objective; and SimCLR as lightly's
guide has it, in a plain loop over everybody's images at once: what a person would write who could
gather the data.
"""

import argparse
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import calibre
from benchmarks.folders import folders
from calibre.data.augment import Views, two_views
from calibre.engine.checkpoints import Checkpoints
from calibre.engine.messages import METHOD
from calibre.experiment import Experiment
from calibre.finished.run import FinishedRun
from calibre.local.sgd import shuffled_batches
from calibre.methods.method import ServerState
from calibre.personal.pooling import pooled
from calibre.registry import OBJECTIVES
from calibre.report.events import Event, RoundDone
from calibre.ssl.ntxent import ntxent

LABELS = 40
EVERY = 4  # rounds, from one look at the heads to the next
ADAMW = {"sgd": {"kind": "adamw"}}
NO_TERMS = {"prototypes": {"alpha_p": 0.0, "alpha_n": 0.0}, "aggregation": {"gamma": 0.0}}
VARIANTS: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "without labels": {"method": {"labels": {"weight": 0}}},
    "AdamW": {"method": ADAMW},
    "four small views": {"views": {"extra": 4}},
    "AdamW and four small views": {"method": ADAMW, "views": {"extra": 4}},
    "without the paper's two terms": {"method": NO_TERMS},
    **{
        f"as chosen, {name}": {"method": {"objective": name}}
        for name in OBJECTIVES
        if name != "simclr"
    },
}
# other personal models on the encoders of a variant, by what rows of the table are called
HEADS: dict[str, dict[str, dict[str, Any]]] = {
    "as chosen": {
        "as chosen, heads without patches": {"features": "pixels"},
        "as chosen, heads on the encoder alone": {"features": "encoder"},
    },
    "without labels": {"the first version: without labels, the paper's heads": {"head": "paper"}},
}
PEER = "lightly's SimCLR, plain loop"
PEER_EPOCHS, PEER_BATCH, PEER_RATE, PEER_TEMPERATURE = 60, 128, 0.06, 0.5


class Point(NamedTuple):
    seconds: float  # of CPU, since training began
    accuracy: float  # mean over clients, in percent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_to_accuracy")
    parser.add_argument("--draws", nargs="+", type=int, default=[0, 1, 2], help="seeds")
    parser.add_argument("--target", type=float, default=58.0, help="mean accuracy in percent")
    parser.add_argument("--only", nargs="+", default=[*VARIANTS, PEER], choices=[*VARIANTS, PEER])
    parser.add_argument("--out", type=Path, default=Path("time"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    header = [f"draw {d}: s to {asked.target:g} %" for d in asked.draws]
    table = Table("training", *header, "best %", "after s")
    for name in asked.only:
        by_draw = []
        for draw in asked.draws:
            place = folders("cifar10", LABELS, draw, rehearsal=True, out=asked.out)
            by_draw.append(curves_of(name, place))
        for row in by_draw[0]:
            curves = [found[row] for found in by_draw]
            best = [max(points, key=lambda point: point.accuracy) for points in curves]
            table.add_row(
                row,
                *(_time_to(asked.target, points) for points in curves),
                f"{np.mean([point.accuracy for point in best]):.1f}",
                f"{np.mean([point.seconds for point in best]):.0f}",
            )
        Console().print(table)


def curves_of(name: str, place: Path) -> dict[str, list[Point]]:
    """The accuracy after rounds, or of the plain loop after every third epoch, by row."""
    if name == PEER:
        return {name: [*plain_loop(place)]}
    out = place.with_name(f"{place.name}.{_file_name(name)}")
    heads = {name: {}, **HEADS.get(name, {})}
    return federated(VARIANTS[name], place, out, heads)


def federated(
    changes: Mapping[str, Any], place: Path, out: Path, heads: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[Point]]:
    """One training, and its checkpoints' accuracies by each kind of heads."""
    experiment, _ = calibre.choose(
        place, **{**changes, "personal": {"floors": []}, "engine": {"workers": 0, "keep": 1000}}
    )
    shutil.rmtree(out, ignore_errors=True)  # an earlier measurement's
    began, ended = time.process_time(), {}

    def note(event: Event) -> None:
        if isinstance(event, RoundDone):
            ended[event.round] = time.process_time() - began

    calibre.run(experiment, out, note)
    run = FinishedRun(out)
    newest_first = Checkpoints(run.files.checkpoints).whole(print)
    states = [held.state for held in newest_first if held.state.round % EVERY == 0]
    curves: dict[str, list[Point]] = {}
    for row, settings in heads.items():
        personal = experiment.personal.model_copy(update=dict(settings))
        run.host.experiment = experiment.model_copy(update={"personal": personal})
        curves[row] = [
            Point(ended[state.round], solved_accuracy(run, state)) for state in reversed(states)
        ]
    return curves


def solved_accuracy(run: FinishedRun, state: ServerState) -> float:
    """Mean over clients, in percent, by heads as the personal stage would make them."""
    clients = [*run.results]
    told = run.host.assess(state, METHOD, clients)
    models = run.host.personalize(state, METHOD, clients, pooled([*told.values()]), told)
    return 100 * float(np.mean([model.accuracy for model in models]))


def plain_loop(place: Path) -> Iterator[Point]:
    """SimCLR over everybody's images, in one loop."""
    experiment, _ = calibre.choose(
        place,
        method={"name": "pfl-ssl", "objective": {"name": "simclr", "temperature": 0.5}},
        training={"rounds": 1, "epochs": 1},
        personal={"floors": []},
        engine={"workers": 0},
    )
    run = _run_of(experiment, place.with_name(f"{place.name}.plain-loop"))
    host = run.host
    state = host.initial_state()
    site = host.site(METHOD, state, client=0)
    network: Any = site.network.train()
    images = torch.cat([host.site(METHOD, state, client).images for client in run.results])
    optimizer = torch.optim.SGD(network.parameters(), PEER_RATE, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, PEER_EPOCHS)
    generator, seconds = torch.Generator().manual_seed(0), 0.0
    for epoch in range(PEER_EPOCHS):
        began = time.process_time()
        for rows in shuffled_batches(len(images), PEER_BATCH, generator):
            a, b = two_views(images[rows], Views(), site.normalization, generator)
            h_a, h_b = (network.projector(network.encoder(view)) for view in (a, b))
            loss = ntxent(h_a, h_b, PEER_TEMPERATURE)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        seconds += time.process_time() - began
        if epoch % 3 == 2:
            trained = {name: tensor.clone() for name, tensor in network.state_dict().items()}
            model = {name: trained[name] for name in state.model}
            yield Point(seconds, solved_accuracy(run, state.next(model=model)))
            network.load_state_dict(trained)
            network.train()


def _run_of(experiment: Experiment, out: Path) -> FinishedRun:
    calibre.run(experiment, out)
    return FinishedRun(out)


def _time_to(target: float, points: list[Point]) -> str:
    reached = [point.seconds for point in points if point.accuracy >= target]
    return f"{reached[0]:.0f}" if reached else "not reached"


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


if __name__ == "__main__":
    main()
