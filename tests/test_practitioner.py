"""The whole path as a practitioner types it: a folder of images in, answers out."""

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from calibre import cli
from calibre.data.sources import find
from tests.cli.test_choosing import SHAPES, draw

SITES, LABELLED, UNLABELLED = 4, 24, 8  # images of a class that a site holds
TO_LEARN, TO_ASK = 20, 20  # of a class, at the newcomer

SMALL = ["training.rounds=3", "network.width=8", "personal.floors=[]"]  # enough for shapes
LARGER = ["training.rounds=10", "network.width=16", 'personal.floors=["local"]']


def shapes(_: pytest.FixtureRequest) -> Iterable[tuple[str, Image.Image]]:
    rng = np.random.default_rng(1)
    return ((shape, draw(shape, rng)) for _ in range(500) for shape in SHAPES)


def cifar10(request: pytest.FixtureRequest) -> Iterable[tuple[str, Image.Image]]:
    return known("cifar10", request.getfixturevalue("cifar10"))


def fashion(_: pytest.FixtureRequest) -> Iterable[tuple[str, Image.Image]]:
    if find("fashion-mnist") is None:
        pytest.skip("no Fashion-MNIST: install Debian's dataset-fashion-mnist, as .ci/run does")
    return known("fashion-mnist")


def known(name: str, root: Path | None = None) -> Iterable[tuple[str, Image.Image]]:
    """The test images of a known data set, with their class."""
    found = find(name, root)
    assert found is not None
    raw = found.read()
    assert raw.test is not None
    for image, label in zip(raw.test.images, raw.test.labels, strict=True):
        if isinstance(image, np.ndarray):
            yield raw.classes[label], Image.fromarray(image.squeeze())
        else:
            yield raw.classes[label], Image.open(io.BytesIO(image.content))


def export(images: Iterable[tuple[str, Image.Image]], classes: tuple[str, ...]) -> None:
    """Sites with some of the classes each, and a newcomer with three; each image once."""
    stocks = [
        *(
            (Path("sites", f"site-{site}", folder or name), name, count)
            for site in range(SITES)
            for name in classes
            if len(classes) == 3 or name != classes[site]
            for folder, count in (("", LABELLED), ("unlabelled", UNLABELLED))
        ),
        *((Path("newcomer", name), name, TO_LEARN) for name in classes[:3]),
        *((Path("questions", name), name, TO_ASK) for name in classes[:3]),
    ]
    kept: dict[str, list[Image.Image]] = {name: [] for name in classes}
    needed = {name: sum(n for _, of, n in stocks if of == name) for name in classes}
    for name, image in images:
        if name in kept and len(kept[name]) < needed[name]:
            kept[name].append(image.copy())
        if all(len(kept[name]) == needed[name] for name in classes):
            break
    for folder, name, count in stocks:
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(count):
            left = len(kept[name])
            kept[name].pop().save(folder / f"{name}-{left}.png")


def calibre_fl(line: str, *more: str) -> str:
    done = CliRunner().invoke(cli.app, [*line.split(), *more])
    assert done.exit_code == 0, done.output
    return done.stdout


def run(out: str, *changes: str) -> str:
    settings = [part for change in ["engine.workers=0", *changes] for part in ("--set", change)]
    return calibre_fl(f"run --data sites --out {out}", *settings)


@pytest.mark.parametrize(
    ("source", "classes", "size"),
    [
        pytest.param(shapes, SHAPES, SMALL, id="shapes"),
        pytest.param(
            cifar10, ("airplane", "automobile", "frog", "horse"), LARGER,
            id="cifar10", marks=pytest.mark.minutes,
        ),
        pytest.param(
            fashion, ("Trouser", "Pullover", "Sandal", "Bag"), LARGER,
            id="fashion-mnist", marks=pytest.mark.minutes,
        ),
    ],
)  # fmt: skip
def test_from_a_folder_of_images_to_answers(
    source: Callable[[pytest.FixtureRequest], Iterable[tuple[str, Image.Image]]],
    classes: tuple[str, ...],
    size: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    export(source(request), classes)

    assert "4 clients that trained" in run("run", *size)
    metrics = json.loads(Path("run/metrics.json").read_text())
    assert metrics["train"]["mean"] > 0.5  # a third by chance
    sheet = json.loads(Path("run/federation.json").read_text())
    assert sheet["left_out"] == {}

    assert calibre_fl("report run").strip() == "run/report.html"
    assert "site-2" in Path("run/report.html").read_text()

    calibre_fl("bundle run --out bundles")
    assert sorted(place.name for place in Path("bundles").iterdir()) == [
        f"site-{site}" for site in range(SITES)
    ]

    said = calibre_fl("personalize run --data newcomer --out mine")
    assert f"{classes[1]} ({TO_LEARN})" in said

    answers = json.loads(calibre_fl("predict mine questions --json"))
    right = [Path(answer["image"]).parent.name == answer["nearest"] for answer in answers]
    assert len(right) == 3 * TO_ASK
    assert np.mean(right) > 0.5
    assert sum(answer["label"] is None for answer in answers) < 0.3 * len(right)  # 5 % is the aim

    calibre_fl("export mine --onnx --check questions")
    assert Path("mine.onnx").stat().st_size > 10_000

    run("alone", *size, "method.name=local")
    table = calibre_fl("compare run alone")
    assert "Calibre (SimCLR)" in table
    assert "local only" in table
