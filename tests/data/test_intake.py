"""What people's folders really hold: each oddity is handled, or refused by name."""

import io
import json
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from calibre.data.federation import build
from calibre.data.formats import EncodedImage, decoders
from calibre.data.sources import left_out, load
from calibre.errors import UserError
from calibre.sections import DataSettings, FederationSettings


@pytest.fixture(autouse=True)
def pools(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "pools"))


def pool_of(source, **settings):
    return load(DataSettings(source=str(source), **settings))


def picture(value, size=(8, 8), mode="RGB"):
    """Two shades, so that gray, colour and transparent versions of it can be told apart."""
    array = np.full((size[1], size[0], 3), value, np.uint8)
    array[:, size[0] // 2 :] = 255 - value
    return Image.fromarray(array).convert(mode)


def put(path, image, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)


def fill(place, count=24, clients=("anna", "ben"), classes=("cat", "dog")):
    """A sound federation of folders: no two images are the same."""
    for i in range(count):
        folder = place / clients[i % len(clients)] / classes[i // len(clients) % len(classes)]
        put(folder / f"{i:03}.png", picture(2 * i))


def shades(pool, part):
    return sorted(pool.images[part.start : part.stop, 0, 0, 0].tolist())


def test_clients_may_hold_unlabelled_images(tmp_path):
    fill(tmp_path / "x")
    for i in range(5):
        put(tmp_path / f"x/anna/unlabelled/{i}.png", picture(100 + i))
    pool = pool_of(tmp_path / "x")
    assert pool.classes == ("cat", "dog")
    assert shades(pool, pool.unlabelled) == [100, 101, 102, 103, 104]
    assert {pool.owner_names[pool.owners[i]] for i in pool.unlabelled} == {"anna"}
    assert set(pool.labels[pool.unlabelled.start :]) == {-1}
    federation = build(pool, FederationSettings(scheme="natural", novel=0), 0)
    sizes = dict(zip(federation.names, federation.unlabelled.sizes.tolist(), strict=True))
    assert sizes == {"anna": 5, "ben": 0}


def test_unlabelled_images_without_owners_and_below_train(tmp_path):
    for part in ("train", "test"):
        for i in range(4):
            put(tmp_path / f"x/{part}/cat/{i}.png", picture(10 * i + (part == "test")))
    put(tmp_path / "x/train/unlabeled/1.png", picture(200))
    pool = pool_of(tmp_path / "x")
    assert (len(pool.train), len(pool.test), shades(pool, pool.unlabelled)) == (4, 4, [200])
    put(tmp_path / "x/test/unlabelled/1.png", picture(201))
    with pytest.raises(UserError, match=r"test/unlabelled/1\.png is a test image without a label"):
        pool_of(tmp_path / "x")


def test_transparency_is_laid_on_white(tmp_path):
    fill(tmp_path / "x")
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[2:6, 2:6] = (77, 20, 30, 255)  # the rest is black, and cannot be seen
    put(tmp_path / "x/anna/cat/clear.png", Image.fromarray(clear))
    put(tmp_path / "x/anna/cat/half.png", Image.new("LA", (8, 8), (100, 51)))
    pool = pool_of(tmp_path / "x")
    expected = np.full((8, 8, 3), 255)
    expected[2:6, 2:6] = (77, 20, 30)
    found = [image for image in pool.images if (image == expected).all()]
    assert len(found) == 1
    # 100 covers a fifth of white: 255 - 0.2 * 155
    assert (np.abs(pool.images.astype(int) - 224).max(axis=(1, 2, 3)) <= 1).sum() == 1
    assert "images with transparency laid on white: 2" in pool.report["notes"]


def test_cmyk_and_palettes(tmp_path):
    fill(tmp_path / "x")
    put(tmp_path / "x/anna/cat/print.jpg", Image.new("CMYK", (8, 8), (0, 255, 255, 0)), quality=95)
    put(tmp_path / "x/anna/cat/few.gif", Image.new("RGB", (8, 8), (0, 0, 255)).convert("P"))
    pool = pool_of(tmp_path / "x")
    centres = pool.images[:, 4, 4].astype(int)
    assert (np.abs(centres - (255, 0, 0)).max(1) <= 3).sum() == 1  # red ink
    assert (centres == (0, 0, 255)).all(1).sum() == 1
    assert "images converted from CMYK: 1" in pool.report["notes"]


def bomb(path, side):
    """A PNG of a hundred bytes that claims to have side x side pixels."""
    chunk = lambda kind, data: (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))
    )


