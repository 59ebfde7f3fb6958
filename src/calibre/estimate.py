"""What is installed, what the machine has, what an experiment would cost: by a short trial."""

import dataclasses
import importlib.metadata
import platform
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from calibre import __version__
from calibre.data.federation import SharedImages
from calibre.data.sources import load
from calibre.engine.devices import Machine, choose, main_device, plan
from calibre.engine.host import Host
from calibre.engine.messages import METHOD
from calibre.experiment import Experiment
from calibre.local.features import encode
from calibre.wording import duration

TRIAL_IMAGES = 128


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
    """How long a run should take on this machine, floors not counted."""
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
        "personal models": f"about {duration(trial['personal'] / workers)}, floors not counted",
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
    sizes = [
        len(held.labelled) + len(held.unlabelled)
        for held in map(federation.client, federation.train_ids)
    ]
    training = experiment.training
    count = min(training.clients_per_round, len(sizes))
    images = training.rounds * training.epochs * count * sum(sizes) / len(sizes)
    seconds = 0.0
    if method.federated:
        small = dataclasses.replace(
            site,
            images=site.images[:TRIAL_IMAGES],
            labels=site.labels[:TRIAL_IMAGES],
            labelled=min(site.labelled, TRIAL_IMAGES),
            training=training.model_copy(update={"epochs": 1}),
        )
        seconds = _fastest(lambda: method.local_update(state, None, small)) / len(small.images)
    encoder = loaded.network.get_submodule("encoder")
    part = site.images[:TRIAL_IMAGES]
    encoding = _fastest(lambda: encode(encoder, part, site.normalization)) / len(part)
    scored = sum(
        len(held.labelled) + len(held.test)
        for held in map(federation.client, range(len(federation)))
    )
    scale = 1024 if sys.platform != "darwin" else 1
    return {
        "training": images * seconds,
        "personal": scored * encoding,
        "parameters": sum(parameter.numel() for parameter in loaded.network.parameters()),
        "bytes": sum(
            t.numel() * t.element_size() for g in state.groups.values() for t in g.values()
        ),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale,
    }


def _fastest(work: Any) -> float:
    """Seconds of the second call: the first one warms up."""
    work()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
