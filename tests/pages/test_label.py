import csv
import io
import json
import time
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from calibre.errors import UserError
from calibre.finished.labelling import Labelling
from calibre.pages.label import Labels, drawn
from calibre.pages.server import Server
from calibre.personal.bundle_folder import BundleThereError
from tests.finished.made_learner import folder_of_digits, started
from tests.pages.calls import ask


@contextmanager
def served(labelling: Labelling, make_model=None):
    routes = Labels(labelling, make_model or (lambda replace: {})).routes
    with Server(routes, port=0).in_background() as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    return folder_of_digits(tmp_path / "clinic")


@pytest.fixture
def labelling(folder):
    return started(folder)


def post(server, path, **body):
    return ask(server, "POST", path, json.dumps(body))


def settled(server):
    """The state, once nothing is worked on any more."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        state = ask(server, path="/state")[2]
        if not (state["pending"] or state["looking"]):
            return state
        time.sleep(0.05)
    raise AssertionError("it never settles")


def test_every_step_is_answered_with_the_state_after_it(labelling, folder):
    with served(labelling) as server:
        state = ask(server, path="/state")[2]
        index = state["queue"][0]["index"]
        status, _, state = post(server, "/label", index=index, label="cat", was=None)
        assert status == 200
        assert state["labelled"] == 1
        status, _, state = post(server, "/skip", index=state["queue"][0]["index"])
        assert status == 200
        assert state["labelled"] == 1
        status, _, state = post(server, "/undo")
        assert status == 200
        assert state["labelled"] == 0
        assert state["queue"][0]["index"] == index


def test_the_estimate_follows_by_itself(labelling):
    with served(labelling) as server:
        for _ in range(30):  # more than are suggested at once
            state = settled(server)
            first = state["queue"][0]
            post(server, "/label", index=first["index"], label=first["name"][0], was=None)
        state = settled(server)
    assert state["estimate"]["labels"] == 30
    assert state["estimate"]["value"] == 1.0
    assert state["growth"][-1] == state["estimate"]


def test_two_windows_see_each_other(labelling):
    with served(labelling) as server:
        mine, yours = (ask(server, path="/state")[2] for _ in range(2))
        index = mine["queue"][0]["index"]
        assert index == yours["queue"][0]["index"]
        post(server, "/label", index=index, label="cat", was=None)
        status, _, said = post(server, "/label", index=index, label="dog", was=None)
        assert status == 409
        assert "somebody was quicker" in said["error"]
        assert ask(server, path="/state")[2]["classes"] == [{"name": "cat", "labels": 1}]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/label", b"no json", 400),
        ("/label", b"[1]", 400),
        ("/label", b"[" * 5000, 400),
        ("/label", b'{"index": true, "label": "a", "was": null}', 400),
        ("/label", b'{"index": "0", "label": "a", "was": null}', 400),
        ("/label", b'{"index": 0, "label": 3, "was": null}', 400),
        ("/label", b'{"index": 99, "label": "a", "was": null}', 422),
        ("/label", b'{"index": 0, "label": "%s", "was": null}' % (b"x" * 300), 422),
        ("/label", b"x" * 9000, 413),
        ("/undo", b"", 409),
        ("/model", b"{}", 400),
    ],
)
def test_what_makes_no_sense_is_refused(labelling, folder, path, body, status):
    with served(labelling) as server:
        assert ask(server, "POST", path, body)[0] == status
    assert not (folder / "labels.csv").exists()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/image?index=99", 404),
        ("/image?index=-1", 400),
        ("/image", 400),
        ("/image?index=0&side=x", 400),
        ("/image?index=../../etc/passwd", 400),
        ("/guess?index=99", 404),
    ],
)
def test_only_images_of_the_client_are_shown(labelling, path, status):
    with served(labelling) as server:
        assert ask(server, path=path)[0] == status


def test_pages_of_other_sites_can_label_nothing(labelling, folder):
    with served(labelling) as server:
        body = json.dumps({"index": 0, "label": "a", "was": None})
        assert ask(server, "POST", "/label", body, Origin="http://evil.example")[0] == 403
        assert ask(server, path="/state", Host="evil.example")[0] == 421
    assert not (folder / "labels.csv").exists()


def test_an_image_that_vanished_is_gone_in_words(labelling, folder):
    for file in folder.glob("*.png"):
        file.unlink()
    with served(labelling) as server:
        status, _, said = ask(server, path="/image?index=0")
    assert status == 410
    assert "is not there" in said["error"]


def test_the_sheet_and_the_guess(labelling):
    with served(labelling) as server:
        for index in (3, 4, 20):
            post(server, "/label", index=index, label=labelling.name(index)[0], was=None)
        rows = ask(server, path="/sheet")[2]["images"]
        assert {row["index"]: row["label"] for row in rows} == {3: "0", 4: "0", 20: "1"}
        guess = ask(server, path="/guess?index=5")[2]["guess"]
        assert [row["name"] for row in guess] == ["0", "1"]


def test_the_model_is_made_and_an_older_one_is_asked_about(labelling):
    asked = []

    def make(replace):
        asked.append(replace)
        if not replace:
            raise BundleThereError("There is a model already.")
        return {"bundle": "b", "labels": 3}

    with served(labelling, make) as server:
        status, _, said = post(server, "/model", replace=False)
        assert (status, said["error"]) == (409, "There is a model already.")
        assert post(server, "/model", replace=True)[2] == {"bundle": "b", "labels": 3}
    assert asked == [False, True]


def test_the_pictures_of_mistakes_are_those_of_the_model_made_here(
    labelling, tmp_path, monkeypatch
):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mistakes.png").write_bytes(b"of the model")
    (tmp_path / "mistakes.png").write_bytes(b"of somebody else")
    monkeypatch.chdir(tmp_path)
    with served(labelling, lambda replace: {"bundle": str(tmp_path / "b")}) as server:
        assert ask(server, path="/mistakes.png")[0] == 404
        post(server, "/model", replace=False)
        assert ask(server, path="/mistakes.png")[2] == "of the model"


def test_a_model_that_cannot_be_made_says_why(labelling):
    def make(replace):
        raise UserError("no label yet")

    with served(labelling, make) as server:
        assert post(server, "/model", replace=False)[2] == {"error": "no label yet"}


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "1", "I;16", "P"])
def test_every_kind_of_image_is_drawn_so_that_a_browser_shows_it(tmp_path, mode):
    pixels = np.arange(40 * 30, dtype=np.uint16).reshape(30, 40) * 50
    image = Image.fromarray(pixels if mode == "I;16" else (pixels // 256).astype(np.uint8))
    image = image if mode == "I;16" else image.convert(mode)
    image.save(tmp_path / "a.tif")
    kind, content = drawn(str(tmp_path / "a.tif"), 2048)
    shown = Image.open(io.BytesIO(content))
    assert (kind, shown.format, shown.size) == ("image/png", "PNG", (40, 30))


def test_a_photograph_is_made_no_larger_than_asked(tmp_path):
    Image.new("RGB", (3000, 1000), "red").save(tmp_path / "a.jpg")
    kind, content = drawn(str(tmp_path / "a.jpg"), 600)
    shown = Image.open(io.BytesIO(content))
    assert (kind, shown.size) == ("image/jpeg", (600, 200))


def test_names_with_commas_quotes_and_line_breaks(tmp_path):
    folder = folder_of_digits(tmp_path / "clinic", each=2)
    odd = '0, "a"\nb.png'
    next(folder.glob("*.png")).rename(folder / odd)
    labelling = started(folder)
    index = next(i for i in range(6) if labelling.name(i) == odd)
    with served(labelling) as server:
        assert post(server, "/label", index=index, label='x, "y"', was=None)[0] == 200
    with (folder / "labels.csv").open(newline="") as file:
        assert [(row["path"], row["label"]) for row in csv.DictReader(file)] == [(odd, 'x, "y"')]
    assert started(folder).state()["labelled"] == 1
