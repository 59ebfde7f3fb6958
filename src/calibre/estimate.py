"""What is installed, what the machine has, what an experiment would cost: by a short trial."""

import dataclasses
import importlib.metadata
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from calibre import __version__
from calibre.data.federation import Federation, SharedImages
from calibre.data.sources import load
from calibre.engine.devices import Machine, choose, main_device, plan
from calibre.engine.host import Host, method_of
from calibre.engine.messages import METHOD
from calibre.experiment import Experiment
from calibre.local.site import Site
from calibre.methods.method import Method, ServerState
from calibre.personal.pooling import pooled
from calibre.personal.received import AsReceived
from calibre.personal.solved_head import SolvedHead
from calibre.personal.ways import way_of
from calibre.tensors import Tensors
from calibre.wording import duration

TRIAL_IMAGES = 128
TRIAL_CLIENTS = 8
TRIAL_EPOCHS = 16
TRIAL_RATE = 1e-6  # an encoder that has not trained yet may diverge at the real one


def examine(experiment: Experiment) -> dict[str, dict[str, Any]]:
    machine = Machine.here()
    return {
        "installed": {
            "calibre-fl": __version__,
            "python": platform.python_version(),
            **{
                name: importlib.metadata.version(name) for name in ("torch", "numpy", "safetensors")
            },
        },
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": machine.cores,
            "CUDA devices": machine.gpus,
            "MPS": machine.mps,
            "free disk": f"{shutil.disk_usage('.').free / 2**30:.0f} GiB",
        },
        "experiment": estimate(experiment, machine),
    }


def seconds(experiment: Experiment, shared: SharedImages | None = None) -> float:
    """How long a run should take on this machine, floors and fine-tuning counted in."""
    machine = Machine.here()
    trial = _one_thread_trial(experiment, machine, shared or _read(experiment))
    workers = max(1, len(plan(experiment.engine, machine)))
    return (trial["training"] + trial["personal"]) / workers


def estimate(experiment: Experiment, machine: Machine) -> dict[str, Any]:
    """Time and memory from one short trial at the first client, with one thread like a worker."""
    devices = plan(experiment.engine, machine)
    trial = _one_thread_trial(experiment, machine, _read(experiment))
    workers = max(1, len(devices))
    return {
        "run folder": f"runs/{experiment.folder_name}",
        "workers": f"{workers} x {choose(experiment.engine, machine)}",
        "parameters": f"{trial['parameters']:,}",
        "sent per client and round": f"{trial['bytes'] / 2**20:.2f} MiB each way",
        "training": f"about {duration(trial['training'] / workers)}",
        "personal models": f"about {duration(trial['personal'] / workers)}, floors counted in",
        "in all": f"about {duration((trial['training'] + trial['personal']) / workers)}",
        "memory": f"about {trial['memory'] * (len(devices) + 1) / 2**20:.0f} MiB",
    }


def _read(experiment: Experiment) -> SharedImages:
    return SharedImages.of(load(experiment.data), experiment.federation, experiment.seed)


def _one_thread_trial(
    experiment: Experiment, machine: Machine, shared: SharedImages
) -> dict[str, float]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            device = main_device(experiment.engine, machine)
            return _trial(experiment, shared, Path(folder), device)
    finally:
        torch.set_num_threads(threads)


def _trial(
    experiment: Experiment, shared: SharedImages, folder: Path, device: str
) -> dict[str, float]:
    pool, federation = shared
    host = Host(experiment, pool, federation, folder, torch.device(device))
    loaded, state = host.load(METHOD), host.initial_state()
    method = experiment.method
    site = host.site(METHOD, state, client=0)
    seconds = _training(method, state, site, federation) if method.federated else 0.0
    scale = 1024 if sys.platform != "darwin" else 1
    return {
        "training": seconds,
        "personal": _personal_models(experiment, shared, folder, torch.device(device)),
        "parameters": sum(parameter.numel() for parameter in loaded.network.parameters()),
        "bytes": sum(
            t.numel() * t.element_size() for g in state.groups.values() for t in g.values()
        ),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale,
    }


