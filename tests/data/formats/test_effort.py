import io
import time

import numpy as np
import pytest
from PIL import Image

from calibre.data.formats import EncodedImage
from calibre.data.formats.images import decode_block


def jpeg(scans, **options):
    """A photograph whose last scan comes again and again: its decoder sees all pixels each time."""
    file = io.BytesIO()
    Image.new("RGB", (1000, 1000), "red").save(file, "JPEG", **options)
    content = file.getvalue()
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * scans + content[-2:]


@pytest.mark.parametrize(
    "content",
    [
        jpeg(100_000, progressive=True),
        b"P3\n10 10\n255\n" + b"#\n" * 3_000_000,
        b"P1\n10 10\n" + b"#a\n" * 2_000_000,
        b"P2\n10 10\n255\n" + b"1 #\n" * 1_000_000,
    ],
    ids=["scans", "P3", "P1", "P2"],
)
def test_no_small_file_takes_hours(content, tmp_path):
    (tmp_path / "x.jpg").write_bytes(content)
    started = time.process_time()
    for image in (content, str(tmp_path / "x.jpg")):
        block = decode_block([EncodedImage("x", image)], (8, 8, 3))
        assert "more than 200 scans or comments; save it anew" in block.problems[0]
    assert time.process_time() - started < 2


def test_what_people_save_is_read():
    plain = b"P3\n# made by hand\n2 1\n255\n255 0 0 # red\n255 0 0\n"
    binary = b"P6\n16 16\n255\n" + b"#" * 16 * 16 * 3
    for content in (jpeg(1), jpeg(1, progressive=True), plain, binary):
        block = decode_block([EncodedImage("x", content)], (8, 8, 3))
        assert not block.problems
    np.testing.assert_array_equal(block.pixels, np.full((1, 8, 8, 3), ord("#")))