def test_what_cannot_be_read_is_left_out_and_listed(tmp_path, recwarn):
    fill(tmp_path / "x", 80)
    whole = (tmp_path / "x/anna/cat/000.png").read_bytes()
    (tmp_path / "x/anna/cat/empty.png").write_bytes(b"")
    (tmp_path / "x/anna/cat/page.jpg").write_text("<html>")
    (tmp_path / "x/anna/cat/short.png").write_bytes(whole[: len(whole) * 2 // 3])
    (tmp_path / "x/anna/cat/gone.png").symlink_to("nowhere.png")
    put(tmp_path / "x/anna/cat/float.tiff", Image.new("F", (8, 8), 0.5))
    bomb(tmp_path / "x/ben/dog/bomb.png", 10_000)
    bomb(tmp_path / "x/ben/dog/huge.png", 2_000_000)
    (tmp_path / "x/ben/dog/scan.doc").write_text("no image that we know")
    (tmp_path / "x/ben/eel").mkdir()
    pool = pool_of(tmp_path / "x")
    assert len(pool.train) + len(pool.test) == 80
    assert sorted(pool.images[:, 0, 0, 0].tolist()) == [2 * i for i in range(80)]
    assert [pool.labels[i] for i in pool.train] == [
        pool.images[i, 0, 0, 0] // 2 // 2 % 2 for i in pool.train
    ]
    listed = pool.report["unreadable"]
    assert listed["count"] == 7
    reasons = {name.rsplit("/", 1)[1]: why for name, why in listed["files"].items()}
    assert "million pixels" in reasons["bomb.png"]
    assert "million pixels" in reasons["huge.png"]
    assert "floating-point" in reasons["float.tiff"]
    assert "no such file" in reasons["gone.png"]
    assert set(reasons) >= {"empty.png", "page.jpg", "short.png"}
    notes = " ".join(pool.report["notes"])
    assert "left out: 7 of 87;" in notes
    assert "files of other kinds, not read: 1 (1 .doc)" in notes
    assert "no image is of class 'eel'" in notes
    assert not recwarn.list

    federation = build(pool, FederationSettings(scheme="natural", novel=0), 0)
    federation.save(tmp_path / "run")
    sheet = json.loads((tmp_path / "run" / "federation.json").read_text())
    assert sheet["source"]["unreadable"] == listed
    assert sheet["notes"] == pool.report["notes"]


def test_too_much_that_cannot_be_read_is_refused(tmp_path):
    fill(tmp_path / "x", 80)
    for i in range(9):
        (tmp_path / f"x/anna/cat/broken{i}.png").write_bytes(b"no")
    with pytest.raises(UserError, match=r"broken0\.png is no image.*9 of 89 images.* 10 %"):
        pool_of(tmp_path / "x")


def test_a_cut_file_has_an_intact_header_and_is_found_all_the_same(tmp_path):
    """A survey of headers passes it; only decoding tells. JPEG, since PNG has checksums."""
    rng = np.random.default_rng(0)
    for i in range(12):
        noise = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
        put(tmp_path / f"x/a/{i:02}.jpg", noise, quality=90)
    cut = tmp_path / "x/a/05.jpg"
    cut.write_bytes(cut.read_bytes()[:-2000])
    assert [*pool_of(tmp_path / "x").report["unreadable"]["files"]] == [str(cut)]


def test_training_images_that_are_test_images_too_are_left_out(tmp_path):
    """Also those of another client, in another format, or without a label."""
    for i in range(6):
        put(tmp_path / f"x/train/anna/cat/{i}.png", picture(10 * i))
        put(tmp_path / f"x/train/ben/dog/{i}.png", picture(10 * i + 1))
        put(tmp_path / f"x/test/anna/cat/{i}.png", picture(10 * i + 2))
    put(tmp_path / "x/test/ben/dog/a.bmp", picture(10))  # anna's 1
    put(tmp_path / "x/test/ben/dog/b.png", picture(21))  # ben's 2
    put(tmp_path / "x/train/ben/unlabelled/c.png", picture(32))  # anna's test image 3
    put(tmp_path / "x/train/ben/dog/again.png", picture(51))  # only twice among training images
    pool = pool_of(tmp_path / "x")
    assert shades(pool, pool.train) == [0, 1, 11, 20, 30, 31, 40, 41, 50, 51, 51]
    assert shades(pool, pool.test) == [2, 10, 12, 21, 22, 32, 42, 52]
    assert len(pool.unlabelled) == 0
    left = pool.report["copies_of_test_images"]
    assert left["count"] == 3
    assert [name.split("/x/")[1] for name in left["files"]] == [
        "train/anna/cat/1.png", "train/ben/dog/2.png", "train/ben/unlabelled/c.png",
    ]  # fmt: skip
    owners = [pool.owner_names[i] for i in pool.owners[: len(pool.train)]]
    assert owners == ["anna"] * 5 + ["ben"] * 6
    assert "copies of test images, left out: 3;" in pool.report["notes"][0]


def test_a_test_part_that_is_the_training_part(tmp_path):
    for part in ("train", "test"):
        put(tmp_path / f"x/{part}/a/1.png", picture(1))
    with pytest.raises(UserError, match="every training image is the copy of a test image"):
        pool_of(tmp_path / "x")


def test_copies_in_arrays(tmp_path):
    images = np.arange(10, dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
    np.savez(
        tmp_path / "x.npz",
        x_train=images[:8], y_train=[0, 1] * 4, x_test=images[6:], y_test=[0, 1] * 2,
        unlabelled=images[[9, 3]],
    )  # fmt: skip
    pool = pool_of(tmp_path / "x.npz")
    assert shades(pool, pool.train) == [0, 1, 2, 3, 4, 5]
    assert shades(pool, pool.unlabelled) == [3]
    assert pool.report["copies_of_test_images"]["files"] == ["image 6", "image 7", "image 0"]


def test_a_link_to_a_folder_above_does_not_go_on_for_ever(tmp_path):
    fill(tmp_path / "x")
    (tmp_path / "x/anna/cat/loop").symlink_to(tmp_path / "x")
    assert len(pool_of(tmp_path / "x").labels) == 24
    put(tmp_path / "x/anna/cat/a/b/c/deep.png", picture(222))
    with pytest.raises(UserError, match=r"a/b/c/deep\.png is not where the others suggest"):
        pool_of(tmp_path / "x")


def test_a_pipe_a_device_and_a_link_to_one_are_left_out_by_name(tmp_path):
    """None of them is waited for or read."""
    fill(tmp_path / "x", 40)
    os.mkfifo(tmp_path / "x/anna/cat/pipe.png")
    (tmp_path / "x/anna/cat/zeros.png").symlink_to("/dev/zero")
    pool = pool_of(tmp_path / "x")
    assert len(pool.labels) == 40
    left = {name.rsplit("/", 1)[1]: why for name, why in pool.report["unreadable"]["files"].items()}
    assert set(left) == {"pipe.png", "zeros.png"}
    assert all("a pipe or a device, not a file" in why for why in left.values())


@pytest.mark.parametrize("name", ["x.npz", "x.csv", "x.parquet"])
def test_a_source_that_is_a_device_or_a_pipe_is_refused(tmp_path, name):
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(UserError, match=f"{name} is a pipe or a device"):
        pool_of(tmp_path / name)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=f"{name} is a pipe or a device"):
        pool_of(tmp_path / name)


def test_an_identical_image_stays_with_the_client_that_takes_part(tmp_path):
    """Carl has one image to train on: he is no client, and Ben keeps the image they share."""
    for i in range(6):
        put(tmp_path / f"x/train/anna/cat/{i}.png", picture(10 * i))
        put(tmp_path / f"x/train/ben/dog/{i}.png", picture(10 * i + 1))
        put(tmp_path / f"x/test/anna/cat/{i}.png", picture(10 * i + 2))
        put(tmp_path / f"x/test/ben/dog/{i}.png", picture(10 * i + 3))
    put(tmp_path / "x/train/carl/dog/one.png", picture(99))
    put(tmp_path / "x/test/carl/dog/same.png", picture(21))  # ben's third
    pool = pool_of(tmp_path / "x")
    assert 21 in shades(pool, pool.train)
    assert 21 not in shades(pool, pool.test)
    (note,) = pool.report["notes"]
    assert "because others train on the same: 1;" in note
    assert "carl/dog/same.png" in note
    federation = build(pool, FederationSettings(novel=0), 0)
    assert federation.names == ("anna", "ben")
    assert set(federation.datasheet["left_out"]) == {"carl"}


def test_clients_without_images_are_named(tmp_path):
    fill(tmp_path / "x")
    (tmp_path / "x/carl").mkdir()
    (tmp_path / "x/dora/cat").mkdir(parents=True)
    (tmp_path / "x/emil/dog").mkdir(parents=True)
    (tmp_path / "x/emil/dog/notes.txt").write_text("none yet")
    notes = pool_of(tmp_path / "x").report["notes"]
    assert "clients whose folders hold no image, left out: 'carl', 'dora', 'emil'" in notes


def test_clients_without_images_in_one_part_alone_are_not(tmp_path):
    for part in ("train", "test"):
        for i in range(4):
            put(tmp_path / f"x/{part}/anna/cat/{i}.png", picture(10 * i + (part == "test")))
    (tmp_path / "x/test/ben/cat").mkdir(parents=True)
    put(tmp_path / "x/train/ben/cat/1.png", picture(77))
    (tmp_path / "x/test/carl").mkdir()
    notes = pool_of(tmp_path / "x").report["notes"]
    assert [note for note in notes if "no image" in note] == [
        "clients whose folders hold no image, left out: 'carl'"
    ]


def test_every_file_that_was_left_out_is_listed(tmp_path, monkeypatch):
    """Also beyond those that a datasheet has room for, and what is of another kind."""
    monkeypatch.setattr("calibre.data.intake.LISTED", 2)
    fill(tmp_path / "x", 80)
    for i in range(5):
        (tmp_path / f"x/anna/cat/broken{i}.png").write_bytes(b"no")
    (tmp_path / "x/anna/read,me.txt").write_text("hello")
    settings = DataSettings(source=str(tmp_path / "x"))
    assert len(load(settings).report["unreadable"]["files"]) == 2
    listed = left_out(settings)
    assert [name.rsplit("/", 1)[1] for name, _ in listed] == [
        *(f"broken{i}.png" for i in range(5)), "read,me.txt",
    ]  # fmt: skip
    assert listed[5][1] == "is of a kind that is not read"


def test_images_that_are_too_large_to_keep_are_refused_with_advice(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((4, 2, 5000), np.uint8), labels=[0, 1] * 2)
    with pytest.raises(UserError, match=r"5,000 x 2 pixels are too large .*data\.size=64"):
        pool_of(tmp_path / "x.npz")
    with pytest.raises(UserError, match="too large"):
        pool_of(tmp_path / "x.npz", size=10**9)


def encoded(value):
    file = io.BytesIO()
    picture(value).save(file, "PNG")
    return file.getvalue()


def test_processes_decode_to_the_same_blocks_in_the_same_order(tmp_path, monkeypatch):
    """Files and bytes, sound and broken ones; blocks small enough to be many."""
    monkeypatch.setattr(decoders, "BLOCK", 7)
    images = []
    for i in range(60):
        # the first block takes longest: others are done before it
        put(tmp_path / f"{i}.png", picture(i, size=(2000, 2000) if i == 1 else (8, 8)))
        content = str(tmp_path / f"{i}.png") if i % 2 else encoded(i)
        images.append(EncodedImage(f"{i}", content if i % 17 != 3 else b"junk"))
    alone = list(decoders.decode(images, (8, 8, 3)))
    monkeypatch.setattr(decoders, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(decoders, "usable_cores", lambda: 2)
    together = list(decoders.decode(images, (8, 8, 3)))
    assert len(alone) == len(together) == 9
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.pixels, other.pixels)
        assert (one.prints == other.prints).all()
        assert (one.problems, one.changes) == (other.problems, other.changes)
    pixels = np.concatenate([block.pixels for block in together])
    assert [x for i, x in enumerate(pixels[:, 0, 0, 0].tolist()) if i % 17 != 3] == [
        i for i in range(60) if i % 17 != 3
    ]


def test_photographs_come_in_small_blocks(tmp_path, monkeypatch):
    """By the bytes of files too: progress is seen, and every core has something to do."""
    monkeypatch.setattr(decoders, "BLOCK", 5)
    monkeypatch.setattr(decoders, "BLOCK_BYTES", 1000)
    sizes = [10, 10, 600, 300, 100, 2000, 1, *[1] * 6]
    images = []
    for i, size in enumerate(sizes):
        (tmp_path / f"{i}").write_bytes(bytes(size))
        images.append(EncodedImage(f"{i}", str(tmp_path / f"{i}") if i % 2 else bytes(size)))
    images.append(EncodedImage("gone", str(tmp_path / "gone")))
    blocks = [len(block.pixels) for block in decoders.decode(images, (8, 8, 3))]
    assert blocks == [4, 1, 1, 5, 3]


def test_a_decoder_that_dies_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(decoders, "BLOCK", 2)
    monkeypatch.setattr(decoders, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(decoders, "usable_cores", lambda: 2)
    monkeypatch.setattr(decoders.sys, "executable", "/bin/false")
    images = [EncodedImage(f"image {i}", encoded(i)) for i in range(8)]
    with pytest.raises(UserError, match=r"from image \d to image \d ended the process .*code 1"):
        list(decoders.decode(images, (8, 8, 3)))
