"""New images, new labels, a client that comes, one that leaves, more rounds: a run goes on."""

import csv
import shutil
from pathlib import Path

import pytest
import torch

from calibre.data.federation import load as load_federation
from calibre.engine import rounds
from calibre.engine.checkpoints import Checkpoints
from calibre.engine.client_store import ClientStore
from calibre.errors import UserError
from calibre.experiment import read
from calibre.finished.run import FinishedRun
from calibre.finished.update import move, update
from calibre.report import runs
from calibre.run_folder import RunFolder
from calibre.tensors import belongs
from tests.conftest import TINY
from tests.finished.made_labels import digits, hospitals

KEEPS = ("method.name=fedrep", "network.width=2")  # every client keeps a head of its own


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    """A finished run of two hospitals, with its data beside it."""
    place = tmp_path_factory.mktemp("life")
    hospitals(place / "sites")
    tiny = [c for c in TINY if not c.startswith(("federation.", "network.width"))]
    own = (f"data.source={place / 'sites'}", "federation.novel=0", "training.clients_per_round=2")
    rounds.run(read(None, [*KEEPS, *tiny, *own, "training.rounds=1"]), place / "run")
    return place


@pytest.fixture
def life(first, tmp_path) -> Path:
    """A copy of both, which a test may change; the run has been told where its data is now."""
    shutil.copytree(first, tmp_path / "life")
    move(tmp_path / "life" / "run", str(tmp_path / "life" / "sites"))
    own_results(tmp_path / "life" / "run")
    return tmp_path / "life"


def as_if(run: Path, said: str, now: str) -> None:
    """Let a run be of other settings, as if it had been from the start."""
    folder = RunFolder(run)
    settings = folder.read_experiment().to_toml()
    assert said in settings
    folder.experiment.write_text(settings.replace(said, now))
    own_results(run)


def own_results(run: Path) -> None:
    """Let results be those of a run whose settings a test has changed."""
    held, now = runs.read_metrics(run), read(run / "experiment.toml").hash()
    (run / "metrics.json").write_text(held.model_copy(update={"experiment": now}).model_dump_json())


def model_of(folder: Path) -> dict[str, torch.Tensor]:
    (held,) = Checkpoints(folder / "checkpoints").whole(lambda text: None)
    return held.state.groups["model"]


def test_where_nothing_has_changed_there_is_nothing_to_do(life):
    with pytest.raises(UserError, match=r"nothing has changed .* train on with --rounds 10"):
        update(life / "run")


def test_more_rounds_extend_the_run_itself(life):
    done = update(life / "run", more=10)
    assert done.place == life / "run"
    assert done.experiment.training.rounds == 11
    assert done.experiment.training.ended == (1,)
    assert done.experiment.parent is None
    assert (
        RunFolder(life / "run").before.read_bytes() == (life / "run" / "clients.csv").read_bytes()
    )


def test_new_images_a_new_client_and_one_that_left(life):
    """They make a new run; it starts from what the old one learned and leaves that as it is."""
    digits(life / "sites" / "east", {0: 6, 1: 6, 2: 6}, skip=90, named=True)
    digits(life / "sites" / "south", {1: 4}, skip=120, named=True)  # new labels
    shutil.rmtree(life / "sites" / "north")
    before = {file: file.read_bytes() for file in (life / "run").rglob("*.*") if file.is_file()}
    done = update(life / "run", more=1)
    assert done.place == life / "run-v2"
    parent = done.experiment.parent
    assert parent.folder == "run"
    assert parent.experiment == read(life / "run" / "experiment.toml").hash()
    assert parent.federation == load_federation(life / "run").hash
    assert (parent.round, done.experiment.training.rounds) == (1, 2)
    old, new = model_of(life / "run"), model_of(done.place)
    assert all(torch.equal(old[name], new[name]) for name in old)
    # south was client 1 and is client 1 again after east; its head came along, north's did not
    folders = [RunFolder(place) for place in (life / "run", done.place)]
    stores = [ClientStore(f.clients, f.read_experiment().training_hash()) for f in folders]
    theirs, ours = (store.load(1, 1) for store in stores)
    assert theirs.keys() == ours.keys() != set()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert stores[1].load(0, 1) is None

    metrics = rounds.run(done.experiment, done.place)
    assert metrics.rounds == 2
    after = runs.read(done.place)
    assert [row.name for row in after.clients] == ["east", "south"]
    facts = FinishedRun(done.place).facts  # what cards of its bundles tell
    assert facts["run"]["parent"] == f"{parent.experiment}, round 1"
    assert facts["run"]["rounds"] == 2
    assert facts["settings"]["data"]["source"] == "sites"
    with open(RunFolder(done.place).before) as table:
        assert [row["name"] for row in csv.DictReader(table)] == ["north", "south"]
    assert all(file.read_bytes() == content for file, content in before.items())


