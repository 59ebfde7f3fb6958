"""A node's side: the ClientApp that answers who it is, trains, and makes personal models.

In deployment every message gets a fresh process, so all that must last is on disk; in simulation a
process lives on, and keeps its data and networks between messages.
"""

import logging
import traceback
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from calibre import __version__
from calibre.data.sources import load
from calibre.deploy.records import FederationFacts, Hello, JobRequest, block_of, envelope, text_of
from calibre.deploy.site_data import SiteStore, in_federation, own_data, read_site, report
from calibre.engine.beginning import shared_in
from calibre.engine.crew import one_thread
from calibre.engine.devices import Machine, main_device
from calibre.engine.host import Host
from calibre.engine.messages import (
    METHOD,
    Personalised,
    Updated,
    pack,
    read,
    restored,
    room_for,
    unpack,
)
from calibre.engine.worker import failure, perform
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import inside, parse_toml, write_atomic
from calibre.finished.packing import Scored, making
from calibre.methods.method import ServerState
from calibre.personal.assemble import assemble
from calibre.personal.pooling import HeadChoice
from calibre.run_folder import RunFolder
from calibre.settings import validate
from calibre.tensors import check_like, grouped, prefixed, to_file

app = ClientApp()
log = logging.getLogger("calibre")


def hello(context: Context) -> RecordDict:
    """Who this node is, and counts of what it holds."""
    if site_file := context.node_config.get("site"):
        settings = read_site(Path(str(site_file)))
        told = Hello(version=__version__, site=report(settings, own_data(settings)))
    else:
        share = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
        told = Hello(version=__version__, share=share)
    return envelope(told)


def work(message: Message, context: Context) -> RecordDict:
    """Carry out a job; what a client keeps is on disk before this returns."""
    request = read(text_of(message.content), JobRequest)
    job = request.job
    host = _host(request, context)
    state = _state(host, request, message)
    store = host.keep
    assert isinstance(store, SiteStore)
    for client, kept in zip(job.clients, job.kept, strict=True):
        store.settle(client, kept, request.round, request.oldest)
    with one_thread():
        reply, tensors = perform(host, state, job)
    if isinstance(reply, Updated):
        return envelope(reply, pack(tensors, request.half))
    if not isinstance(reply, Personalised):
        return envelope(reply)
    if job.role == METHOD:
        _keep_model(RunFolder(store.folder), host.experiment, state)
        if site_file := context.node_config.get("site"):
            (client,) = job.clients
            accuracy = reply.scores[client].accuracy
            problem = _keep_bundle(host, store, state, str(site_file), client, accuracy, job.choice)
            reply = reply.model_copy(update={"problem": problem})
    return envelope(reply)


def _state(host: Host, request: JobRequest, message: Message) -> ServerState:
    """The server's state, checked against what this site would start from itself."""
    start = host.initial_state(request.job.role)
    # a method may add groups of its own while it runs, such as a number for every client
    limit = room_for(prefixed(start.groups)) + 2**20
    tensors = unpack(block_of(message.content), limit)
    groups = grouped(restored(tensors, prefixed(start.groups)))
    for name, like in start.groups.items():
        check_like(groups.get(name, {}), like)
    return ServerState(request.round, groups, request.training)


def _host(request: JobRequest, context: Context) -> Host:
    if site_file := context.node_config.get("site"):
        if request.facts is None:
            raise UserError("this site holds its own data; the coordinator shares out other data")
        facts = request.facts.model_dump_json()
        return _site_host(request.experiment, str(site_file), facts, request.job.clients[0])
    own = context.node_config.get("state")
    # in a simulation, and only there, a node has no disk of its own: it uses the run folder
    shared = context.run_config.get("out") if context.run_config.get("simulation") else None
    if not (own or shared):
        raise UserError("this node has no place for what its clients keep: start it with --state")
    return _share_host(request.experiment, str(own or shared), bool(own))


@lru_cache(maxsize=2)
def _site_host(text: str, file: str, facts_text: str, client: int) -> Host:
    experiment, facts = _experiment(text), FederationFacts.model_validate_json(facts_text)
    settings = read_site(Path(file))
    pool, federation = in_federation(own_data(settings), facts, client)
    store = SiteStore(inside(settings.state, experiment.folder_name), experiment.training_hash())
    return Host(experiment, pool, federation, store, _device(experiment), facts.normalization)


@lru_cache(maxsize=2)
def _share_host(text: str, state: str, own: bool) -> Host:
    experiment = _experiment(text)
    pool, federation = shared_in(Path(state), experiment, load(experiment.data))
    place = inside(Path(state), experiment.folder_name) if own else Path(state)
    store = SiteStore(place, experiment.training_hash())
    return Host(experiment, pool, federation, store, _device(experiment))


def _experiment(text: str) -> Experiment:
    experiment: Experiment = validate(Experiment, parse_toml(text))
    return experiment


def _device(experiment: Experiment) -> torch.device:
    return torch.device(main_device(experiment.engine, Machine.here()))


def _keep_model(folder: RunFolder, experiment: Experiment, state: ServerState) -> None:
    """The encoder beside the personal heads: the site can go on without the coordinator."""
    folder.write_experiment(experiment)
    write_atomic(folder.model, to_file(state.groups.get("model", {})))


def _keep_bundle(
    host: Host,
    store: SiteStore,
    state: ServerState,
    file: str,
    client: int,
    accuracy: float,
    choice: HeadChoice | None,
) -> str:
    """The site's own bundle beside its model; why there is none, for a score counts without it.

    The card leaves out what only the coordinator knows: how the others do, and the floors.
    """
    experiment = host.experiment
    facts = {
        "run": {"experiment": experiment.hash(), "seed": experiment.seed, "rounds": state.round},
        # the images are the site's own, however the coordinator would have shared others out
        "settings": experiment.model_dump(mode="json", exclude={"data", "federation"}),
    }
    try:
        own = store.clients.load_personal(client)
        assert own is not None  # it was written when it was scored
        novel = client >= host.federation.training
        scored = Scored(client, read_site(Path(file)).name, novel, accuracy, own)
        cpu = Host(
            experiment, host.pool, host.federation, store, torch.device("cpu"), host.normalization
        )
        with one_thread():
            assemble(making(cpu, state, scored, facts, choice)).save(store.folder / "bundle")
    except Exception as error:
        log.error(traceback.format_exc())
        return failure(error).error
    return ""


def _answer(job: Callable[[], RecordDict], message: Message) -> Message:
    """What goes wrong is told in one line; the traceback goes to this node's own log."""
    try:
        return Message(job(), reply_to=message)
    except Exception as error:
        log.error(traceback.format_exc())
        told = failure(error).model_copy(update={"detail": ""})
        return Message(envelope(told), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    return _answer(partial(hello, context), message)


@app.train()
def train(message: Message, context: Context) -> Message:
    return _answer(partial(work, message, context), message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return _answer(partial(work, message, context), message)
