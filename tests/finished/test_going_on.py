"""An updated run tests on nothing that was trained on: counted by pixels, on noise."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calibre.data import federation as federations
from calibre.data.sources import load
from calibre.engine import rounds
from calibre.errors import UserError
from calibre.finished.again import anew
from calibre.finished.run import FinishedRun
from calibre.finished.update import update
from calibre.run_folder import RunFolder
from tests.finished.noise import CLIENTS, check_kept, holdings, noise, noise_run, picture


@pytest.fixture
def life(tmp_path) -> Path:
    """A run on noise, and its images."""
    noise_run(tmp_path / "run", noise(tmp_path / "data"))
    return tmp_path


def labelled_files(client: Path) -> list[Path]:
    return sorted(file for file in client.rglob("*.png") if file.parent.name in "01")


def test_one_new_image_for_each_client(life):
    before = holdings(life / "run")
    for number, client in enumerate(CLIENTS):
        picture(life / "data" / client / "0" / "000-new.png", 9000 + number)
    after = holdings(update(life / "run").place)
    check_kept(before, after)
    for name in CLIENTS:
        assert after[name].test >= before[name].test
        assert after[name].trained >= before[name].trained
        assert len(after[name].test | after[name].trained) == 41


def test_new_images_are_split_as_usual(life):
    """A fifth of them, and of each client's, to within one."""
    before, numbers = holdings(life / "run"), iter(range(9000, 9999))
    for client in CLIENTS:
        for i in range(25):
            picture(life / "data" / client / str(i % 2) / f"n{i}.png", next(numbers))
    after = holdings(update(life / "run").place)
    check_kept(before, after)
    more = [len(after[name].test) - len(before[name].test) for name in CLIENTS]
    assert set(more) <= {4, 5, 6}
    assert abs(sum(more) - 20) <= 1


def test_one_image_at_a_time_makes_the_test_part_grow(life):
    """A fifth of a single image is none: but each is one with a chance of a fifth."""
    run, grown = life / "run", 0
    for number in range(25):
        picture(life / "data" / "east" / "0" / f"n{number}.png", 9000 + number)
        before, run = holdings_of_names(run), update(run).place
        grown += len(holdings(run)["east"].test) - before["east"]
        finish(run)
    assert 1 <= grown <= 12


def holdings_of_names(run: Path) -> dict[str, int]:
    held = federations.load(run)
    return dict(zip(held.names, held.test.sizes.tolist(), strict=True))


def finish(run: Path) -> None:
    rounds.run(RunFolder(run).read_experiment(), run)


def test_labels_moved_and_images_gone_with_nothing_added(life):
    before = holdings(life / "run")
    for client in CLIENTS:
        files = labelled_files(life / "data" / client)
        for file in files[::3]:
            file.rename(file.parents[1] / str(1 - int(file.parent.name)) / file.name)
        files[1].unlink()
    after = holdings(update(life / "run").place)
    check_kept(before, after)
    for name in CLIENTS:
        assert len(after[name].test | after[name].trained) == 39
        assert after[name].test <= before[name].test
        assert after[name].trained <= before[name].trained


def test_a_name_that_changes_alone_changes_nothing_of_the_split(life):
    before = holdings(life / "run")
    file = labelled_files(life / "data" / "north")[0]
    file.rename(file.with_name("zzz.png"))
    assert holdings(update(life / "run").place) == before


def test_labels_for_images_that_were_trained_on_without(life):
    before = holdings(life / "run")
    for client in CLIENTS:
        for i, file in enumerate(sorted((life / "data" / client / "unlabelled").iterdir())):
            if i < 8:
                file.rename(life / "data" / client / str(i % 2) / file.name)
    after = holdings(update(life / "run").place)
    check_kept(before, after)
    for name in CLIENTS:
        assert after[name].test == before[name].test
        assert len(after[name].labelled) == len(before[name].labelled) + 8
        assert after[name].trained == before[name].trained


def test_a_new_client_is_split_as_usual(life):
    before = holdings(life / "run")
    noise(life / "data", ("young",), first=7000)
    after = holdings(update(life / "run").place)
    check_kept(before, after)
    assert {name: after[name] for name in CLIENTS} == before
    assert len(after["young"].test) in (5, 6, 7)


def test_a_chain_keeps_what_left_and_came_back(life):
    first, one, two = life / "run", labelled_files(life / "data" / "east"), life / "aside"
    before = holdings(first)
    two.mkdir()
    for file in one[:20]:
        file.rename(two / f"{file.parent.name}-{file.name}")
    second = update(first).place
    finish(second)
    for file in two.iterdir():
        label, _, name = file.name.partition("-")
        file.rename(life / "data" / "east" / label / name)
    picture(life / "data" / "west" / "0" / "new.png", 9000)
    third = update(second).place
    check_kept(before, holdings(third))
    assert holdings(third)["east"] == before["east"]