def test_other_classes_leave_the_encoder_and_nothing_else(life):
    digits(life / "sites" / "south", {7: 6}, named=True)
    done = update(life / "run")
    assert "heads start anew" in done.notes[0]
    old, new = model_of(life / "run"), model_of(done.place)
    encoder = [name for name in new if belongs(name, ("encoder",))]
    assert encoder
    assert all(torch.equal(old[name], new[name]) for name in encoder)
    (held,) = Checkpoints(done.place / "checkpoints").whole(lambda text: None)
    assert held.kept == {}


def test_images_are_prepared_as_the_encoder_knows_them(life):
    digits(life / "sites" / "south", {1: 4}, skip=120, named=True)
    done = update(life / "run")
    noted = runs.read(life / "run").folder / "preprocessing.json"
    norm = done.experiment.network.normalization
    assert f'"mean":{[*norm.mean]}'.replace(" ", "") in noted.read_text().replace(" ", "").replace(
        "\n", ""
    )


def test_the_next_update_is_the_next_version(life):
    digits(life / "sites" / "south", {1: 4}, skip=120, named=True)
    assert update(life / "run").place.name == "run-v2"
    assert update(life / "run").place.name == "run-v3"


def test_a_run_that_goes_on_from_another_cannot_begin_anew(life, tmp_path):
    digits(life / "sites" / "south", {1: 4}, skip=120, named=True)
    done = update(life / "run")
    with pytest.raises(UserError, match="goes on from round 1 of the run run, whose state is not"):
        rounds.run(done.experiment, tmp_path / "elsewhere")


def test_data_that_moved_is_found_again_if_it_is_the_same(life):
    (life / "sites").rename(life / "moved")
    with pytest.raises(UserError, match=r"there is no such folder .*resume .* --data NEWPLACE"):
        update(life / "run")
    with pytest.raises(UserError, match=r"there is no such folder .*resume .* --data NEWPLACE"):
        FinishedRun(life / "run").bundle(0)
    move(life / "run", str(life / "moved"))
    assert read(life / "run" / "experiment.toml").data.source == str(life / "moved")
    digits(life / "moved" / "south", {1: 1}, skip=120, named=True)
    with pytest.raises(UserError, match=r"are not those of the run .*calibre-fl update"):
        move(life / "run", str(life / "moved"))
    with pytest.raises(UserError, match="there is no such folder or file"):
        move(life / "run", str(life / "nowhere"))


def test_if_all_took_part_in_a_round_newcomers_do_too(life):
    """Also where the setting was larger than the number of clients."""
    asked = RunFolder(life / "run").read_experiment()
    training = asked.training.model_copy(update={"clients_per_round": 3})
    rounds.run(asked.model_copy(update={"training": training}), life / "larger")
    for number, name in enumerate(("east", "west")):
        digits(life / "sites" / name, {0: 6, 1: 6}, skip=80 + 10 * number, named=True)
    assert update(life / "larger").experiment.training.clients_per_round == 4


def test_rounds_on_labels_alone_are_told(tiny, tmp_path):
    """Of 5 rounds the last 3 are on labels alone: of 3 that are added all, of 4 not."""
    changes = "method.labels.weight=1", "method.labels.last_rounds=3", "training.rounds=5"
    rounds.run(tiny(*changes, "federation.labels=1"), tmp_path / "run")
    (note,) = update(tmp_path / "run", more=3).notes
    assert "unlabelled images take no part" in note
    assert update(tmp_path / "run", more=4).notes == ()


def test_a_run_of_sites_says_what_to_do_instead(life):
    as_if(life / "run", '"embedded"', '"flower"')
    with pytest.raises(UserError, match=r"deploy run .* --set network.weights"):
        update(life / "run", more=2)


def test_a_private_run_is_extended_and_its_promise_with_it(tiny, tmp_path):
    private = tiny("method.name=fedavg", "privacy.clip=1", "training.clients_per_round=5")
    first = rounds.run(private, tmp_path / "run").privacy
    done = update(tmp_path / "run", more=3)
    then = rounds.run(done.experiment, done.place).privacy
    assert first is not None
    assert then is not None
    assert then.rounds == first.rounds + 3
    assert then.epsilon > first.epsilon


def test_a_private_run_does_not_go_on_with_other_data(life):
    as_if(life / "run", "[privacy]", "[privacy]\nclip = 1.0")
    digits(life / "sites" / "south", {1: 4}, skip=120, named=True)
    with pytest.raises(UserError, match=r"does not hold for other data: train a new run"):
        update(life / "run", more=1)
