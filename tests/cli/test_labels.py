import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from calibre.data import labels_file
from calibre.engine import rounds
from calibre.personal.bundle import load
from calibre.personal.card_text import labels_in_words
from tests.cli.test_bundles import fails, invoke
from tests.finished.made_labels import digits, hospitals, run_of
from tests.personal.made_bundle import make_bundle, write_folder
from tests.test_cli import hear_ctrl_c


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return hospitals(tmp_path_factory.mktemp("data") / "hospitals")


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    return run_of(data, tmp_path_factory.mktemp("run") / "r")


@pytest.fixture(scope="module")
def of_digits(tmp_path_factory):
    return run_of(None, tmp_path_factory.mktemp("digits") / "r")


def test_a_clients_unlabelled_files_are_suggested_with_the_reason(finished, data):
    done = invoke("suggest", finished, "--client", "north", "--count", "5", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert len(found) == 5
    for row in found:
        assert row["image"].startswith(str(data / "north" / "unlabelled"))
        assert "the most typical of" in row["reason"] or "no other" in row["reason"]
    assert [row["size"] for row in found] == sorted((row["size"] for row in found), reverse=True)
    again = invoke("suggest", finished, "--client", "north", "--count", "5", "--csv")
    rows = list(csv.DictReader(io.StringIO(again.stdout)))
    assert [row["image"] for row in rows] == [row["image"] for row in found]
    shown = invoke("suggest", finished, "--client", "north", "--count", "5")
    assert [line.split("  ")[-1] for line in shown.stdout.splitlines()[::2]] == [
        row["image"] for row in found
    ]
    assert "18 images have a label, 24 have none" in shown.stderr


def test_what_has_a_label_or_a_doubt_is_not_suggested_again(finished, tmp_path):
    made = digits(tmp_path / "new", {3: 5, 4: 5})
    rows = [(made[0].name, "three", ""), (made[1].name, "", "")]
    labels_file.write(tmp_path / "new" / "labels.csv", rows)
    done = invoke("suggest", finished, "--data", tmp_path / "new", "--count", "20", "--json")
    assert {row["image"] for row in json.loads(done.stdout)} == {str(file) for file in made[2:]}
    said = invoke("suggest", finished, "--data", tmp_path / "new").stderr
    assert "1 image has a label, 8 have none, and of 1 somebody was not sure" in said


def test_fewer_than_were_asked_for_and_rows_of_no_image_are_said(finished, tmp_path):
    made = digits(tmp_path / "new", {3: 5, 4: 5})
    labels_file.write(tmp_path / "new" / "labels.csv", [(made[0].name, "three", "")])
    with (tmp_path / "new" / "labels.csv").open("a") as file:
        file.write("nowhere.png,four,\n")
    done = invoke("suggest", finished, "--data", tmp_path / "new", "--count", "2")
    assert "nowhere.png, which is no image here" in done.stderr
    assert "typicality 0." in done.stdout
    assert "fewer than" not in done.stderr
    for file in made[1:]:
        shutil.copy(made[0], file)
    copies = invoke("suggest", finished, "--data", tmp_path / "new", "--count", "2")
    assert "9 images without a label look like some that have one" in str(copies.exception)


def test_a_bundles_encoder_suggests_from_a_folder(tmp_path):
    make_bundle().save(tmp_path / "b")
    write_folder(tmp_path / "p", per_class=3)
    for number, file in enumerate(sorted((tmp_path / "p").glob("*/*.png"))):
        (tmp_path / "flat").mkdir(exist_ok=True)
        file.rename(tmp_path / "flat" / f"{number}.png")
    done = invoke("suggest", tmp_path / "b", "--data", tmp_path / "flat", "--count", "3", "--json")
    found = json.loads(done.stdout)
    colours = {int(row["image"].rpartition("/")[2].split(".")[0]) // 3 for row in found}
    assert colours == {0, 1, 2}  # one of each colour


def test_a_bundle_has_no_images_of_its_own(tmp_path, monkeypatch, capsys):
    make_bundle().save(tmp_path / "b")
    for more in ([], ["--client", "0"]):
        said = fails(capsys, monkeypatch, "suggest", tmp_path / "b", *more)
        assert "give --data FOLDER" in said


def test_images_without_files_are_numbers(of_digits):
    done = invoke("suggest", of_digits, "--client", "1", "--count", "2")
    assert done.exit_code == 0, done.output
    assert "image " in done.stdout
    assert "have no files" in done.stderr


def test_an_image_that_cannot_be_read_is_named(finished, tmp_path):
    digits(tmp_path / "new", {3: 3})
    (tmp_path / "new" / "torn.png").write_bytes(b"no")
    done = invoke("suggest", finished, "--data", tmp_path / "new", "--json")
    assert len(json.loads(done.stdout)) == 3
    assert "torn.png" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}"], "say whose images"),
        (["{run}", "--client", "north", "--data", "x"], "say whose images"),
        (["{run}", "--client", "norht"], "no client 'norht'"),
        (["{run}", "--data", "nowhere"], "no such folder"),
        (["{run}", "--data", "."], "holds no images"),
        (["nowhere", "--data", "{data}/north"], "is not a run folder"),
        (["{run}", "--data", "{data}"], "images of 2 clients"),
        (["{run}", "--client", "north", "--json", "--csv"], "not both"),
    ],
)
def test_mistakes_of_suggest(finished, data, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    given = [each.format(run=finished, data=data) for each in arguments]
    assert message in fails(capsys, monkeypatch, "suggest", *given)


def test_nothing_left_is_said(finished, tmp_path, monkeypatch, capsys):
    digits(tmp_path / "new", {3: 2}, named=True)
    said = fails(capsys, monkeypatch, "suggest", finished, "--data", tmp_path / "new")
    assert "all images have a label" in said


def start(run, *arguments: object):
    """The command in a process of its own, and where its page is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "calibre", "label", str(run), *map(str, arguments), "--port", "0"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=hear_ctrl_c,
    )  # fmt: skip
    said = ""
    while "http://" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    return process, said.split()[-1]


def call(url: str, path: str, **body: object):
    content = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(url + path, content, timeout=60) as answer:
        return json.load(answer)


def test_a_killed_command_loses_nothing_and_goes_on(finished, data, tmp_path):
    place = shutil.copytree(data, tmp_path / "hospitals")
    run = run_of(place, tmp_path / "r")
    process, url = start(run, "--client", "south", "--out", tmp_path / "b")
    try:
        state = call(url, "state")
        assert [row["name"] for row in state["classes"]] == ["0", "1", "2"]
        assert state["labelled"] == 18
        for _ in range(4):
            first = state["queue"][0]
            state = call(url, "label", index=first["index"], label=first["name"][0], was=None)
    finally:
        process.kill()
        process.communicate(timeout=30)
    held = labels_file.read(place / "south" / "unlabelled" / "labels.csv")
    assert [row.label for row in held] == [row.path[0] for row in held]
    assert len(held) == 4
    process, url = start(run, "--client", "south", "--out", tmp_path / "b")
    try:
        assert call(url, "state")["labelled"] == 22
        made = call(url, "model", replace=False)
        assert made["labels"] == 22
        with pytest.raises(urllib.error.HTTPError, match="409"):
            call(url, "model", replace=False)
        again = call(url, "model", replace=True)
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 0
    assert "Traceback" not in said
    assert again["older"] == str(tmp_path / "b-old-1")
    card = load(tmp_path / "b").card
    assert card.client == "south"
    assert not card.novel
    assert sum(held.labelled for held in card.classes) == 22
    assert card.unlabelled == 20
    assert "22 images have a label: 4 by labels.csv" in (tmp_path / "b" / "card.md").read_text()
    assert "18 by the folders that they lie in; 20 have none" in labels_in_words(card)
    assert load(tmp_path / "b-old-1").card.hash == card.hash


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{digits}", "--client", "0"], "do not lie in a folder for each client"),
        (["{run}"], "say whose images"),
        (["{run}", "--client", "nobody"], "no client 'nobody'"),
        (["{run}", "--client", "north", "--host", "0.0.0.0"], "--open-and-unprotected"),
    ],
)
def test_mistakes_of_label(finished, of_digits, tmp_path, monkeypatch, capsys, arguments, message):
    given = [each.format(run=finished, digits=of_digits) for each in arguments]
    assert message in fails(capsys, monkeypatch, "label", *given)


def test_a_run_without_an_encoder_says_so(tiny, tmp_path, monkeypatch, capsys):
    rounds.run(tiny("method.name=local", "training.rounds=1"), tmp_path / "r")
    digits(tmp_path / "new", {3: 2})
    for command in ("label", "suggest"):
        said = fails(capsys, monkeypatch, command, tmp_path / "r", "--data", tmp_path / "new")
        assert "shares no encoder" in said


def test_personalize_does_not_overwrite_unless_asked_to(finished, tmp_path, monkeypatch, capsys):
    digits(tmp_path / "new", {3: 4, 4: 4}, named=True)
    given = ("personalize", finished, "--data", tmp_path / "new", "--out", tmp_path / "b")
    assert invoke(*given).exit_code == 0
    first = load(tmp_path / "b").card.hash
    digits(tmp_path / "new", {5: 4}, named=True)
    assert "there is a bundle in" in fails(capsys, monkeypatch, *given)
    assert load(tmp_path / "b").card.hash == first
    for number in (1, 2):
        assert invoke(*given, "--replace").exit_code == 0
        assert load(tmp_path / "b").card.names == ("3", "4", "5")
        assert (tmp_path / f"b-old-{number}").is_dir()
    assert load(tmp_path / "b-old-1").card.hash == first
