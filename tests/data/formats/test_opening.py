"""One image, whatever is in the file: only known kinds, bounded memory, the right way up."""

import io
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image

from calibre.data.formats import EncodedImage, turns
from calibre.data.formats.images import decode_block, survey
from calibre.data.formats.opening import KINDS
from calibre.errors import UserError

EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
showpage
"""


def saved(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def decoded(content, shape=(8, 8, 3)):
    return decode_block([EncodedImage("x", content)], shape)


def test_an_eps_called_png_starts_no_other_program(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(a))
    monkeypatch.setattr(subprocess, "check_call", lambda *a, **k: started.append(a))
    (tmp_path / "x.png").write_bytes(EPS)
    for content in (EPS, str(tmp_path / "x.png")):
        assert "no image of a kind that is known" in decoded(content).problems[0]
        with pytest.raises(UserError, match="no image of a kind"):
            survey([EncodedImage("x", content)], 1)
    assert not started


@pytest.mark.parametrize("kind", ["ICO", "PCX", "TGA", "SGI", "JPEG2000", "PDF", "EPS", "DIB"])
def test_no_other_kind_is_tried(kind):
    content = saved(Image.new("RGB", (16, 16), "red"), kind)
    assert "no image of a kind that is known" in decoded(content).problems[0]


def test_the_kinds_that_are_read():
    assert set(KINDS) == {"JPEG", "PNG", "TIFF", "WEBP", "GIF", "BMP", "PPM"}
    for kind in KINDS:
        assert not decoded(saved(Image.new("RGB", (16, 16), "red"), kind)).problems


def test_a_missing_file_is_not_to_be_repaired(tmp_path):
    (problem,) = decoded(str(tmp_path / "gone.png")).problems.values()
    assert problem == "is not there: no such file"
    (problem,) = decoded(str(tmp_path)).problems.values()
    assert "it is a folder" in problem
    (problem,) = decoded("a\0b.png").problems.values()
    assert problem == "is not there: no file can have this name"


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(24, 16), (2600, 1700)])
def test_large_and_small_images_are_turned_alike(orientation, size):
    """Dark and bright corners, so that every turn and mirror image can be told apart."""
    pixels = np.zeros((size[1], size[0]), np.uint8)
    pixels[: size[1] // 2, : size[0] // 2] = 250
    pixels[: size[1] // 2, size[0] // 2 :] = 120
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(Image.fromarray(pixels), "PNG", exif=exif)
    corners = np.array([[250, 120], [0, 0]])
    turned = {
        1: corners, 2: np.fliplr(corners), 3: np.rot90(corners, 2), 4: np.flipud(corners),
        5: corners.T, 6: np.rot90(corners, 3), 7: np.rot90(corners.T, 2), 8: np.rot90(corners),
    }[orientation]  # fmt: skip
    shown = decoded(content, (8, 8, 1)).pixels[0, ..., 0]
    np.testing.assert_array_equal(shown[[1, 1, 6, 6], [1, 6, 1, 6]].reshape(2, 2), turned)


def test_a_large_image_is_shrunk_to_what_resizing_gives():
    """Strip by strip, whatever its sides: against Pillow on the whole image, in one go."""
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (13, 17, 3), dtype=np.uint8))
    large = small.resize((2501, 1703), Image.Resampling.BICUBIC)
    expected = np.asarray(large.resize((40, 40), Image.Resampling.BOX))
    shown = decoded(saved(large, "PNG", compress_level=1), (40, 40, 3)).pixels[0]
    assert np.abs(shown.astype(int) - expected).mean() < 3


def test_a_large_image_with_transparency_and_one_of_sixteen_bits():
    clear = Image.new("RGBA", (2400, 2000), (0, 0, 0, 0))
    clear.paste((200, 10, 10, 255), (0, 0, 1200, 2000))
    block = decoded(saved(clear, "PNG", compress_level=1), (20, 20, 3))
    assert (block.pixels[0, :, 2] == (200, 10, 10)).all()
    assert (block.pixels[0, :, 17] == 255).all()
    assert block.changes == {"laid on white": 1, "resized": 1}

    deep = np.linspace(1000, 3000, 2400).astype(np.uint16)[None].repeat(2000, 0)
    content = saved(Image.fromarray(deep), "PNG", compress_level=1)
    ramp = decoded(content, (20, 20, 1)).pixels[0, 5, :, 0].astype(int)
    np.testing.assert_allclose(ramp, np.linspace(6, 249, 20), atol=2)


def measured(code, path):
    """Peak memory of a fresh process in MB, over what it had before."""
    program = f"""
