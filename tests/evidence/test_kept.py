"""The ledger: what runs leave in it, and what is refused."""

import json
import shutil
import threading
import time

import pytest

from calibre.engine import rounds
from calibre.errors import UserError
from calibre.evidence import entry as entries
from calibre.evidence import kept
from calibre.evidence.entry import ORIGIN, Origin, read_entry
from calibre.evidence.kept import Evidence
from calibre.evidence.noted import note
from calibre.evidence.origin import Source, code_hash
from calibre.experiment import RESULTS, read
from calibre.files import sealed, unsealed
from calibre.report.compare import compare
from calibre.run_folder import RunFolder

SOURCE = Source(code=code_hash(), commit="1234567890", machine="2 cores of made-up silicon")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run's folder, and its experiment."""
    from calibre.experiment import read
    from tests.conftest import TINY

    place = tmp_path_factory.mktemp("run")
    experiment = read(None, ["method.name=fedavg-ft", *TINY, "training.epochs=2"])
    note(place, SOURCE)
    rounds.run(experiment, place)
    return place, experiment


@pytest.fixture
def evidence(finished, tmp_path):
    found = Evidence(tmp_path / "evidence")
    found.add(finished[0])
    return found


@pytest.fixture
def folder(evidence):
    """Of the entry."""
    (found,) = visible(evidence.folder)
    return found


def visible(ledger):
    return [place for place in ledger.iterdir() if not place.name.startswith(".")]


def test_an_entry_tells_what_a_run_came_to_and_where_it_comes_from(finished, evidence):
    place, experiment = finished
    (folder,) = visible(evidence.folder)
    assert {file.name for file in folder.iterdir()} == {
        "experiment.toml", "metrics.json", "clients.csv", ORIGIN,
    }  # fmt: skip
    found = Evidence(evidence.folder).find(experiment)
    assert found.run.clients == read_entry(folder).run.clients
    assert (folder / "clients.csv").read_bytes() == (place / "clients.csv").read_bytes()
    told = found.origin
    assert (told.code, told.commit, told.machine) == (SOURCE.code, SOURCE.commit, SOURCE.machine)
    assert told.results == RESULTS
    assert told.seconds > 0
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
    note(tmp_path / "run", SOURCE)
    rounds.run(tiny("method.name=fedavg-ft", "personal.clients=novel"), tmp_path / "run")
    told = Evidence(tmp_path / "evidence").add(tmp_path / "run").origin
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
        found = Evidence(tmp_path).add(place)
    finally:
        (place / "experiment.toml").write_text(text)
    assert "/home/me" not in (found.run.folder / "experiment.toml").read_text()
    assert Evidence(tmp_path).find(experiment) is not None


@pytest.mark.parametrize("name", ["experiment.toml", "metrics.json", "clients.csv", ORIGIN])
def test_an_entry_that_was_edited_is_refused_by_name(evidence, name):
    (folder,) = visible(evidence.folder)
    text = (folder / name).read_text()
    changed = text.replace("0.", "0.1", 1) if name == "clients.csv" else text.replace("1", "2", 1)
    assert changed != text
    (folder / name).write_text(changed)
    with pytest.raises(UserError, match=f"{folder.name} was changed by hand"):
        Evidence(evidence.folder)


@pytest.mark.parametrize("name", ["experiment.toml", "metrics.json", "clients.csv", ORIGIN])
def test_a_half_written_entry_is_refused_by_name(evidence, folder, name):
    shutil.copytree(folder, folder.with_name(f"another-{folder.name}"))
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
    (folder,) = visible(evidence.folder)
    file = folder / "experiment.toml"
    file.write_text(file.read_text().replace("[data]", "[data]\nforgotten = 1"))
    forged(folder, ORIGIN, lambda told: told)
    with pytest.raises(UserError, match=f"{folder.name} is of other code.*forgotten"):
        Evidence(evidence.folder)


def test_a_run_that_other_code_began_does_not_enter(finished, tmp_path):
    place, _ = finished
    text = (place / "events.jsonl").read_text()
    (place / "events.jsonl").write_text(text.replace(f'"results":"{RESULTS}"', '"results":"0"'))
    try:
        with pytest.raises(UserError, match=rf"other code .results of version 0, now {RESULTS}"):
            Evidence(tmp_path / "evidence").add(place)
    finally:
        (place / "events.jsonl").write_text(text)
    assert [place.name for place in (tmp_path / "evidence").iterdir()] == [".lock"]


@pytest.mark.parametrize("name", ["its own", "another", "an older hash"])
def test_a_newer_entry_takes_the_place_of_an_older_one(finished, evidence, folder, name):
    older = folder if name == "its own" else folder.with_name("older-" + folder.name[-8:])
    folder.rename(older)
    forged(older, ORIGIN, lambda told: {**told, "results": RESULTS - 1, "commit": "old"})
    if name == "an older hash":
        forged(older, "metrics.json", lambda told: {**told, "experiment": "0" * 16})
        older.rename(folder.with_name("older-00000000"))
    again = Evidence(evidence.folder)
    assert again.find(finished[1]) is None
    again.add(finished[0])
    assert {place.name for place in evidence.folder.iterdir()} == {folder.name, ".lock"}
    assert Evidence(evidence.folder).find(finished[1]).origin.commit == SOURCE.commit


