import csv
import io
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from PIL import Image
from typer.testing import CliRunner

from calibre import cli
from calibre.engine import rounds
from calibre.experiment import read
from calibre.personal.bundle import load
from tests.conftest import TINY
from tests.finished.test_newcomer import draw
from tests.personal.made_bundle import COLOURS, STRANGER, make_bundle, square, write_folder
from tests.test_cli import hear_ctrl_c


def invoke(*arguments: object):
    return CliRunner().invoke(cli.app, list(map(str, arguments)))


def fails(capsys, monkeypatch, *arguments: object) -> str:
    """What a mistake is told as: exit code 2, one message, nothing on the standard output."""
    monkeypatch.setattr(sys, "argv", ["calibre-fl", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert "Traceback" not in said.err
    return " ".join(said.err.split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "r"
    small = ("method.objective.hidden=8", "method.objective.projection=4", "network.width=8")
    rounds.run(read(None, [*TINY, *small, "training.rounds=1"]), folder)
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "clinic"
    make_bundle().save(folder)
    return folder


@pytest.fixture
def pictures(tmp_path):
    write_folder(tmp_path / "pictures", per_class=2, first_seed=300)
    Image.fromarray(square(STRANGER, 1)).save(tmp_path / "pictures" / "stranger.png")
    return tmp_path / "pictures"


def test_bundle_then_predict(finished, tmp_path):
    done = invoke("bundle", finished, "0", "novel-6", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "client-0" in done.output
    assert "novel-6" in done.output
    assert sorted(place.name for place in (tmp_path / "out").iterdir()) == ["client-0", "novel-6"]
    found = invoke("predict", tmp_path / "out" / "novel-6", draw(tmp_path / "n", 2), "--json")
    assert found.exit_code == 0
    assert len(json.loads(found.stdout)) == 6


def test_a_bundle_of_another_make_is_kept_and_the_same_one_is_not(finished, tmp_path):
    given = ("bundle", finished, "0", "--out", tmp_path)
    for _ in range(2):
        assert invoke(*given).exit_code == 0
    (place,) = tmp_path.iterdir()
    make_bundle(client="from new labels").save(place)
    assert invoke(*given).exit_code == 0
    older = tmp_path / f"{place.name}-old-1"
    assert {path.name for path in tmp_path.iterdir()} == {place.name, older.name}
    assert load(older).card.client == "from new labels"


def test_all_clients_and_json(finished, tmp_path):
    done = invoke("bundle", finished, "--out", tmp_path / "out", "--json", "--refuse", "0.1")
    listed = json.loads(done.stdout)
    assert [row["bundle"] for row in listed] == [
        str(tmp_path / "out" / f"{'client' if i < 5 else 'novel'}-{i}") for i in range(7)
    ]
    assert {row["outside"]["rate"] for row in listed} == {0.1}


def test_personalize(finished, tmp_path):
    data = draw(tmp_path / "praxis", 4)
    done = invoke("personalize", finished, "--data", data, "--out", tmp_path / "b")
    assert done.exit_code == 0, done.output
    assert "praxis: eins (4), sieben (4), vier (4)" in done.output
    assert "expected accuracy:" in done.output
    assert "warning: fewer than 5 labelled images" in done.output
    card = json.loads((tmp_path / "b" / "card.json").read_text())
    again = invoke("personalize", finished, "--data", data, "--out", tmp_path / "c", "--json",
                   "--name", "praxis")  # fmt: skip
    assert json.loads(again.stdout)["hash"] == card["hash"]


def test_predict_as_a_table(bundle, pictures):
    done = invoke("predict", bundle, pictures)
    assert done.exit_code == 0
    for word in ("red/0.png", "blue/1.png", "stranger.png", "classes", "%"):
        assert word in done.stdout
    assert "7 of 7" in done.stderr


def test_predict_as_csv_and_json(bundle, pictures):
    table = invoke("predict", bundle, pictures, "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(table)))
    listed = json.loads(invoke("predict", bundle, pictures, "--json").stdout)
    assert len(rows) == len(listed) == 7
    for row, found in zip(rows, listed, strict=True):
        assert row["image"] == found["image"]
        assert row["answer"] == found["answer"]
        assert float(row["distance"]) == found["distance"]
        shares = [float(row[f"p({name})"]) for name in COLOURS]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert max(shares) == found["probability"]
        if "stranger" not in row["image"]:
            assert row["nearest"] in row["image"]
    assert [row["answer"] for row in rows if "stranger" in row["image"]] == ["none of your classes"]


def test_an_unreadable_image_is_exit_code_1_and_the_rest_is_answered(bundle, pictures):
    (pictures / "torn.png").write_bytes(b"no")
    done = invoke("predict", bundle, pictures, "--json")
    assert done.exit_code == 1
    rows = json.loads(done.stdout)
    assert sum(row["error"] is not None for row in rows) == 1
    assert "1 of the images could not be read" in done.stderr


def test_only_images_are_predicted_and_other_kinds_are_told(bundle, pictures, capsys, monkeypatch):
    (pictures / "labels.csv").write_text("path,label,time\nstranger.png,red,\n")
    for name in ("a.HEIC", "b.heic", "c.avif", "scan"):
        (pictures / name).write_bytes(b"of another kind")
    done = invoke("predict", bundle, pictures, "--json")
    assert done.exit_code == 0, done.output
    names = {row["image"] for row in json.loads(done.stdout)}
    assert names == {str(file) for file in pictures.rglob("*.png")}
    assert "left out: 2 .heic, 1 .avif, 1 no suffix" in " ".join(done.stderr.split())
    for file in pictures.rglob("*.png"):
        file.unlink()
    said = fails(capsys, monkeypatch, "predict", bundle, pictures)
    assert "holds no images, only files of kinds that are not read (2 .heic, 1 .avif" in said


def test_another_limit(bundle, pictures):
    strict, lax = (
        json.loads(invoke("predict", bundle, pictures, "--json", "--refuse", rate).stdout)
        for rate in ("0.2", "0.01")
    )
    refused = [sum(row["label"] is None for row in rows) for rows in (strict, lax)]
    assert refused[0] >= refused[1]


def test_a_pipe_that_closes_early_is_no_mistake(bundle, tmp_path):
    write_folder(tmp_path / "p", per_class=30)
    line = f"{sys.executable} -m calibre predict {bundle} {tmp_path / 'p'} --csv | head -n 1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("image,answer")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bundle", "nowhere"], "nowhere is not a run folder"),
        (["bundle", "{run}", "99"], "no client '99'"),
        (["personalize", "{run}", "--data", "nowhere", "--out", "x"], "no such folder"),
        (["predict", "nowhere", "x.png"], "nowhere is not a bundle"),
        (["predict", "{bundle}", "x", "--json", "--csv"], "--json or --csv, not both"),
        (["predict", "{bundle}", "x", "--refuse", "0.77"], "has limits for"),
        (["predict", "{bundle}", "."], "holds no images"),
        (["export", "{bundle}"], "--onnx is what there is"),
        (["serve", "nowhere"], "nowhere is not a bundle"),
        (["serve", "{bundle}", "--host", "no.such.host.invalid"], "cannot listen on"),
        (["serve", "{bundle}", "--host", "0.0.0.0"], "--open-and-unprotected"),
        (["serve", "{bundle}", "--key", "server.key"], "--certificate and --key belong together"),
        (["serve", "{bundle}", "--log", "nowhere/log"], "cannot write the log"),
    ],
)
def test_mistakes(finished, bundle, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    given = [str(a).format(run=finished, bundle=bundle) for a in arguments]
    assert message in fails(capsys, monkeypatch, *given)
    assert list(tmp_path.iterdir()) == []


def test_serve_answers_until_it_is_stopped(bundle):
    process = subprocess.Popen(
        [sys.executable, "-m", "calibre", "serve", str(bundle), "--port", "0"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=hear_ctrl_c,
    )  # fmt: skip
    try:
        line = process.stderr.readline()
        assert "clinic answers at  http://127.0.0.1:" in line
        url = line.split()[-1]
        body = io.BytesIO()
        Image.fromarray(square(COLOURS["red"], 9)).save(body, "PNG")
        with urllib.request.urlopen(url + "predict", body.getvalue(), timeout=30) as answer:
            assert json.load(answer)["label"] == "red"
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 0
    assert "stopped" in said
    assert "Traceback" not in said


def test_serve_asks_for_its_token_and_logs(bundle, tmp_path):
    token, log = tmp_path / "token", tmp_path / "log"
    process = subprocess.Popen(
        [sys.executable, "-m", "calibre", "serve", str(bundle), "--port", "0", "--token", token,
         "--log", log],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=hear_ctrl_c,
    )  # fmt: skip
    try:
        url = process.stderr.readline().split()[-1]
        assert str(token) in process.stderr.readline()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url + "card", timeout=30)
        known = {"Authorization": f"Bearer {token.read_text().strip()}"}
        asked = urllib.request.Request(url + "card", headers=known)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert json.load(answer)["client"] == "clinic"
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["path"], line["status"]) for line in found] == [("/card", 401), ("/card", 200)]


def test_export(bundle, pictures, tmp_path):
    done = invoke("export", bundle, "--onnx", "--out", tmp_path / "m.onnx", "--check", pictures)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "m.onnx").exists()
    for word in ("MB", "uint8 [N, 12, 12, 3]", "on 71 images", "ms in onnxruntime"):
        assert word in done.stdout
