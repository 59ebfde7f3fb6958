"""Deep images: the window is each image's own, and one that comes alone is treated the same."""

import io
import struct
import zlib
from math import floor

import numpy as np
import pytest
from PIL import Image

from calibre.data.formats import EncodedImage, UnreadableError
from calibre.data.formats.images import decode_block
from calibre.data.formats.window import LOWEST, by_table, own_window
from calibre.data.sources import load
from calibre.errors import UserError
from calibre.sections import DataSettings


@pytest.fixture(autouse=True)
def pools(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "pools"))


def naive(values):
    """Sorted values: the first that has more than 0.5 % up to it, the first with 99.5 %."""
    ordered = sorted(values.ravel().tolist())
    total = len(ordered)
    low = next(v for i, v in enumerate(ordered) if (i + 1) * 200 > total)
    high = next(v for i, v in enumerate(ordered) if (i + 1) * 200 >= 199 * total)
    shown = [255 * (v - low) / (high - low) for v in values.ravel().tolist()]
    return np.array([min(255, max(0, floor(v + 0.5))) for v in shown]).reshape(values.shape)


@pytest.mark.parametrize(("bits", "side"), [(10, 8), (12, 20), (16, 30), (16, 3)])
def test_the_window_is_that_of_a_naive_loop(bits, side):
    values = np.random.default_rng(bits).integers(0, 2**bits, (side, side)).astype(np.uint16)
    np.testing.assert_array_equal(by_table(own_window([values]), values), naive(values))


def test_strips_count_together_and_negative_values_too():
    values = np.random.default_rng(0).integers(-1000, 3000, (40, 30))
    table = own_window([values[:7], values[7:30], values[30:]])
    np.testing.assert_array_equal(table, own_window([values]))
    np.testing.assert_array_equal(by_table(table, values), naive(values))


def test_a_hot_pixel_decides_nothing():
    values = np.linspace(100, 900, 1000).astype(np.uint16).reshape(20, 50)
    before = by_table(own_window([values]), values)
    values[3, 3] = 65535
    after = by_table(own_window([values]), values)
    assert np.abs(before.astype(int) - after).ravel()[np.arange(1000) != 153].max() <= 1
    assert after[3, 3] == 255


@pytest.mark.parametrize(("value", "shown"), [(0, 0), (40_000, 156), (65_535, 255), (-5, 0)])
def test_a_flat_image_keeps_its_upper_eight_bits(value, shown):
    values = np.full((5, 5), value)
    assert (by_table(own_window([values]), values) == shown).all()


def test_more_than_sixteen_bits_are_refused():
    with pytest.raises(UnreadableError, match="32 bits"):
        own_window([np.array([[0, 70_000]])])
    with pytest.raises(UnreadableError, match="32 bits"):
        own_window([np.array([[0, LOWEST - 1]])])


def saved(pixels, kind, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def decoded(content, shape=(16, 16, 1)):
    return decode_block([EncodedImage("x", content)], shape)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_twelve_bits_in_sixteen_come_out_as_eight_bits_would(kind):
    """What used to come out almost black."""
    ramp = np.arange(256).reshape(16, 16)
    block = decoded(saved((16 * ramp).astype(np.uint16), kind))
    assert not block.problems
    expected = np.clip(np.floor((ramp - 1) * 255 / 253 + 0.5), 0, 255)  # of 256: 0.5 % is the 2nd
    np.testing.assert_array_equal(block.pixels[0, ..., 0], expected)
    assert block.changes["more than 8 bits"] == 1


def test_twelve_bits_a_pixel_on_disk():
    """A TIFF that packs two pixels into three bytes, to the letter of the specification."""
    values = np.arange(0, 4096, 16).reshape(16, 16)
    packed = b"".join(
        bytes([a >> 4, (a & 15) << 4 | b >> 8, b & 255]) for a, b in values.reshape(-1, 2).tolist()
    )
    tags = [
        (256, 16), (257, 16), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, 16),
        (279, len(packed)),
    ]  # fmt: skip
    directory = struct.pack("<H", len(tags))
    for tag, value in tags:
        directory += struct.pack("<HHII", tag, 4, 1, value)
    start = 8 + len(packed)
    content = struct.pack("<2sHI", b"II", 42, start) + packed + directory + bytes(4)
    block = decoded(content)
    assert not block.problems
    assert block.changes["more than 8 bits"] == 1
    assert np.unique(block.pixels).size > 250


def deep_colour(value):
    """A PNG of 16 bits in each of three colours, which Pillow reads but does not write."""
    row = b"\0" + struct.pack(">HHH", value, value, value) * 8
    chunk = lambda kind, data: (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    header = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(row * 8))
        + chunk(b"IEND", b"")
    )


def test_colour_of_sixteen_bits_is_used_or_refused_but_never_black():
    bright = decoded(deep_colour(0x9ABC), (8, 8, 3))
    assert (bright.pixels == 0x9A).all()
    assert bright.changes["16 bits a colour"] == 1
    assert "would come out black" in decoded(deep_colour(0x0ABC), (8, 8, 3)).problems[0]


def test_the_datasheet_says_what_was_done(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(20):
        place = tmp_path / f"x/{'ab'[i % 2]}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 4096, (8, 8)).astype(np.uint16)
        (place / f"{i}.png").write_bytes(saved(pixels, "PNG"))
    pool = load(DataSettings(source=str(tmp_path / "x")))
    (note,) = pool.report["notes"]
    assert "more than 8 bits, each stretched" in note
    assert ": 20;" in note
    assert pool.images.max() == 255


def test_thirty_two_bits_are_named(tmp_path):
    place = tmp_path / "x/a"
    place.mkdir(parents=True)
    for i in range(4):
        (place / f"{i}.tiff").write_bytes(saved(np.array([[i, 2**20]], np.int32), "TIFF"))
    with pytest.raises(UserError, match=r"\d\.tiff has pixels of 32 bits"):
        load(DataSettings(source=str(tmp_path / "x"), test_fraction=0.5))
