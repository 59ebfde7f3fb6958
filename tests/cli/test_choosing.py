"""``run --data``: from a folder of images to a table of accuracies, nothing else said."""

import csv
import io
import json
import shutil
import sys

import numpy as np
import pytest
import safetensors.torch as st
import torch
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from calibre import cli
from calibre.data import federation as federations
from calibre.data.federation import SharedImages
from calibre.data.formats import folder as folders
from calibre.data.sources import load
from calibre.engine import rounds
from calibre.experiment import NetworkSettings, read
from calibre.models.network import Problem, build_encoder
from tests.cli.test_bundles import fails

SHAPES = ("circle", "cross", "square")


def draw(shape: str, rng: np.random.Generator) -> Image.Image:
    """A dark shape of any colour somewhere on a light ground, 16 x 16."""
    ground, ink = (tuple(rng.integers(*shades, 3).tolist()) for shades in ((160, 256), (0, 100)))
    image = Image.new("RGB", (64, 64), ground)
    pen = ImageDraw.Draw(image)
    r = int(rng.integers(16, 24))
    x, y = rng.integers(r, 64 - r, 2).tolist()
    box = (x - r, y - r, x + r, y + r)
    if shape == "circle":
        pen.ellipse(box, outline=ink, width=5)
    elif shape == "square":
        pen.rectangle(box, fill=ink)
    else:
        pen.line(box, fill=ink, width=7)
        pen.line((x - r, y + r, x + r, y - r), fill=ink, width=7)
    return image.resize((16, 16), Image.Resampling.BILINEAR)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Four clients of 60 images; each has a favourite shape."""
    place = tmp_path_factory.mktemp("own") / "shapes"
    rng = np.random.default_rng(0)
    for client in range(4):
        for k, shape in enumerate(SHAPES):
            folder = place / f"site-{client}" / shape
            folder.mkdir(parents=True)
            for i in range(30 if k == client % 3 else 15):
                draw(shape, rng).save(folder / f"{i}.png")
    (place / "site-0" / "circle" / "broken.png").write_bytes(b"no image")
    (place / "site-4" / "circle").mkdir(parents=True)
    draw("circle", rng).save(place / "site-4" / "circle" / "alone.png")
    return place


def invoke(*arguments: object):
    return CliRunner().invoke(cli.app, [*map(str, arguments)])


CHANGES = ("engine.workers=0", "personal.floors=[]", "training.rounds=3", "network.width=8")
QUICK = [part for change in CHANGES for part in ("--set", change)]


def test_a_folder_is_all_it_takes(federation, tmp_path, monkeypatch):
    monkeypatch.chdir(federation.parent)
    done = invoke("run", "--data", "shapes", *QUICK, "--out", tmp_path / "r")
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "4 clients of shapes: 4 train" in said
    assert "cannot be read, left out: 1 of 242;" in said
    assert "clients left out: 'site-4'" in said
    assert "training should take about" in said
    metrics = json.loads((tmp_path / "r" / "metrics.json").read_text())
    # the commonest shape is half of a client's images
    assert metrics["train"]["mean"] > 0.65
    assert metrics["train"]["clients"] == 4

    kept = read(tmp_path / "r" / "experiment.toml")
    assert kept.data.source == str(federation)
    assert kept.federation.scheme == "natural"
    assert (kept.federation.novel, kept.views.flip, kept.training.rounds) == (0, 0, 3)
    monkeypatch.chdir(tmp_path)
    again = invoke("resume", "r", "--json")  # from elsewhere, with nothing to guess
    assert again.exit_code == 0, again.output
    sheet = json.loads((tmp_path / "r" / "federation.json").read_text())
    assert sheet["source"]["unreadable"]["count"] == 1
    assert list(sheet["left_out"]) == ["site-4"]


def test_the_source_is_read_once(federation, tmp_path, monkeypatch):
    """What it says of itself, its decoding, the estimate and the run share one reading."""
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "cache"))
    asked = {"listed": 0, "read": 0, "shared out": 0}

    def counted(what, work):
        def count(*arguments, **more):
            asked[what] += 1
            return work(*arguments, **more)

        return count

    monkeypatch.setattr(folders, "survey", counted("listed", folders.survey))
    monkeypatch.setattr(folders, "read", counted("read", folders.read))
    monkeypatch.setattr(federations, "build", counted("shared out", federations.build))
    quick = [*QUICK, "--set", "training.rounds=1"]
    done = invoke("run", "--data", federation, *quick, "--out", tmp_path / "r")
    assert done.exit_code == 0, done.output
    assert asked == {"listed": 1, "read": 1, "shared out": 1}


def test_workers_take_the_decoded_images_and_never_ask_for_their_source(tiny, tmp_path):
    experiment = tiny("training.rounds=1", "engine.workers=1")
    shared = SharedImages.of(load(experiment.data), experiment.federation, experiment.seed)
    gone = experiment.data.model_copy(update={"source": str(tmp_path / "gone")})
    moved = experiment.model_copy(update={"data": gone})
    metrics = rounds.run(moved, tmp_path / "r", shared=shared)
    assert metrics.rounds == 1


def test_an_encoder_from_elsewhere_is_taken_as_it_is(federation, tmp_path, monkeypatch):
    """Nothing that suits the data better is chosen in its place; the run goes on from anywhere."""
    settings = NetworkSettings(encoder="resnet8", width=8, stem="cifar")
    encoder = build_encoder(Problem(12, 3, 3, settings, seed=1))
    (tmp_path / "other").mkdir()
    st.save_file(encoder.state_dict(), tmp_path / "start.safetensors")
    monkeypatch.chdir(tmp_path)
    changes = ("network.weights=start.safetensors", "network.frozen=true", "data.size=12")
    set_ = [part for change in (*changes, *CHANGES[:2]) for part in ("--set", change)]
    done = invoke("run", "--data", federation, *set_, "--out", "r")
    assert done.exit_code == 0, done.output
    kept = read(tmp_path / "r" / "experiment.toml")
    assert (kept.network.encoder, kept.network.width) == ("resnet8", 8)
    assert (kept.training.rounds, kept.personal.finetune_encoder, kept.data.size) == (0, False, 12)
    monkeypatch.chdir(tmp_path / "other")
    again = invoke("resume", tmp_path / "r", "--json")
    assert again.exit_code == 0, again.output
    model = st.load_file(tmp_path / "r" / "model.safetensors")
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(model[f"encoder.{name}"], tensor)


@pytest.mark.parametrize("given", ["--data", "--set"])
def test_a_suite_leaves_owners_what_is_theirs(federation, tmp_path, given):
    """Its settings are chosen (--data) or the user's own (--set); its clients are the owners."""
    place = [federation] if given == "--data" else [f"data.source={federation}", "--set",
        "federation.novel=0", "--set", "data.size=8"]  # fmt: skip
    small = [*QUICK, "--set", "training.rounds=1", "--set", "network.width=8"]
    methods = ["--method", "fedavg-ft", "--method", "local"]
    done = invoke("suite", given, *place, *methods, *small, "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    assert "made up" not in done.output
    rows = json.loads(done.stdout)
    assert [row["method"] for row in rows] == ["FedAvg-FT", "local only"]
    assert len({row["federation"] for row in rows}) == 1
    for folder in tmp_path.iterdir():
        with open(folder / "clients.csv") as table:
            assert [row["name"] for row in csv.DictReader(table)] == [f"site-{i}" for i in range(4)]


def test_owners_that_do_not_count_are_spoken_of(federation, tmp_path):
    made_up = ("federation.scheme=iid", "federation.clients=2", "federation.novel=0", "data.size=8")
    changes = [part for change in made_up for part in ("--set", change)]
    small = [*QUICK, "--set", "training.rounds=1", "--set", f"data.source={federation}"]
    done = invoke("suite", "--method", "local", *small, *changes, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert 'federation.scheme = "iid" deals them out to clients that are made up' in " ".join(
        done.output.split()
    )


def test_doctor_examines_what_would_be_chosen(federation):
    done = invoke("doctor", "--data", federation, "--json", "--set", "engine.workers=0")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["experiment"]["run folder"].startswith("runs/shapes-calibre")


def test_data_show_says_what_was_found(federation, tmp_path):
    done = invoke("data", "show", "--data", federation, "--out", tmp_path / "who")
    assert done.exit_code == 0, done.output
    assert "clients left out: 'site-4'" in done.output
    assert "files left out: 1; --left-out lists all of them" in done.output
    assert (tmp_path / "who.png").exists()


def test_data_show_says_who_holds_what(federation, tmp_path):
    asked = ("data", "show", "--data", federation, "--out", tmp_path / "who")
    (row,) = [line for line in invoke(*asked).stdout.splitlines() if "site-2" in line]
    number, client, kind, labelled, unlabelled, test, classes = row.strip("│ ").split("│")
    held = json.loads(invoke(*asked, "--json").stdout)["held"][int(number)]
    assert (client.strip(), kind.strip()) == (held["client"], held["kind"]) == ("site-2", "trains")
    assert [*map(int, (labelled, unlabelled, test, classes))] == [
        held[key] for key in ("labelled", "unlabelled", "test", "classes")
    ]
    assert held["labelled"] + held["test"] == 60


def test_data_show_lists_all_that_was_left_out(federation, tmp_path):
    asked = ("data", "show", "--data", federation, "--left-out", "--out", tmp_path / "who")
    header, file, client = csv.reader(io.StringIO(invoke(*asked).stdout))
    assert header == ["what", "why"]
    assert file[0].startswith(str(federation))
    assert client[0] == "client site-4"
    (listed,) = json.loads(invoke(*asked, "--json").stdout)["files_left_out"]
    assert [listed["file"], listed["why"]] == file


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "there is no such folder or file"),
        (["--data", "."], "holds no images"),
        (["--data", ".", "--set", "data=3"], "data = 3"),
        (["--data", ".", "--set", "training.rouns=3"], "did you mean 'rounds'"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["calibre-fl", "run", *arguments, "--set", "engine.workers=0"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_what_calibre_wrote_among_the_images_is_no_data(federation, tmp_path, monkeypatch):
    place = shutil.copytree(federation, tmp_path / "shapes")
    monkeypatch.chdir(place)
    quick = [*QUICK, "--set", "training.rounds=1"]
    assert invoke("run", "--data", ".", *quick).exit_code == 0
    (folder,) = (place / "runs").iterdir()
    (folder / "figures").mkdir(exist_ok=True)
    draw("circle", np.random.default_rng(1)).save(folder / "figures" / "accuracies.png")
    assert invoke("bundle", folder, "--out", "bundles").exit_code == 0
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "another"))
    shown = invoke("data", "show", "--data", ".")
    assert shown.exit_code == 0, shown.output
    assert "not drawn: a picture in the current folder would be one of your images" in shown.stderr
    assert f"'runs/{folder.name}'" in shown.stdout
    assert "client 'bundles'" not in shown.stdout
    assert not list(place.glob("federation*"))
    again = invoke("resume", folder, "--json")
    assert again.exit_code == 0, again.output
    anew = invoke("run", "--data", ".", *quick, "--set", "seed=5", "--out", "another", "--json")
    assert anew.exit_code == 0, anew.output
    assert json.loads(anew.stdout)["train"]["clients"] == 4


@pytest.mark.parametrize("out", [".", "../shapes", "site-1", "site-1/circle"])
def test_a_run_folder_that_holds_its_own_images_is_refused(federation, monkeypatch, capsys, out):
    monkeypatch.chdir(federation)
    for arguments in (["--data", "."], ["--set", f"data.source={federation}"]):
        said = fails(capsys, monkeypatch, "run", *arguments, *QUICK, "--out", out)
        assert f"--out {out} holds what the run is to be trained on" in said
    assert not list(federation.rglob("*.toml"))


@pytest.mark.parametrize("place", ["", " "])
@pytest.mark.parametrize(
    "command",
    [
        ["run"], ["suite"], ["doctor"], ["data", "show"], ["resume", "r"], ["update", "r"],
        ["suggest", "r"], ["label", "r"], ["personalize", "r", "--out", "b"],
    ],
)  # fmt: skip
def test_an_empty_place_is_a_mistake_and_no_demonstration(tmp_path, monkeypatch, command, place):
    monkeypatch.chdir(tmp_path)
    done = invoke(*command, "--data", place)
    assert done.exit_code == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    assert "'--data'" in said
    assert "it is empty: name the images' folder or file" in said
    assert list(tmp_path.iterdir()) == []