def test_it_is_the_same_after_a_stop_and_when_read_again(life):
    before = holdings(life / "run")
    for number, client in enumerate(CLIENTS):
        picture(life / "data" / client / "0" / "000-new.png", 9000 + number)
    done = update(life / "run", more=2)
    held = federations.load(done.place)
    stopped = shutil.copytree(done.place, life / "copy")
    rounds.run(done.experiment, done.place)
    rounds.run(RunFolder(stopped).read_experiment(), stopped)
    for run in (done.place, stopped):
        assert federations.load(run).hash == held.hash
    assert (stopped / "clients.csv").read_bytes() == (done.place / "clients.csv").read_bytes()
    table = (done.place / "clients.csv").read_bytes()
    finish(done.place)  # what is finished makes the same personal models again
    assert (done.place / "clients.csv").read_bytes() == table
    finished = FinishedRun(done.place)
    assert finished.bundle(0).card.accuracy.value == finished.results[0].accuracy
    other = anew(done.place, ["personal.epochs=1"], life / "anew")
    rounds.run(*other)
    assert federations.load(life / "anew").hash == held.hash
    with pytest.raises(UserError, match="nothing has changed"):
        update(life / "anew")
    picture(life / "data" / "east" / "0" / "more.png", 9900)
    check_kept(before, holdings(update(life / "anew").place))
    with pytest.raises(UserError, match="holds a run on other data"):
        finish(done.place)


def test_a_test_part_of_ones_own_does_not_test_on_what_was_trained_on(tmp_path):
    for number in range(24):
        part = "test" if number < 6 else "train"
        picture(tmp_path / "data" / part / str(number % 2) / f"{number}.png", number)
    owners = ("federation.clients=2", "federation.scheme=iid")
    noise_run(tmp_path / "run", tmp_path / "data", *owners)
    before = holdings(tmp_path / "run")
    for file in sorted((tmp_path / "data" / "train" / "0").iterdir())[:4]:
        file.rename(tmp_path / "data" / "test" / "0" / file.name)
    picture(tmp_path / "data" / "test" / "1" / "new.png", 900)
    after = holdings(update(tmp_path / "run").place)
    check_kept(before, after)
    assert len(set().union(*(held.test for held in after.values()))) <= 7


@pytest.mark.parametrize("overlap", ["disjoint", "independent"])
def test_clients_that_are_made_up(tmp_path, overlap):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (300, 8, 8), dtype=np.uint8)
    labels = rng.integers(0, 3, 300)
    source = tmp_path / "images.npz"
    np.savez(source, images=images[:250], labels=labels[:250])
    dealt = ("federation.clients=4", "federation.samples=20", f"federation.overlap={overlap}")
    noise_run(tmp_path / "run", source, *dealt)
    before, pool = (
        holdings(tmp_path / "run"),
        load(RunFolder(tmp_path / "run").read_experiment().data),
    )
    trained = {image.tobytes() for image in pool.images[pool.train]}
    order = rng.permutation(300)
    np.savez(source, images=images[order], labels=labels[order])
    after = holdings(update(tmp_path / "run").place)
    check_kept(before, after)
    assert not trained & set().union(*(held.test for held in after.values()))


def test_validation_images_stay_what_they_were(tmp_path):
    noise_run(tmp_path / "run", noise(tmp_path / "data"), "federation.score_on=validation")
    before = holdings(tmp_path / "run")
    for number, client in enumerate(CLIENTS):
        for i in range(10):
            picture(tmp_path / "data" / client / "0" / f"0{i}.png", 9000 + 100 * number + i)
    after = holdings(update(tmp_path / "run").place)
    check_kept(before, after)
    assert all(after[name].test >= before[name].test for name in CLIENTS)


def test_a_client_without_its_test_images_is_left_out_and_named(life):
    """What is left of its images was all trained on."""
    held = holdings(life / "run")["south"]
    for file in labelled_files(life / "data" / "south"):
        if pixels(file) in held.test:
            file.unlink()
    done = update(life / "run")
    assert "south" not in federations.load(done.place).names
    assert any("'south' is no client any more" in note for note in done.notes)


def pixels(file: Path) -> bytes:
    return np.asarray(Image.open(file)).tobytes()


def test_a_run_that_noted_nothing_is_looked_up_among_decoded_images(life, monkeypatch):
    """As runs of earlier versions are, while their images are still kept decoded."""
    before = holdings(life / "run")
    RunFolder(life / "run").purposes.unlink()
    picture(life / "data" / "east" / "0" / "000-new.png", 9000)
    check_kept(before, holdings(update(life / "run").place))
    monkeypatch.setenv("CALIBRE_CACHE", str(life / "other"))
    with pytest.raises(UserError, match=r"did not note which images .*resume"):
        update(life / "run")
    (life / "data" / "east" / "0" / "000-new.png").unlink()
    finish(life / "run")
    assert RunFolder(life / "run").purposes.exists()


def test_an_update_by_an_earlier_version_is_told_of(life):
    """It drew its test part anew, so that its encoder may have seen it."""
    picture(life / "data" / "east" / "0" / "000-new.png", 9000)
    done = update(life / "run")
    assert done.notes == ()
    finish(done.place)
    RunFolder(done.place).purposes.unlink()
    picture(life / "data" / "east" / "0" / "001-new.png", 9001)
    (note,) = update(done.place).notes
    assert "drew the test part anew" in note


def test_damage_to_what_was_noted_is_noticed(life):
    picture(life / "data" / "east" / "0" / "000-new.png", 9000)
    file = RunFolder(life / "run").purposes
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)
    with pytest.raises(UserError, match=r"purposes.safetensors is damaged"):
        update(life / "run")