from concurrent.futures import ThreadPoolExecutor
from PIL import Image
from calibre.data.formats import EncodedImage
from calibre.data.formats.images import decode_block
def peak():  # of this program: getrusage would count the process that it was started from
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
def show(content):
    return decode_block([EncodedImage("x", content)], (32, 32, 3))
show(open({str(path)!r}, "rb").read()[:100])
before = peak()
{code}
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.stderr
    return float(done.stdout)


def test_a_small_file_takes_bounded_memory_alone_and_eight_at_once(tmp_path):
    """What is whole in memory is the decoded image alone, and of large ones one at a time."""
    path = tmp_path / "x.png"
    picture = Image.new("P", (4000, 4000))
    picture.putpalette([0] * 768)
    picture.save(path, transparency=b"\x10" * 256)  # 16 MB decoded; in four colours, 64 more each
    assert path.stat().st_size < 30_000
    assert measured(f"show({str(path)!r})", path) < 40
    Image.new("RGB", (4200, 4200)).save(path)
    together = f"list(ThreadPoolExecutor(8).map(show, [{str(path)!r}] * 8))"
    assert measured(together, path) < 200  # 71 MB each


def test_what_would_take_too_much_is_refused_before_it_is_decoded():
    content = saved(Image.new("RGB", (5200, 5000)), "WEBP", lossless=True, quality=0, method=0)
    (problem,) = decoded(content).problems.values()
    assert "26.0 million pixels and would take 416 MB" in problem


def test_the_tiles_that_a_tiff_claims_to_have_count_too():
    """Sixteen pixels by sixteen, in a tile of ten thousand millions."""
    tags = [
        (256, 16), (257, 16), (258, 8), (259, 8), (262, 1), (277, 1), (322, 100_000),
        (323, 100_000), (324, 8), (325, 16),
    ]  # fmt: skip
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    content = struct.pack("<2sHI", b"II", 42, 24) + bytes(16) + struct.pack("<H", len(tags))
    (problem,) = decoded(content + directory + bytes(4)).problems.values()
    assert "would take" in problem


def test_large_images_take_turns(monkeypatch):
    monkeypatch.setattr(turns, "LARGE", 10)
    inside, most = [0], [0]

    def work():
        with turns.turn(20, 5):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            threading.Event().wait(0.01)
            inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_processes_take_turns_too(tmp_path):
    """Two that share the file: each writes when it comes and when it goes."""
    program = f"""
import sys, time
from calibre.data.formats import turns
turns.share(int(sys.argv[1]))
with turns.turn(turns.LARGE, 1), open({str(tmp_path / "log")!r}, "a") as log:
    print("in", file=log, flush=True); time.sleep(0.2); print("out", file=log, flush=True)
"""
    handle = turns.shared_file().fileno()
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(handle)], pass_fds=[handle])
        for _ in range(2)
    ]
    assert [process.wait() for process in running] == [0, 0]
    assert (tmp_path / "log").read_text().split() == ["in", "out"] * 2


def test_pages_and_animations_are_counted(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    several = {"save_all": True, "append_images": frames[1:]}
    for kind, word in (("TIFF", "several pages"), ("GIF", "animated"), ("PNG", "animated"),
                       ("WEBP", "animated")):  # fmt: skip
        block = decoded(saved(frames[0], kind, **several))
        assert block.changes == {word: 1}
        np.testing.assert_allclose(block.pixels[0, 4, 4], (255, 0, 0), atol=3)
        assert not decoded(saved(frames[0], kind)).changes
    assert not decoded(saved(frames[0], "MPO", **several)).changes  # a photograph's preview


def test_damaged_exif_costs_no_pixel():
    content = saved(Image.new("RGB", (8, 8), "red"), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert not decoded(content).problems
