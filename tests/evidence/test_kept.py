"""The ledger: what runs leave in it, and what is refused."""

import json

import pytest

from calibre.engine import rounds
from calibre.errors import UserError
from calibre.evidence import entry as entries
from calibre.evidence import kept
from calibre.evidence.entry import ORIGIN, read_entry
from calibre.evidence.kept import Evidence
from calibre.evidence.origin import Source
from calibre.experiment import RESULTS, read
from calibre.files import sealed, unsealed
from calibre.report.compare import compare
from calibre.run_folder import RunFolder

SOURCE = Source("code", "1234567890")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run's folder, and its experiment."""
    from calibre.experiment import read
    from tests.conftest import TINY

    place = tmp_path_factory.mktemp("run")
    experiment = read(None, ["method.name=fedavg-ft", *TINY, "training.epochs=2"])
    rounds.run(experiment, place)
    return place, experiment


@pytest.fixture
def evidence(finished, tmp_path):
    found = Evidence(tmp_path / "evidence")
    found.add(finished[0], SOURCE)
    return found


def test_an_entry_tells_what_a_run_came_to_and_where_it_comes_from(finished, evidence):
    place, experiment = finished
    (folder,) = evidence.folder.iterdir()
    assert {file.name for file in folder.iterdir()} == {
        "experiment.toml", "metrics.json", "clients.csv", ORIGIN,
    }  # fmt: skip
    found = Evidence(evidence.folder).find(experiment)
    assert found.run.clients == read_entry(folder).run.clients
    assert (folder / "clients.csv").read_bytes() == (place / "clients.csv").read_bytes()
    told = found.origin
    assert (told.code, told.commit, told.results) == ("code", "1234567890", RESULTS)
    assert told.seconds > 0
    assert "core" in told.machine
    assert set(told.versions) == {"python", "torch"}
    held = [row for row in found.run.clients if not row.novel]
    # three rounds of three clients and two epochs, by labelled images alone
    reports = [r for e in found_events(place) for r in e.clients.values()]
    assert told.images == sum(r["images"] for r in reports) > 0
    samples = {row.id: row.samples for row in held}
    expected = sum(2 * samples[c] for e in found_events(place) for c in e.clients)
    assert told.images == expected
    images = sum(row.samples + row.unlabelled for row in held)
    assert told.passes == pytest.approx(expected / images, abs=0.005)


def test_what_others_hold_is_not_told_where_novel_clients_alone_have_models(tiny, tmp_path):
    rounds.run(tiny("method.name=fedavg-ft", "personal.clients=novel"), tmp_path / "run")
    told = Evidence(tmp_path / "evidence").add(tmp_path / "run", SOURCE).origin
    assert told.images > 0
    assert told.passes is None


def found_events(place):
    from calibre.report import runs

    return runs.read(place).rounds


def test_entries_are_compared_like_runs(evidence):
    (found,) = evidence.entries.values()
    assert "FedAvg-FT" in str(compare([found.run]))


def test_no_place_on_a_disk_is_told(finished, tmp_path):
    place, experiment = finished
    text = (place / "experiment.toml").read_text()
    RunFolder(place).write_experiment(read(experiment, ["data.root=/home/me"]))
    try:
        found = Evidence(tmp_path).add(place, SOURCE)
    finally:
        (place / "experiment.toml").write_text(text)
    assert "/home/me" not in (found.run.folder / "experiment.toml").read_text()
    assert Evidence(tmp_path).find(experiment) is not None


@pytest.mark.parametrize("name", ["experiment.toml", "metrics.json", "clients.csv", ORIGIN])
def test_an_entry_that_was_edited_is_refused_by_name(evidence, name):
    (folder,) = evidence.folder.iterdir()
    text = (folder / name).read_text()
    changed = text.replace("0.", "0.1", 1) if name == "clients.csv" else text.replace("1", "2", 1)
    assert changed != text
    (folder / name).write_text(changed)
    with pytest.raises(UserError, match=f"{folder.name} was changed by hand"):
        Evidence(evidence.folder)


@pytest.mark.parametrize("name", ["experiment.toml", "metrics.json", "clients.csv", ORIGIN])
def test_a_half_written_entry_is_refused_by_name(evidence, name):
    (folder,) = evidence.folder.iterdir()
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{folder.name} is not a whole entry.*{name}"):
        Evidence(evidence.folder)


def test_what_a_kill_left_of_an_entry_is_passed_over(evidence):
    (evidence.folder / ".half.123").mkdir()
    assert len(Evidence(evidence.folder).entries) == 1


def test_results_of_other_code_are_run_again_and_not_published(finished, evidence, monkeypatch):
    _, experiment = finished
    evidence.check_code()
    monkeypatch.setattr(kept, "RESULTS", RESULTS + 1)
    later = Evidence(evidence.folder)
    assert later.find(experiment) is None
    with pytest.raises(UserError, match=rf"its results are of version {RESULTS}.*of {RESULTS + 1}"):
        later.check_code()


