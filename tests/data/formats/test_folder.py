"""How folders of images may be called."""

import numpy as np
import pytest
from PIL import Image

from calibre.data.formats.folder import listed_images
from calibre.data.sources import load
from calibre.errors import UserError
from calibre.sections import DataSettings


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Writes images below ``tmp_path / "x"``, each of another shade, and returns that."""
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "pools"))

    def write(*paths):
        for shade, path in enumerate(paths):
            file = tmp_path / "x" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4), shade, np.uint8)).save(file)
        return tmp_path / "x"

    return write


def pool_of(place):
    return load(DataSettings(source=str(place)))


@pytest.mark.parametrize("train", ["train", "Train", "TRAIN"])
@pytest.mark.parametrize("test", ["test", "Test"])
@pytest.mark.parametrize("unlabelled", ["unlabelled", "Unlabelled", "UNLABELED"])
def test_capitals_say_the_same(put, train, test, unlabelled):
    place = put(
        f"{train}/anna/cat/0.png", f"{train}/anna/dog/1.png", f"{train}/ben/cat/2.png",
        f"{train}/ben/{unlabelled}/3.png", f"{test}/anna/dog/4.png",
    )  # fmt: skip
    (place / train / "anna" / unlabelled).mkdir()
    pool = pool_of(place)
    assert (pool.classes, pool.owner_names) == (("cat", "dog"), ("anna", "ben"))
    assert pool.images[:, 0, 0, 0].tolist() == [0, 1, 2, 4, 3]
    assert (pool.train, pool.test, pool.unlabelled) == (range(3), range(3, 4), range(4, 5))
    assert pool.labels.tolist() == [0, 1, 0, 1, -1]
    assert pool.report["notes"] == []
    listed, _ = listed_images(place)
    assert {(image.client, image.label) for image in listed} == {
        ("anna", "cat"), ("anna", "dog"), ("ben", "cat"), ("ben", ""),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["val", "Valid", "validation"])
@pytest.mark.parametrize("beside", [("train",), ("train", "test"), ("Train", "Test")])
def test_images_to_validate_on_are_no_client(put, name, beside):
    parts = [f"{part}/{kind}/{part}.png" for part in (*beside, name) for kind in ("cat", "dog")]
    place = put(*parts)
    for read in (pool_of, listed_images):
        with pytest.raises(UserError, match=rf"x/{name} lies beside [Tt]rain/, but .* to test/"):
            read(place)


@pytest.mark.parametrize(
    ("folders", "owners"),
    [
        (("train/cat", "val/cat", "north/cat"), ("north", "train", "val")),
        (("val/cat", "north/cat"), ("north", "val")),
        (("train", "val"), ()),
    ],
)
def test_other_folders_may_be_called_so(put, folders, owners):
    place = put(*(f"{folder}/{i}-{folder[:2]}.png" for folder in folders for i in range(3)))
    assert pool_of(place).owner_names == owners