def _training(method: Method, state: ServerState, site: Site, federation: Federation) -> float:
    """Seconds of all rounds, from an epoch on some of the first client's images in each stage.

    As many of those are labelled as of all: rounds on labels alone cost by labels.
    """
    training = site.training
    clients = len(federation.train_ids)  # the first ones
    sizes = federation.labelled.sizes[:clients] + federation.unlabelled.sizes[:clients]
    in_round = min(training.clients_per_round, clients) * float(sizes.mean())
    some = min(TRIAL_IMAGES, len(site.images))
    labelled = max(min(2, site.labelled), round(site.labelled * some / len(site.images)))
    rows = [*range(labelled), *range(site.labelled, site.labelled + some - labelled)]
    seconds = 0.0
    for rounds in filter(len, method.stages(training.rounds)):
        small = dataclasses.replace(
            site,
            round=rounds.start,
            images=site.images[rows],
            labels=site.labels[rows],
            labelled=labelled,
            training=training.model_copy(update={"epochs": 1}),
        )
        epoch = _fastest(partial(method.local_update, state, None, small))
        seconds += len(rounds) * training.epochs * in_round / some * epoch
    return seconds


def _personal_models(
    experiment: Experiment, shared: SharedImages, folder: Path, device: torch.device
) -> float:
    """Seconds for everybody's personal models and floors, from those of clients of middling size.

    Heads are solved together, so several clients tell what all cost. Where networks train for many
    epochs, one client and a few epochs tell it. (The first epochs take longer than those after.)
    """
    personal, federation = experiment.personal, shared.federation
    ids = federation.novel_ids if personal.clients == "novel" else range(len(federation))

    def host(epochs: int) -> Host:
        trial = personal.model_copy(update={"epochs": epochs, "lr": TRIAL_RATE})
        return Host(experiment.model_copy(update={"personal": trial}), *shared, folder, device)

    few = min(TRIAL_EPOCHS, personal.epochs)
    fewer = -(-few // 2)
    short, long = host(fewer), host(few)
    one, several = _middling(federation, ids, 1), _middling(federation, ids, TRIAL_CLIENTS)
    # The first model of a process takes longer. Where it is one that trains no network, it also
    # gives both hosts the same to remember.
    for warm in [host(1)] if _trains_networks(experiment, METHOD) else [short, long]:
        _make_models(warm, METHOD, one.clients)
    seconds = 0.0
    for role in (METHOD, *(name for name in personal.floors if name != experiment.method.name)):
        if _trains_networks(experiment, role):
            spent = _time(partial(_make_models, short, role, one.clients))
            if few > fewer:
                more = _time(partial(_make_models, long, role, one.clients))
                spent += max(0.0, more - spent) / (few - fewer) * (personal.epochs - fewer)
            seconds += spent * one.times
        else:
            seconds += _time(partial(_make_models, short, role, several.clients)) * several.times
    return seconds


class Middling(NamedTuple):
    """Clients of middling size."""

    clients: Sequence[int]
    times: float  # how often their images go into those of all


def _middling(federation: Federation, ids: range, count: int) -> Middling:
    """At most ``count`` of the clients ``ids``."""
    sizes = (federation.labelled.sizes + federation.test.sizes)[ids.start : ids.stop]
    first = max(0, len(ids) - count + 1) // 2
    middle = np.argsort(sizes, kind="stable")[first : first + count]
    return Middling([ids[i] for i in middle], float(sizes.sum() / sizes[middle].sum()))


def _make_models(host: Host, role: str, clients: Sequence[int]) -> None:
    """As a run makes them, after its rounds: by all networks that these train."""
    state = host.initial_state(role)
    if role == METHOD and host.experiment.training.rounds:
        state = dataclasses.replace(state, round=1, groups=_moved(state.groups))
    told = host.assess(state, role, clients)
    host.personalize(state, role, clients, pooled([*told.values()]) if told else None, told)


def _moved(groups: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """A state that no longer is the start, which a network that nobody trained still is."""
    return {
        group: {n: 1.001 * t if t.is_floating_point() else t for n, t in tensors.items()}
        for group, tensors in groups.items()
    }


def _trains_networks(experiment: Experiment, role: str) -> bool:
    """Whether a role's personal models take the longer, the more epochs there are."""
    way = way_of(method_of(experiment, role), experiment.personal)
    return role == "local" or not isinstance(way, SolvedHead | AsReceived)


def _fastest(work: Callable[[], object]) -> float:
    """Seconds of the second call: the first one warms up."""
    work()
    return _time(work)


def _time(work: Callable[[], object]) -> float:
    """Of this process, not of the clock: what others do on the machine does not count."""
    began = time.process_time()
    work()
    return time.process_time() - began