def test_an_experiment_that_cannot_be_read_any_more_is_of_other_code(evidence):
    (folder,) = evidence.folder.iterdir()
    file = folder / "experiment.toml"
    file.write_text(file.read_text().replace("[data]", "[data]\nforgotten = 1"))
    told = json.loads((folder / ORIGIN).read_text())
    told["checksum"] = entries._checksum(folder, entries.Origin(**told))
    (folder / ORIGIN).write_text(json.dumps(told))
    with pytest.raises(UserError, match=f"{folder.name} is of other code.*forgotten"):
        Evidence(evidence.folder)


def test_a_run_that_other_code_began_does_not_enter(finished, tmp_path):
    place, _ = finished
    text = (place / "events.jsonl").read_text()
    (place / "events.jsonl").write_text(text.replace(f'"results":"{RESULTS}"', '"results":"0"'))
    try:
        with pytest.raises(UserError, match=rf"other code .results of version 0, now {RESULTS}"):
            Evidence(tmp_path / "evidence").add(place, SOURCE)
    finally:
        (place / "events.jsonl").write_text(text)
    assert not (tmp_path / "evidence").exists()


def test_a_newer_entry_takes_the_place_of_an_older_one(finished, evidence):
    (folder,) = evidence.folder.iterdir()
    folder.rename(folder.with_name(f"older-{folder.name[-8:]}"))
    again = Evidence(evidence.folder)
    again.add(finished[0], Source("other", "commit"))
    assert [place.name for place in evidence.folder.iterdir()] == [folder.name]
    assert Evidence(evidence.folder).find(finished[1]).origin.code == "other"


def test_one_experiment_twice_is_refused(evidence):
    import shutil

    (folder,) = evidence.folder.iterdir()
    shutil.copytree(folder, folder.with_name(f"twin-{folder.name[-8:]}"))
    with pytest.raises(UserError, match="hold the same experiment"):
        Evidence(evidence.folder)


def forged(folder, name, change):
    """The entry with another table in one of its JSON files, and seals and sums that fit."""
    file = folder / name
    if name == "experiment.toml":
        file.write_text(change(file.read_text()))
    else:
        fields = change(unsealed(file.read_bytes()))
        file.write_text(json.dumps(sealed(fields) if name == "metrics.json" else fields))
    told = {**json.loads((folder / ORIGIN).read_text()), "checksum": ""}
    told["checksum"] = entries._checksum(folder, entries.Origin(**told))
    (folder / ORIGIN).write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("experiment.toml", lambda text: text.replace("seed = 0", "seed = 1"), "says experiment ="),
        ("metrics.json", lambda told: {**told, "experiment": "0" * 16}, "it is not named for"),
        ("metrics.json", lambda told: {**told, "seed": 7}, "says seed = 7, but it is 0"),
        ("metrics.json", lambda told: {**told, "rounds": 9}, "says rounds = 9, but it is 3"),
        ("metrics.json", lambda told: {**told, "images": 1}, "says images = 1, but it is "),
        (ORIGIN, lambda told: {**told, "images": 1}, "says images = "),
    ],
)
def test_files_that_tell_of_unlike_runs_are_refused_also_where_their_sums_fit(
    evidence, name, change, said
):
    (folder,) = evidence.folder.iterdir()
    forged(folder, name, lambda told: told)
    Evidence(evidence.folder)
    forged(folder, name, change)
    with pytest.raises(UserError, match=f"{folder.name} was changed by hand.*{said}"):
        Evidence(evidence.folder)


def test_an_entry_under_the_name_of_another_experiment_is_refused(evidence):
    (folder,) = evidence.folder.iterdir()
    folder.rename(folder.with_name("digits-fedavg-00000000"))
    with pytest.raises(UserError, match=r"digits-fedavg-00000000 was changed.*not named for"):
        Evidence(evidence.folder)


def test_an_entry_is_four_files_of_its_own(evidence, tmp_path):
    (folder,) = evidence.folder.iterdir()
    (folder / "notes.txt").write_text("")
    with pytest.raises(UserError, match=r"notes.txt does not belong to an entry"):
        Evidence(evidence.folder)
    (folder / "notes.txt").unlink()
    (folder / "clients.csv").rename(tmp_path / "clients.csv")
    (folder / "clients.csv").symlink_to(tmp_path / "clients.csv")
    with pytest.raises(UserError, match=r"clients.csv is a link"):
        Evidence(evidence.folder)


@pytest.mark.parametrize("kind", ["file", "link to nothing", "link to a folder"])
def test_what_is_no_folder_is_no_entry(evidence, tmp_path, kind):
    (evidence.folder / "README.md").write_text("about the ledger")
    place = evidence.folder / "digits-1234abcd"
    if kind == "file":
        place.write_text("")
    else:
        place.symlink_to(tmp_path / "nothing" if kind == "link to nothing" else tmp_path)
    with pytest.raises(UserError, match="digits-1234abcd is not an entry of the ledger"):
        Evidence(evidence.folder)


def test_figures_that_cannot_be_are_told_of_the_entry_and_not_resumed(evidence):
    (folder,) = evidence.folder.iterdir()
    forged(folder, "metrics.json", lambda told: {**told, "train": {"clients": -1}})
    with pytest.raises(UserError, match=r"metrics\.json: train\.clients") as told:
        Evidence(evidence.folder)
    assert "calibre-fl resume" not in str(told.value)