def test_an_entry_that_somebody_made_meanwhile_stays(finished, tmp_path):
    both = [Evidence(tmp_path / "evidence") for _ in range(2)]
    first = both[0].add(finished[0])
    before = (first.run.folder / ORIGIN).stat()
    assert both[1].add(finished[0]).origin == first.origin
    after = (first.run.folder / ORIGIN).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert both[1].find(finished[1]) is not None


def test_who_adds_waits_for_who_reads_or_writes(finished, tmp_path):
    found = Evidence(tmp_path / "evidence")
    found.make()
    adding = threading.Thread(target=found.add, args=[finished[0]])
    with kept._reading(found.folder):
        adding.start()
        time.sleep(0.3)
        assert {place.name for place in found.folder.iterdir()} == {".lock"}
    adding.join()
    reading = threading.Thread(target=Evidence, args=[found.folder])
    with kept._writing(found.folder):
        reading.start()
        time.sleep(0.3)
        assert reading.is_alive()
    reading.join()
    assert len(visible(found.folder)) == 1


def test_writers_and_readers_at_once_see_whole_entries(finished, evidence, folder, monkeypatch):
    """Each writer takes what is there for older, so that all replace it."""
    monkeypatch.setattr(kept, "RESULTS", RESULTS + 1)
    wrong = []

    def again(work):
        try:
            for _ in range(10):
                work()
        except Exception as error:
            wrong.append(error)

    def read_all():
        assert len(Evidence(evidence.folder).entries) == 1

    def write():
        Evidence(evidence.folder).add(finished[0])

    workers = [threading.Thread(target=again, args=[work]) for work in (write, write, read_all)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert {place.name for place in evidence.folder.iterdir()} == {folder.name, ".lock"}


def test_what_killed_writers_left_of_an_entry_goes_with_the_next(finished, tmp_path):
    ledger, name = tmp_path / "evidence", finished[1].folder_name
    for left in (f".{name}.1", f".{name}.older", ".other-12345678.1"):
        (ledger / left / name).mkdir(parents=True)
    Evidence(ledger).add(finished[0])
    left = {place.name for place in ledger.iterdir()}
    assert left == {name, ".lock", ".other-12345678.1"}
    assert len(Evidence(ledger).entries) == 1


def test_an_entry_that_cannot_be_put_in_its_place_leaves_the_older_one(
    finished, evidence, folder, monkeypatch
):
    forged(folder, ORIGIN, lambda told: {**told, "results": RESULTS - 1})
    again, rename = Evidence(evidence.folder), type(folder).rename

    def fail(self, target):
        if self.parent.parent == evidence.folder and target == folder and self.name == folder.name:
            raise OSError("the disk is full")
        return rename(self, target)

    monkeypatch.setattr(type(folder), "rename", fail)
    with pytest.raises(OSError, match="full"):
        again.add(finished[0])
    assert Evidence(evidence.folder).entries.keys() == again.entries.keys()


def test_one_experiment_twice_is_refused(evidence, folder):
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
    summed = Origin.model_construct(**told)
    told["checksum"] = entries._checksum(folder, summed)
    (folder / ORIGIN).write_text(json.dumps(told, indent=2) + "\n")


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
    (folder,) = visible(evidence.folder)
    forged(folder, name, lambda told: told)
    Evidence(evidence.folder)
    forged(folder, name, change)
    with pytest.raises(UserError, match=f"{folder.name} was changed by hand.*{said}"):
        Evidence(evidence.folder)


def test_an_entry_under_the_name_of_another_experiment_is_refused(evidence):
    (folder,) = visible(evidence.folder)
    folder.rename(folder.with_name("digits-fedavg-00000000"))
    with pytest.raises(UserError, match=r"digits-fedavg-00000000 was changed.*not named for"):
        Evidence(evidence.folder)


def test_an_entry_is_four_files_of_its_own(evidence, tmp_path):
    (folder,) = visible(evidence.folder)
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


def test_what_tells_about_the_ledger_is_a_file(evidence):
    (evidence.folder / "README.md").mkdir()
    with pytest.raises(UserError, match=r"README.md is not a file"):
        Evidence(evidence.folder)


@pytest.mark.parametrize("kind", ["an entry", "runs", "a run", "other things"])
def test_a_folder_that_is_no_ledger_is_told_and_nothing_in_it_is_to_go(
    finished, folder, tmp_path, kind
):
    (tmp_path / "things" / "letters").mkdir(parents=True)
    place = {
        "an entry": folder,
        "runs": shutil.copytree(finished[0], tmp_path / "runs" / finished[0].name).parent,
        "a run": finished[0],
        "other things": tmp_path / "things",
    }[kind]
    with pytest.raises(UserError, match=r"ledger.*give the (right folder|folder that it)") as told:
        Evidence(place)
    assert "remove" not in str(told.value)


@pytest.mark.parametrize("name", ["events.jsonl", "checkpoints"])
def test_a_run_folder_in_the_ledger_is_not_to_be_removed(evidence, folder, name):
    run = evidence.folder / "run"
    shutil.copytree(folder, run)
    (run / name).mkdir()
    with pytest.raises(UserError, match=r"run is a run folder.*move it elsewhere") as told:
        Evidence(evidence.folder)
    assert "remove" not in str(told.value)


@pytest.mark.parametrize("kind", ["a file", "a dangling link", "a circle"])
@pytest.mark.parametrize("below", ["", "ledger"])
def test_a_place_that_cannot_be_a_ledger_is_told_in_words(tmp_path, kind, below):
    place = tmp_path / "place"
    if kind == "a file":
        place.write_text("")
    else:
        place.symlink_to(place if kind == "a circle" else tmp_path / "nothing")
    with pytest.raises(UserError, match=r"place.*ledger"):
        Evidence(place / below).make()


@pytest.mark.parametrize(
    ("ledger", "out", "fit"),
    [
        ("same", "same", False),
        ("ledger", "ledger/runs", False),
        ("ledger", "link/runs", False),
        ("runs/ledger", "runs", True),
        ("ledger", "ledger-runs", True),
    ],
)
def test_runs_lie_outside_the_ledger(tmp_path, ledger, out, fit):
    (tmp_path / "ledger").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ledger")
    if fit:
        assert kept.check_apart(tmp_path / ledger, tmp_path / out) is None
        return
    with pytest.raises(UserError, match=r"is the ledger .* or lies in it.*--out"):
        kept.check_apart(tmp_path / ledger, tmp_path / out)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + "\n",
        lambda text: text.replace("{\n", "{\n\n", 1),
        lambda text: text.replace('  "results"', '  "commit": "x",\n  "results"'),
        lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=2) + "\n",
    ],
    ids=["line at the end", "blank line", "key twice", "other order"],
)
def test_an_origin_is_written_in_one_way(folder, change):
    file = folder / ORIGIN
    text = file.read_text()
    values = json.loads(text)
    file.write_text(change(text))
    assert json.loads(file.read_text()) == values  # nothing that is said has changed
    with pytest.raises(UserError, match=r"changed by hand.*origin.json is not as a run writes it"):
        read_entry(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seconds", -1.0),
        ("passes", -0.5),
        ("images", 10**13),
        ("commit", "a|b"),
        ("code", "<b>"),
        ("machine", "one\ntwo"),
        ("machine", "x" * 201),
        ("commit", ""),
        ("versions", {"python": "3 | 4"}),
        ("versions", {"\u202epython": "3"}),
    ],
)
def test_facts_of_an_origin_are_plain_and_bounded(folder, key, value):
    forged(folder, ORIGIN, lambda told: {**told, key: value})
    with pytest.raises(UserError, match=rf"changed by hand.*cannot be read: {key}"):
        read_entry(folder)


