"""A finished run goes on: more rounds, or on data that has changed since.

Images and labels come and go, and so do clients. What was learned stays: the server's state, and
what every client kept that is still there, by its name. On other data that is a new run, which
knows the one that it comes from and leaves it as it is. What was trained on is no test image there.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch

from calibre.data import cache, purposes
from calibre.data import federation as federations
from calibre.data.federation import Federation
from calibre.data.pool import Pool
from calibre.data.purposes import Earlier, purposes_of
from calibre.data.sources import load, read
from calibre.engine.checkpoints import Checkpoint, Checkpoints
from calibre.engine.client_store import ClientStore
from calibre.engine.host import Host
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import write_atomic
from calibre.finished.run import FinishedRun, check_there
from calibre.methods.method import ServerState
from calibre.registry import DATA_SETS
from calibre.run_folder import RunFolder
from calibre.sections import ParentSettings
from calibre.settings import validate
from calibre.tensors import belongs

ENCODERS = ("encoder", "second.encoder")  # parts of a model that know no class by its name


@dataclass(frozen=True)
class GoingOn:
    """What to run next, where, and what to say of it."""

    experiment: Experiment
    place: Path
    notes: tuple[str, ...] = ()


def update(
    source: Path, data: str | None = None, more: int = 0, out: Path | None = None
) -> GoingOn:
    """``more`` rounds for a finished run, on its data as it is now, or as it is at ``data``.

    Running what is returned does it. Where the data is what it was, the run itself is extended;
    where not, a new run begins in a folder beside it.
    """
    before = FinishedRun(source)
    experiment = before.experiment
    if experiment.engine.runtime == "flower":
        raise UserError(
            f"sites trained the run in {source}, and their images stay with them: it cannot be "
            "updated from here. For new data or more rounds, make a run that starts with its "
            f"encoder: give every site a copy of {before.files.model}, then  calibre-fl deploy "
            "run ... --out NEW --set network.weights=COPY"
        )
    now = pointed_to(experiment, data) if data else experiment
    check_there(now, source)
    pool = load(now.data)
    if pool.fingerprint == before.federation.fingerprint:
        return _longer(before, now, more, out)
    if experiment.privacy.clip is not None:
        raise UserError(
            f"the run in {source} promises differential privacy for the data it had, and its "
            "promise does not hold for other data: train a new run  (calibre-fl run --data ...)"
        )
    now = _as_trained(now, before, pool)
    if now.data != experiment.data:
        pool = load(now.data)
    earlier = _earlier(before, now)
    federation = federations.build(pool, now.federation, now.seed, earlier)
    now = _child(now, before, source, federation.training, more)
    place = out or _free_place(source)
    folder = RunFolder(place)
    if folder.begun:
        if folder.read_experiment().hash() != now.hash():
            raise UserError(f"{place} holds another run: give a folder of its own with --out")
        return GoingOn(now, place)  # going on with it
    validated = now.federation.score_on == "validation"
    federation.save(place)
    purposes_of(pool, federation, earlier, validated).save(place, federation.hash)
    notes = _begin(folder, before, now, pool, federation)
    return GoingOn(now, place, (*notes, *_on_labels_alone(now, more, federation)))


def _earlier(before: FinishedRun, now: Experiment) -> Earlier:
    """What the images were for in a run, and in those that it goes on from."""
    fraction = None if read(now.data).test else now.data.test_fraction
    if before.files.purposes.exists():
        return Earlier(purposes.load(before.files.path, before.federation.hash), fraction)
    validated = now.federation.score_on == "validation"
    known = purposes_of(_pool_of(before), before.federation, validated=validated)
    return Earlier(known, fraction)


def _pool_of(before: FinishedRun) -> Pool:
    """The images of a run that did not note what they are for, from before they changed."""
    fingerprint = before.federation.fingerprint
    pool = cache.find(fingerprint)
    if pool is None and before.experiment.data.source in DATA_SETS:
        pool = load(before.experiment.data)
    if pool is None or pool.fingerprint != fingerprint:
        source = before.files.path
        raise UserError(
            f"the run in {source} did not note which images it trained on, so nobody knows what "
            "may be tested on: put its images back as they were, have it noted with  calibre-fl "
            f"resume {source}  and change them again; a run that is an update itself cannot note "
            "it any more: train a new one"
        )
    return pool


def _left_out(before: FinishedRun, federation: Federation) -> Iterator[str]:
    """Who was a client and is none any more, though its images are there."""
    for name, why in federation.datasheet["left_out"].items():
        if name in before.federation.names:
            yield (
                f"'{name}' is no client any more: it has {why}, and images that were trained on "
                "are not tested on"
            )


def _child(
    now: Experiment, before: FinishedRun, source: Path, clients: int, more: int
) -> Experiment:
    """The experiment that goes on where a run of other data ended; ``clients`` train now."""
    rounds = before.run.metrics.rounds
    parent = ParentSettings(
        experiment=before.experiment.hash(),
        federation=before.federation.hash,
        round=rounds,
        folder=source.resolve().name,
    )
    training = now.training
    if training.clients_per_round >= before.federation.training:  # all of them, as before
        training = training.model_copy(update={"clients_per_round": clients})
    now = now.model_copy(update={"training": training, "parent": parent})
    if more:
        now = now.extended(rounds + more)
    whole: Experiment = validate(Experiment, now.model_dump())
    return whole


def pointed_to(experiment: Experiment, place: str) -> Experiment:
    """The same experiment with its data elsewhere."""
    source = Path(os.path.expanduser(place))
    if not os.path.exists(source):
        raise UserError(f"--data {place}: there is no such folder or file")
    data = experiment.data.model_copy(update={"source": str(source.resolve())})
    return experiment.model_copy(update={"data": data})


def move(folder: Path, place: str) -> None:
    """Let a run find its data, which lies elsewhere now; refused unless it is the same."""
    held = RunFolder(folder)
    experiment = pointed_to(held.read_experiment(), place)
    pool = load(experiment.data)
    if pool.fingerprint != federations.load(folder).fingerprint:
        raise UserError(
            f"--data {place}: the images there are not those of the run in {folder}; to go on with "
            f"other ones:  calibre-fl update {folder} --data {place}"
        )
    held.open(held.read_experiment())
    try:
        held.write_experiment(experiment)
    finally:
        held.close()


def _longer(before: FinishedRun, now: Experiment, more: int, out: Path | None) -> GoingOn:
    """The same run for more rounds."""
    source = before.files.path
    if now.data != before.experiment.data:
        raise UserError(
            f"{now.data.source} holds the same images as before: if they were moved, say so with  "
            f"calibre-fl resume {source} --data {now.data.source}"
        )
    if not more:
        raise UserError(
            f"nothing has changed since the run in {source}: same images, labels and clients; "
            "train on with --rounds 10, or give other data with --data"
        )
    if out is not None and out.resolve() != source.resolve():
        raise UserError(f"the data is what it was, so the run in {source} goes on there: no --out")
    write_atomic(before.files.before, before.files.table.read_bytes())
    longer = now.extended(now.training.rounds + more)
    return GoingOn(longer, source, _on_labels_alone(longer, more, before.federation))


def _on_labels_alone(now: Experiment, more: int, federation: Federation) -> tuple[str, ...]:
    """A method may end on labels: it does so again in the rounds that are added."""
    *_, last = now.method.stages(now.training.rounds)
    if not 0 < more <= len(last) < now.training.rounds or not federation.unlabelled.sizes.sum():
        return ()
    return (
        f"the run's last {len(last)} rounds are on labels alone, and so are the {more} that are "
        f"added: unlabelled images take no part; with more than {len(last)} added they do",
    )


def _as_trained(now: Experiment, before: FinishedRun, pool: Pool) -> Experiment:
    """Images prepared as the encoder knows them, whatever the new ones are like."""
    known = before.preprocessing
    norm = {"mean": list(known.mean), "std": list(known.std)}
    values = now.model_dump()
    values["network"]["normalization"] = norm
    if pool.shape != known.shape:
        if known.height != known.width or pool.shape[2] != known.channels:
            height, width, channels = known.shape
            raise UserError(
                f"the run knows images of {width} x {height} with {channels} channels; those of "
                f"{now.data.source} cannot be brought to that"
            )
        values["data"]["size"] = known.height
    experiment: Experiment = validate(Experiment, values)
    return experiment


def _free_place(source: Path) -> Path:
    stem, _, number = source.name.rpartition("-v")
    first = int(number) + 1 if stem and number.isdecimal() else 2
    base = stem if stem and number.isdecimal() else source.name
    places = (source.with_name(f"{base}-v{n}") for n in count(first))
    return next(place for place in places if not place.exists())


def _begin(
    folder: RunFolder, before: FinishedRun, now: Experiment, pool: Pool, federation: Federation
) -> tuple[str, ...]:
    """Put what was learned into a new run folder; the experiment comes last, and makes it one."""
    old = before.federation
    notes: list[str] = []
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    if held := before.last_checkpoint:
        state, kept = held.state, _still_there(held.kept, old, federation)
        if old.classes != federation.classes:
            state, kept = _encoder_only(state, folder, now, pool, federation), {}
            notes.append(
                "the classes are others than before: of what was learned the encoder stays, heads "
                "start anew"
            )
        state = ServerState(state.round, state.groups, max(1, federation.training))
        training = now.training_hash()
        rounds = _copy_kept(before, ClientStore(folder.clients, training), kept, old)
        checkpoints = Checkpoints(folder.checkpoints, training)
        checkpoints.save(Checkpoint(state, 0, rounds), keep=1)
    if not (old.names and federation.names):
        notes.append("clients are made up by the settings: nobody is the same as before")
    else:
        write_atomic(folder.before, before.files.table.read_bytes())
    if before.experiment.parent is not None and not before.files.purposes.exists():
        notes.append(
            f"the run in {before.files.path} was made by an earlier version of update, which drew "
            "the test part anew: its accuracies, and those to come, may be on images that "
            "its encoder was trained on, and too high"
        )
    notes += _left_out(before, federation)
    folder.write_experiment(now)
    return tuple(notes)


def _still_there(
    kept: Mapping[int, int], old: Federation, new: Federation
) -> dict[int, tuple[int, int]]:
    """New number -> old number and round, of clients that kept something and are still there."""
    numbers = {name: number for number, name in enumerate(new.names)}
    return {
        numbers[old.names[client]]: (client, round_)
        for client, round_ in kept.items()
        if old.names and old.names[client] in numbers
    }


def _copy_kept(
    before: FinishedRun, here: ClientStore, kept: Mapping[int, tuple[int, int]], old: Federation
) -> dict[int, int]:
    """Under new numbers; returned is the round that each client kept it after."""
    there = before.clients
    if problem := there.problem(dict(kept.values()), lambda client: old.client(client).name):
        raise UserError(f"{problem}; calibre-fl resume {before.files.path}  tells what can be done")
    for client, (number, round_) in kept.items():
        if (tensors := there.load(number, round_)) is not None:
            here.save(client, round_, tensors, oldest_needed=round_)
    return {client: round_ for client, (_, round_) in kept.items()}


def _encoder_only(
    state: ServerState, folder: RunFolder, now: Experiment, pool: Pool, federation: Federation
) -> ServerState:
    """The state that such a run begins with, but for the encoders, which have trained."""
    host = Host(now, pool, federation, folder.path, torch.device("cpu"))
    start = host.initial_state()
    trained = state.groups.get("model", {})
    model = {
        name: trained[name] if belongs(name, ENCODERS) and name in trained else tensor
        for name, tensor in start.groups.get("model", {}).items()
    }
    return ServerState(state.round, {**start.groups, "model": model}, start.clients)
