import numpy as np
from PIL import Image

from calibre.data.names import names
from calibre.data.sources import load
from calibre.sections import DataSettings
from tests.finished.made_labels import digits, hospitals


def test_every_row_of_a_pool_is_called_by_the_file_it_came_from(tmp_path):
    """Each file, opened here anew, has the pixels of its row; a torn and a double one are gone."""
    place = hospitals(tmp_path / "h")
    (place / "north" / "1" / "torn.png").write_bytes(b"no")
    settings = DataSettings(source=str(place))
    pool = load(settings)
    found = names(settings, pool)
    assert len(found) == len(pool.labels)
    for name, pixels in zip(found, pool.images, strict=True):
        assert np.array_equal(np.asarray(Image.open(name)), pixels[..., 0])
    assert not any("torn" in name for name in found)


def test_a_copy_that_was_left_out_has_no_row(tmp_path):
    digits(tmp_path / "d" / "train", {0: 4, 1: 4}, named=True)
    digits(tmp_path / "d" / "test", {0: 2, 1: 2}, skip=2, named=True)
    settings = DataSettings(source=str(tmp_path / "d"))
    pool = load(settings)
    found = names(settings, pool)
    assert len(found) == 8
    for name, pixels in zip(found, pool.images, strict=True):
        assert np.array_equal(np.asarray(Image.open(name)), pixels[..., 0])


def test_arrays_have_no_names():
    settings = DataSettings(source="digits")
    assert names(settings, load(settings)) is None
