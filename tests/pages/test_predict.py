import io
import threading
from urllib.request import urlopen

import pytest
from PIL import Image

from calibre.pages.predict import Predictions
from calibre.pages.server import Server
from tests.pages.calls import ask, png
from tests.personal.made_bundle import COLOURS, STRANGER, make_bundle, square

EDGE = "edge-of-the-form"


@pytest.fixture(scope="module")
def bundle():
    return make_bundle()


@pytest.fixture(scope="module")
def server(bundle):
    with (
        Predictions(bundle, body=200_000, pixels=100_000) as made,
        Server(made.routes, port=0, metrics=made.metrics).in_background() as running,
    ):
        yield running


def predict(server, body, **headers):
    return ask(server, "POST", "/predict", body, **headers)


def test_an_image_gets_what_the_bundle_says(server, bundle):
    pixels = square(COLOURS["green"], 77)
    status, _, said = predict(server, png(pixels))
    (expected,) = bundle.predict(pixels)
    assert status == 200
    assert said["label"] == said["answer"] == "green"
    assert said["probability"] == expected.probability
    assert said["probabilities"] == expected.probabilities
    assert said["limit"] == bundle.limit
    _, _, stranger = predict(server, png(square(STRANGER, 3)))
    assert stranger["label"] is None
    assert stranger["answer"] == "none of your classes"


def form(*files: tuple[str, bytes]) -> bytes:
    parts = [
        f'--{EDGE}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
        "Content-Type: image/png\r\n\r\n".encode()
        + content
        + b"\r\n"
        for name, content in files
    ]
    return b"".join(parts) + f"--{EDGE}--\r\n".encode()


def test_a_form_gets_an_answer_for_each_of_its_files(server):
    given = [(f"{name}.png", png(square(colour, 5))) for name, colour in COLOURS.items()]
    kind = f"multipart/form-data; boundary={EDGE}"
    broken = ("broken.png", b"no image")
    status, _, said = predict(server, form(*given, broken), Content_Type=kind)
    assert status == 200
    assert [found["image"] for found in said["answers"]] == [name for name, _ in [*given, broken]]
    assert [found["label"] for found in said["answers"][:-1]] == list(COLOURS)
    assert "send an image file" in said["answers"][-1]["error"]
    assert predict(server, form(), Content_Type=kind)[::2] == (
        400,
        {"error": "the form holds no file"},
    )


def test_the_page_and_the_card(server, bundle):
    status, headers, page = ask(server, "GET", "/?x=1")
    assert status == 200
    assert headers["Content-Type"].startswith("text/html")
    assert "script-src 'sha256-" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert "Choose images" in page
    assert "{{" not in page
    assert "://" not in page  # nothing from elsewhere
    assert ask(server, "GET", "/card")[2]["hash"] == bundle.card.hash
    assert ask(server, "GET", "/card.md")[2].startswith("# Personal model of clinic")


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"", 415, "send an image file"),
        (b"%PDF-1.4", 415, "PNG, JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415, "send an image file"),
        (b"\x89PNG\r\n\x1a\n", 415, "send an image file"),
        (png(square((9, 9, 9), 1))[:-30], 422, "the image cannot be decoded"),
        (b"x" * 200_001, 413, "at most"),
    ],
    ids=["nothing", "pdf", "eps", "torn-head", "torn-tail", "large"],
)
def test_what_is_no_image_is_refused(server, body, status, why):
    found, _, said = predict(server, body)
    assert (found, why in said["error"]) == (status, True), said


def test_a_small_file_with_many_pixels_is_refused_unopened(server):
    for side in (400, 10_000):
        bomb = io.BytesIO()
        Image.new("1", (side, side)).save(bomb, "PNG")
        assert len(bomb.getvalue()) < 20_000
        status, _, said = predict(server, bomb.getvalue())
        assert status == 413
        assert "million pixels" in said["error"]


def test_many_callers_at_once_all_get_their_own_answer(server):
    names = list(COLOURS) * 6
    found: list[str | None] = [None] * len(names)

    def one(i: int) -> None:
        found[i] = predict(server, png(square(COLOURS[names[i]], 50 + i)))[2]["nearest"]

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == names


def test_large_images_go_alone_and_hold_up_no_others(server, bundle, monkeypatch):
    """While one is being decoded, others of its size wait, and small ones are answered."""
    monkeypatch.setattr("calibre.pages.predict.LARGE", 50_000)
    real, began, release = bundle.predict, threading.Semaphore(0), threading.Event()
    together: list[int] = []

    def predict_slowly(images):
        if any(Image.open(io.BytesIO(image)).width > 200 for image in images):
            together.append(len(images))
            began.release()
            assert release.wait(20)
        return real(images)

    monkeypatch.setattr(bundle, "predict", predict_slowly)
    large = png(square(COLOURS["blue"], 1, size=240))
    labels: list[str] = []
    threads = [
        threading.Thread(target=lambda: labels.append(predict(server, large)[2]["nearest"]))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    assert began.acquire(timeout=20)
    small = [predict(server, png(square(COLOURS["red"], seed)))[2]["nearest"] for seed in range(5)]
    assert small == ["red"] * 5
    assert together == [1]
    release.set()
    for thread in threads:
        thread.join(20)
    assert together == [1, 1, 1]
    assert labels == [real(large)[0].nearest] * 3


def test_images_are_counted_by_what_was_answered(server):
    def counts() -> dict[str, int]:
        text = ask(server, "GET", "/metrics")[2]
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if "images_total{" in line]
        return {name.split('"')[1]: int(value) for name, value in lines}

    for body in (png(square(COLOURS["red"], 1)), png(square(STRANGER, 1)), b"no image"):
        predict(server, body)
    before = counts()
    for body in (png(square(COLOURS["red"], 1)), png(square(STRANGER, 1)), b"no image"):
        predict(server, body)
    assert counts() == {name: count + 1 for name, count in before.items()}
    assert set(before) == {"class", "none", "refused"}
    assert "calibre_model_calls_total" in ask(server, "GET", "/metrics")[2]


def test_a_failure_of_the_model_costs_its_own_requests_alone(server, bundle, monkeypatch, capsys):
    def fail(body):
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(bundle, "predict", fail)
    status, _, said = predict(server, png(square(COLOURS["red"], 1)))
    assert status == 500
    assert "swordfish" not in said["error"]
    assert "swordfish" in capsys.readouterr().err
    monkeypatch.undo()
    assert predict(server, png(square(COLOURS["red"], 1)))[0] == 200


def test_pictures_of_own_images_are_shown_only_where_that_was_said(server, bundle):
    assert bundle.pictures is not None
    assert ask(server, path="/mistakes.png")[0] == 404
    with (
        Predictions(bundle, pictures=True) as made,
        Server(made.routes, port=0).in_background() as running,
    ):
        answer = urlopen(running.url + "mistakes.png", timeout=20)
        assert answer.headers["Content-Type"] == "image/png"
        assert answer.read() == bundle.pictures
