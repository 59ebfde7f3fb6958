"""Files of a run that are whole, but not what they should be: nothing comes of it unnoticed."""

import json
import os
import shutil
from contextlib import nullcontext

import pytest

from calibre.engine import rounds
from calibre.engine.rewind import possible_rounds
from calibre.errors import UserError
from calibre.experiment import read
from calibre.finished.run import FinishedRun
from calibre.report import runs
from calibre.report.events import RoundDone, Warned
from calibre.run_folder import RunFolder
from tests.conftest import TINY
from tests.methods.helpers import results

SMALL = (
    "method.name=fedrep", *TINY, "federation.clients=3", "federation.novel=1", "training.rounds=3",
    "training.clients_per_round=3", "engine.keep=3", "personal.epochs=1",
    "personal.floors=[\"majority\"]",
)  # fmt: skip


class KilledError(Exception):
    """As far as a run may go."""


def stopped(folder, *changes):
    """A run that was killed after its second round's checkpoint."""

    def emit(event):
        if isinstance(event, RoundDone) and event.round == 3:
            raise KilledError

    with pytest.raises(KilledError):
        rounds.run(read(None, [*SMALL, *changes]), folder, emit)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    rounds.run(read(None, SMALL), place / "whole")
    stopped(place / "half")
    stopped(place / "other", "method.sgd.lr=0.031")
    return place


def record(folder, **changes):
    file = folder / "checkpoints/round-0002.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def copied(made, source, target):
    return lambda folder: shutil.copy(made / source, folder / target)


def pipe(name):
    def harm(folder):
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return harm


def foreign_checkpoint(made):
    def harm(folder):
        for file in (made / "other/checkpoints").glob("round-0002.*"):
            shutil.copy(file, folder / "checkpoints")

    return harm


HARM = {
    "another run's checkpoint": foreign_checkpoint,
    "another client's state": lambda made: copied(
        made, "half/clients/000001/0002.safetensors", "clients/000000/0002.safetensors"
    ),
    "an older state": lambda made: copied(
        made, "half/clients/000000/0001.safetensors", "clients/000000/0002.safetensors"
    ),
    "another run's state": lambda made: copied(
        made, "other/clients/000000/0002.safetensors", "clients/000000/0002.safetensors"
    ),
    "a later round": lambda made: lambda folder: record(folder, round=3),
    "an earlier round": lambda made: lambda folder: record(folder, round=1),
    "other clients": lambda made: lambda folder: record(folder, kept={"0": 1}),
    "a pipe for a record": lambda made: pipe("checkpoints/round-0002.json"),
    "a pipe for a state": lambda made: pipe("clients/000000/0002.safetensors"),
}


@pytest.mark.parametrize("name", HARM)
def test_a_run_goes_on_from_what_is_its_own(made, tmp_path, name):
    folder = shutil.copytree(made / "half", tmp_path / "run")
    HARM[name](made)(folder)
    said = []
    rounds.run(
        RunFolder(folder).read_experiment(),
        folder,
        lambda event: said.append(event.text) if isinstance(event, Warned) else None,
    )
    assert any("going on after round 1" in text for text in said)
    assert results(folder) == results(made / "whole")


def test_a_changed_experiment_is_not_gone_on_with(made, tmp_path):
    folder = shutil.copytree(made / "half", tmp_path / "run")
    file = folder / "experiment.toml"
    file.write_text(file.read_text().replace("lr = ", "lr = 1", 1))
    with pytest.raises(UserError, match=r"experiment\.toml was changed since the run wrote it"):
        RunFolder(folder).read_experiment()
    # on purpose: but what was trained with other settings is nothing to go on from
    file.write_text(file.read_text().partition("# checksum")[0])
    with pytest.raises(UserError, match="of another experiment"):
        rounds.run(RunFolder(folder).read_experiment(), folder)
    assert possible_rounds(RunFolder(folder)) == [0]


@pytest.mark.parametrize("name", ["federation.json", "federation.safetensors", "events.jsonl"])
def test_no_pipe_is_waited_for(made, tmp_path, name):
    folder = shutil.copytree(made / "half", tmp_path / "run")
    pipe(name)(folder)
    refused = "" if name == "events.jsonl" else name
    with pytest.raises(UserError, match=name) if refused else nullcontext():
        rounds.run(RunFolder(folder).read_experiment(), folder)
    assert refused or results(folder) == results(made / "whole")


def test_results_of_others_are_noticed(made, tmp_path):
    folder = shutil.copytree(made / "whole", tmp_path / "run")
    held = FinishedRun(folder)
    shutil.copy(folder / "clients/000001/personal.safetensors", folder / "clients/000000")
    with pytest.raises(UserError, match=r"000000/personal\.safetensors is missing or damaged"):
        held.personal(0)
    rounds.run(read(None, [*SMALL, "method.sgd.lr=0.031"]), tmp_path / "other")
    shutil.copy(tmp_path / "other/model.safetensors", folder)
    with pytest.raises(UserError, match="it is another run's"):
        _ = held.model
    noted = json.loads((folder / "preprocessing.json").read_text())
    (folder / "preprocessing.json").write_text(json.dumps({**noted, "mean": [0.9]}))
    with pytest.raises(UserError, match=r"preprocessing\.json is missing or damaged"):
        _ = held.preprocessing


def test_figures_that_were_changed_are_noticed(made, tmp_path):
    folder = shutil.copytree(made / "whole", tmp_path / "run")
    file = folder / "metrics.json"
    whole = file.read_text()
    file.write_text(json.dumps({**json.loads(whole), "seconds": 1.0}))
    with pytest.raises(UserError, match=r"metrics\.json is damaged .its checksum"):
        runs.read(folder)
    file.write_text(whole)
    runs.read(folder)
    table = folder / "clients.csv"
    header, first, *others = table.read_text().splitlines()
    cells = first.split(",")
    for column in ("test_samples", *header.split(",")[8:]):
        place = header.split(",").index(column)
        changed = [*cells[:place], "0" if cells[place] != "0" else "1", *cells[place + 1 :]]
        table.write_text("\n".join([header, ",".join(changed), *others]) + "\n")
        with pytest.raises(UserError, match=r"clients\.csv is damaged"):
            runs.read(folder)