def test_seconds_are_those_of_the_run(folder):
    forged(folder, ORIGIN, lambda told: {**told, "seconds": told["seconds"] + 1})
    with pytest.raises(UserError, match=r"says seconds = "):
        read_entry(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("client,", "who,", 1), "not a table of clients"),
        (lambda text: text.replace("\n0,", "\n0,0,", 1), "columns"),
        (lambda text: text.replace("\n0,", "\nzero,", 1), "invalid literal"),
        (lambda text: text.partition("\n")[0] + "\n", "lists no clients"),
    ],
)
def test_a_table_that_is_none_was_changed_by_hand(folder, change, said):
    file = folder / "clients.csv"
    file.write_text(change(file.read_text()))
    forged(folder, ORIGIN, lambda told: told)
    with pytest.raises(UserError, match=rf"{folder.name} was changed by hand.*{said}") as told:
        read_entry(folder)
    assert "calibre-fl" not in str(told.value)


def test_a_run_of_code_that_is_not_known_does_not_enter(finished, tmp_path):
    copy = shutil.copytree(finished[0], tmp_path / "run")
    (copy / "source.json").unlink()
    with pytest.raises(UserError, match=r"run does not say which code ran it.*--out"):
        Evidence(tmp_path / "evidence").add(copy)
    assert visible(tmp_path / "evidence") == []


def test_figures_that_cannot_be_are_told_of_the_entry_and_not_resumed(evidence):
    (folder,) = visible(evidence.folder)
    forged(folder, "metrics.json", lambda told: {**told, "train": {"clients": -1}})
    with pytest.raises(UserError, match=r"metrics\.json: train\.clients") as told:
        Evidence(evidence.folder)
    assert "calibre-fl resume" not in str(told.value)
