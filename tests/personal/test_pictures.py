"""Whatever a person has an image in ends up as the import would read it, or in words."""

import io

import numpy as np
import pytest
from PIL import Image

from calibre.data.formats.images import decode_block
from calibre.errors import UserError
from calibre.personal.pictures import as_encoded

DEEP = (np.arange(64).reshape(8, 8) * 60).astype(np.uint16)


def pixels_of(picture, shape=(8, 8, 1)):
    block = decode_block([as_encoded(picture, 0)], shape)
    assert not block.problems
    return block.pixels[0]


@pytest.mark.parametrize("array", [DEEP, DEEP[..., None]])
def test_an_array_of_sixteen_bits_is_seen_as_a_file_of_them(array):
    file = io.BytesIO()
    Image.fromarray(DEEP).save(file, "PNG")
    np.testing.assert_array_equal(pixels_of(array), pixels_of(file.getvalue()))
    assert pixels_of(array).max() == 255


@pytest.mark.parametrize(
    "array", [DEEP.astype(float), DEEP.astype(np.int32), np.zeros((4, 4, 3), np.uint16),
              np.zeros((0, 4), np.uint8), np.zeros(4, np.uint8), np.zeros((4, 4, 2), np.uint8)],
)  # fmt: skip
def test_other_arrays_are_refused_with_what_would_do(array):
    with pytest.raises(UserError, match=r"image 7 .*give"):
        as_encoded(array, 7)


@pytest.mark.parametrize("mode", ["HSV", "La"])
def test_a_mode_that_no_file_has_is_named(mode):
    with pytest.raises(UserError, match=f"image 0 is a Pillow image of mode {mode}"):
        as_encoded(Image.new(mode, (4, 4)), 0)


def test_an_image_that_is_read_only_now_and_is_cut(tmp_path):
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "PNG")
    (tmp_path / "x.png").write_bytes(file.getvalue()[:-3000])
    with Image.open(tmp_path / "x.png") as lazy, pytest.raises(UserError, match="cannot be used"):
        as_encoded(lazy, 0)
