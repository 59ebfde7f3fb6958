"""Every format, from small files made here by hand to the letter of its specification."""

import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from calibre.data.formats.cifar import CIFAR10, CIFAR100
from calibre.data.formats.known import KNOWN
from calibre.data.pool import UNLABELLED, Pool
from calibre.data.sources import describe, facts, load
from calibre.errors import UserError
from calibre.registry import DATA_SETS
from calibre.sections import DataSettings

REAL_DATA = Path(os.environ.get("CALIBRE_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """A data root and a cache of the test's own."""
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "pools"))
    monkeypatch.setenv("CALIBRE_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def random_images(count, height, width, channels, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def named(source, **settings):
    return load(DataSettings(source=str(source), **settings))


def images_of(pool: Pool, part: range):
    return pool.images[part.start : part.stop]


def labels_of(pool: Pool, part: range):
    return pool.labels[part.start : part.stop].tolist()


# --- digits


def test_digits_are_scaled_and_split_evenly():
    pool = named("digits")
    ink = load_digits()
    assert pool.images.shape == (1797, 8, 8, 1)
    assert pool.classes == tuple("0123456789")
    expected = {
        (bytes(round(v * 255 / 16) for v in x), int(y))
        for x, y in zip(ink.data, ink.target, strict=True)
    }
    assert {
        (x.tobytes(), int(y)) for x, y in zip(pool.images, pool.labels, strict=True)
    } == expected
    assert len(pool.train) + len(pool.test) == 1797
    assert pool.train.stop == pool.test.start
    for label in range(10):
        in_class = int((ink.target == label).sum())
        assert abs(labels_of(pool, pool.test).count(label) - 0.2 * in_class) < 1


def test_test_fraction_is_honoured_and_reproducible(tmp_path, monkeypatch):
    third = named("digits", test_fraction=0.3)
    assert len(third.test) == 539  # 0.3 * 1797 = 539.1
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "another"))
    again = named("digits", test_fraction=0.3)
    np.testing.assert_array_equal(third.images, again.images)
    assert third.fingerprint == again.fingerprint != named("digits").fingerprint


def test_too_few_images_to_split(tmp_path):
    np.savez(tmp_path / "one.npz", images=random_images(1, 4, 4, 1), labels=[0])
    with pytest.raises(UserError, match=r"test_fraction = 0\.2 of 1 images"):
        named(tmp_path / "one.npz")


# --- CIFAR


def channel_by_channel(image):
    """CIFAR's order: all red values row by row, then green, then blue."""
    height, width, _ = image.shape
    return bytes(image[y, x, c] for c in range(3) for y in range(height) for x in range(width))


def write_cifar_binary(folder, names, images, labels):
    """``labels`` holds a tuple of label bytes per image; images are dealt to the files in order."""
    folder.mkdir(parents=True)
    each = len(images) // len(names)
    for i, name in enumerate(names):
        part = range(i * each, (i + 1) * each)
        (folder / name).write_bytes(
            b"".join(bytes(labels[j]) + channel_by_channel(images[j]) for j in part)
        )


def python2_pickle(rows: list[bytes], labels: list[int], key: bytes) -> bytes:
    """{'data': uint8 array, key: list of ints}, opcode by opcode as Python 2's cPickle wrote it."""
    text = lambda s: b"U" + bytes([len(s)]) + s  # SHORT_BINSTRING
    data = b"".join(rows)
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b")
    array += b"\x87R(K\x01" + b"M" + struct.pack("<H", len(rows)) + b"M" + struct.pack("<H", 3072)
    array += b"\x86" + dtype + b"\x89T" + struct.pack("<i", len(data)) + data + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(key) + numbers + b"u."


def write_cifar_python(folder, names, images, labels, key, dump=python2_pickle):
    folder.mkdir(parents=True)
    each = len(images) // len(names)
    for i, name in enumerate(names):
        part = range(i * each, (i + 1) * each)
        rows = [channel_by_channel(images[j]) for j in part]
        (folder / name).write_bytes(dump(rows, [labels[j] for j in part], key))


def python3_pickle(rows, labels, key):
    array = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 3072)
    return pickle.dumps({b"data": array, key: labels}, protocol=2)


def encoded(image, format="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(image.squeeze()).save(file, format, **options)
    return file.getvalue()


def write_parquet(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def as_structs(images):
    return pa.array([{"bytes": encoded(image), "path": None} for image in images])


BATCHES = [f"data_batch_{i}" for i in range(1, 6)]


@pytest.mark.parametrize(
    "layout", ["cifar10/cifar-10-batches-bin", "cifar10", "cifar-10-batches-bin"]
)
def test_cifar10_binary(root, layout):
    images, labels = random_images(12, 32, 32, 3), [9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1]
    names = [*(f"{name}.bin" for name in BATCHES), "test_batch.bin"]
    write_cifar_binary(root / layout, names, images, [(label,) for label in labels])
    pool = named("cifar10")
    assert (pool.name, pool.classes) == ("cifar10", CIFAR10)
    np.testing.assert_array_equal(pool.images, images)
    assert labels_of(pool, pool.train) == labels[:10]
    assert labels_of(pool, pool.test) == labels[10:]
    assert len(pool.unlabelled) == 0


@pytest.mark.parametrize("dump", [python2_pickle, python3_pickle])
def test_cifar10_python_batches(root, dump):
    images, labels = random_images(12, 32, 32, 3), [9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1]
    folder = root / "cifar10" / "cifar-10-batches-py"
    write_cifar_python(folder, [*BATCHES, "test_batch"], images, labels, b"labels", dump)
    pool = named("cifar10")
    np.testing.assert_array_equal(pool.images, images)
    assert pool.labels.tolist() == labels


class Attack:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "attack", [Attack(os.mkdir, "pwned"), Attack(eval, "1"), Attack(getattr, 1, "x")]
)
def test_a_dangerous_pickle_is_refused(root, tmp_path, monkeypatch, attack):
    monkeypatch.chdir(tmp_path)
    images = random_images(6, 32, 32, 3)
    folder = root / "cifar10" / "cifar-10-batches-py"
    write_cifar_python(folder, [*BATCHES, "test_batch"], images, [0] * 6, b"labels")
    (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": attack, b"labels": [0]}))
    with pytest.raises(UserError, match=r"data_batch_3.*not run"):
        named("cifar10")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x02}.", b"junk", pickle.dumps([1])])
def test_a_damaged_batch_is_named(root, content):
    images = random_images(6, 32, 32, 3)
    folder = root / "cifar10" / "cifar-10-batches-py"
    write_cifar_python(folder, [*BATCHES, "test_batch"], images, [0] * 6, b"labels")
    (folder / "data_batch_2").write_bytes(content)
    with pytest.raises(UserError, match=r"data_batch_2 is not a batch of CIFAR.*again"):
        named("cifar10")


def test_a_broken_binary_file_is_named(root):
    images = random_images(6, 32, 32, 3)
    folder = root / "cifar10"
    write_cifar_binary(
        folder, [*(f"{b}.bin" for b in BATCHES), "test_batch.bin"], images, [(0,)] * 6
    )
    with (folder / "data_batch_4.bin").open("ab") as file:
        file.truncate(3000)
    with pytest.raises(UserError, match=r"data_batch_4\.bin.*3,000"):
        named("cifar10")


def test_a_label_out_of_range(root):
    images = random_images(6, 32, 32, 3)
    names = [*(f"{b}.bin" for b in BATCHES), "test_batch.bin"]
    write_cifar_binary(root / "cifar10", names, images, [(12,)] * 6)
    with pytest.raises(UserError, match="labels must go from 0 to 9"):
        named("cifar10")


def test_cifar100_gives_fine_labels_in_every_layout(root):
    images, fine, coarse = random_images(4, 32, 32, 3), [99, 0, 42, 7], [1, 2, 3, 4]
    write_cifar_binary(
        root / "a/cifar100/cifar-100-binary",
        ["train.bin", "test.bin"],
        images,
        list(zip(coarse, fine, strict=True)),
    )
    write_cifar_python(
        root / "b/cifar100/cifar-100-python", ["train", "test"], images, fine, b"fine_labels"
    )
    for part, rows in (("train", slice(2)), ("test", slice(2, 4))):
        write_parquet(
            root / f"c/cifar100/cifar100/{part}-00000-of-00001.parquet",
            img=as_structs(images[rows]),
            fine_label=fine[rows],
            coarse_label=coarse[rows],
        )
    pools = [named("cifar100", root=root / folder) for folder in "abc"]
    for pool in pools:
        np.testing.assert_array_equal(pool.images, images)
        assert pool.labels.tolist() == fine
        assert pool.classes == CIFAR100
    assert len({pool.fingerprint for pool in pools}) == 1


def test_class_names_of_cifar100():
    assert len(set(CIFAR100)) == 100
    assert list(CIFAR100) == sorted(CIFAR100)
    assert (CIFAR100[0], CIFAR100[53], CIFAR100[99]) == ("apple", "orange", "worm")


@pytest.mark.skipif(
    not (REAL_DATA / "cifar10/plain_text").exists(),
    reason="no CIFAR-10 parquet in $CALIBRE_DATA or ../shared/data",
)
def test_real_cifar10_parquet(root):
    table = pq.read_table(REAL_DATA / "cifar10/plain_text/test-00000-of-00001.parquet").slice(
        0, 300
    )
    folder = root / "cifar10/plain_text"
    folder.mkdir(parents=True)
    pq.write_table(table.slice(0, 200), folder / "train-00000-of-00001.parquet")
    pq.write_table(table.slice(200), folder / "test-00000-of-00001.parquet")
    pool = named("cifar10")
    assert (pool.shape, pool.train, pool.test) == ((32, 32, 3), range(200), range(200, 300))
    assert pool.labels.tolist() == table.column("label").to_pylist()
    for i, image in enumerate(table.column("img").to_pylist()):
        np.testing.assert_array_equal(pool.images[i], Image.open(io.BytesIO(image["bytes"])))


# --- STL-10


def write_stl10(folder, parts):
    """Channel by channel, and inside a channel column by column."""
    folder.mkdir(parents=True)
    for name, images in parts.items():
        (folder / f"{name}_X.bin").write_bytes(
            b"".join(bytes(image[..., c].T.tobytes()) for image in images for c in range(3))
        )
    (folder / "class_names.txt").write_text("airplane\nbird\n")


@pytest.mark.parametrize("layout", ["stl10/stl10_binary", "stl10", "stl10_binary"])
def test_stl10(root, layout):
    parts = {
        name: random_images(n, 96, 96, 3, n)
        for name, n in (("train", 3), ("test", 2), ("unlabeled", 4))
    }
    write_stl10(root / layout, parts)
    (root / layout / "train_y.bin").write_bytes(bytes([1, 2, 1]))
    (root / layout / "test_y.bin").write_bytes(bytes([2, 2]))
    pool = named("stl10")
    np.testing.assert_array_equal(pool.images, np.concatenate(list(parts.values())))
    assert pool.labels.tolist() == [0, 1, 0, 1, 1] + 4 * [UNLABELLED]
    assert (pool.train, pool.test, pool.unlabelled) == (range(3), range(3, 5), range(5, 9))
    assert pool.classes == ("airplane", "bird")


def test_stl10_without_its_unlabelled_part_and_resized(root):
    write_stl10(
        root / "stl10",
        {"train": np.full((1, 96, 96, 3), 7, np.uint8), "test": random_images(1, 96, 96, 3)},
    )
    (root / "stl10/train_y.bin").write_bytes(bytes([1]))
    (root / "stl10/test_y.bin").write_bytes(bytes([2]))
    pool = named("stl10", size=24)
    assert pool.images.shape == (2, 24, 24, 3)
    assert (pool.images[0] == 7).all()
    assert len(pool.unlabelled) == 0
    (root / "stl10/unlabeled_X.bin").write_bytes(bytes(5 * 3 * 96 * 96))
    assert len(named("stl10", size=24).unlabelled) == 5, "a file that came later is noticed"
    with (root / "stl10/train_X.bin").open("ab") as file:
        file.write(b"more")
    with pytest.raises(UserError, match=r"train_X\.bin.*whole number of images"):
        named("stl10")


# --- MNIST and Fashion-MNIST


def idx(array):
    return (
        struct.pack(">HBB", 0, 8, array.ndim)
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write_idx(folder, train, test, compress=False, between="-"):
    folder.mkdir(parents=True)
    for part, (images, labels) in (("train", train), ("t10k", test)):
        for kind, array in ((f"images{between}idx3", images), (f"labels{between}idx1", labels)):
            content = idx(np.asarray(array, np.uint8))
            path = folder / f"{part}-{kind}-ubyte{'.gz' if compress else ''}"
            path.write_bytes(gzip.compress(content) if compress else content)


@pytest.mark.parametrize(
    ("name", "layout", "options"),
    [
        ("mnist", "mnist/raw", {"compress": True}),
        ("mnist", "mnist", {}),
        ("mnist", "MNIST/raw", {"between": "."}),
        ("fashion-mnist", "fashion-mnist", {"compress": True}),
        ("fashion-mnist", "FashionMNIST/raw", {}),
    ],
)
def test_idx(root, name, layout, options):
    images = random_images(5, 28, 28, 1)
    write_idx(
        root / layout, (images[:3, ..., 0], [9, 1, 2]), (images[3:, ..., 0], [0, 4]), **options
    )
    pool = named(name)
    np.testing.assert_array_equal(pool.images, images)
    assert pool.labels.tolist() == [9, 1, 2, 0, 4]
    assert (pool.train, pool.test, len(pool.classes)) == (range(3), range(3, 5), 10)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-5], "holds 1,563 bytes where its header says 2x28x28"),
        (lambda content: b"<html>", "not an idx file"),
        (lambda content: b"", "not an idx file"),
    ],
)
def test_a_damaged_idx_file_is_named(root, damage, message):
    images = random_images(2, 28, 28, 1)[..., 0]
    write_idx(root / "mnist", (images, [0, 1]), (images, [0, 1]))
    path = root / "mnist/train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=f"train-images-idx3-ubyte.*{message}"):
        named("mnist")


def test_a_broken_gzip_is_named(root):
    images = random_images(2, 28, 28, 1)[..., 0]
    write_idx(root / "mnist", (images, [0, 1]), (images, [0, 1]), compress=True)
    path = root / "mnist/t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"t10k-images.*again"):
        named("mnist")


def test_as_many_labels_as_images(root):
    images = random_images(2, 28, 28, 1)[..., 0]
    write_idx(root / "mnist", (images, [0, 1, 2]), (images, [0, 1]))
    with pytest.raises(UserError, match="2 images but 3 labels"):
        named("mnist")


# --- npz


def test_npz_in_two_parts(tmp_path):
    images = random_images(5, 6, 6, 3)
    np.savez(
        tmp_path / "mine.npz",
        x_train=images[:3], y_train=np.array([["b"], ["a"], ["b"]]), clients_train=[7, 8, 7],
        x_test=images[3:], y_test=np.array(["c", "a"]), clients_test=[8, 9],
    )  # fmt: skip
    pool = named(tmp_path / "mine.npz")
    np.testing.assert_array_equal(pool.images, images)
    assert (pool.name, pool.classes, pool.owner_names) == ("mine", ("a", "b", "c"), ("7", "8", "9"))
    assert pool.labels.tolist() == [1, 0, 1, 2, 0]
    assert pool.owners.tolist() == [0, 1, 0, 1, 2]
    assert pool.owners.dtype == np.int32


def test_npz_in_one_part_keeps_image_label_and_client_together(tmp_path):
    values = np.arange(100)
    np.savez(
        tmp_path / "mine.npz",
        images=np.broadcast_to(values[:, None, None], (100, 4, 4)).astype(np.uint8),
        labels=values % 5 + 10,
        clients=values % 3,
    )
    pool = named(tmp_path / "mine.npz", test_fraction=0.25)
    assert (pool.shape, len(pool.train), len(pool.test)) == ((4, 4, 1), 75, 25)
    assert pool.classes == ("10", "11", "12", "13", "14")
    ids = pool.images[:, 0, 0, 0].astype(int)
    assert sorted(ids) == list(range(100))
    np.testing.assert_array_equal(pool.labels, ids % 5)
    np.testing.assert_array_equal(pool.owners, ids % 3)


@pytest.mark.parametrize("labels", [[0, 2] * 5, ["cat", "eel"] * 5])
def test_npz_may_name_its_classes(tmp_path, labels):
    classes = ("cat", "dog", "eel")
    images = random_images(10, 4, 4, 1)
    np.savez(tmp_path / "mine.npz", images=images, labels=labels, classes=classes)
    pool = named(tmp_path / "mine.npz")
    assert pool.classes == classes
    assert set(pool.labels) == {0, 2}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((4, 8, 8)), "labels": [0] * 4}, "float64.*astype"),
        ({"images": np.zeros((4, 3, 8, 8), np.uint8), "labels": [0] * 4}, "transpose.0, 2, 3, 1"),
        ({"images": random_images(4, 8, 8, 1)}, "no array 'labels', only images"),
        ({"images": random_images(4, 8, 8, 1), "labels": [0] * 3}, "4 images but 3 labels"),
        ({"images": random_images(4, 8, 8, 1), "labels": [0] * 4, "clients": [1]}, "but 1 clients"),
        ({"images": random_images(4, 8, 8, 1), "labels": np.array([None] * 4)}, "plain arrays"),
        (
            {"images": random_images(1, 8, 8, 1), "labels": ["fox"], "classes": ["cat"]},
            "mine.npz: the label 'fox' is neither .* from 0 = cat to 0 = cat",
        ),
        (
            {
                "x_train": random_images(4, 8, 8, 1), "y_train": [0] * 4,
                "x_test": random_images(4, 9, 9, 1), "y_test": [0] * 4,
            },
            "differ in shape",
        ),
    ],
)  # fmt: skip
def test_npz_mistakes(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(UserError, match=message):
        named(tmp_path / "mine.npz")


def npz_member(shape, content, descr="|u1"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + content


@pytest.mark.parametrize(
    ("shape", "content"), [((10**12, 8, 8), b"\0" * 64), ((1, 8, 8), b"\0" * 10_000), ((-1,), b"")]
)
def test_an_array_must_have_the_size_that_it_claims(tmp_path, shape, content):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("images.npy", npz_member(shape, content))
        archive.writestr("labels.npy", npz_member((1,), b"\0"))
    with pytest.raises(UserError, match=r"says that it has|negative"):
        named(tmp_path / "x.npz")


def test_arrays_that_would_fill_the_memory_are_refused_before_they_are_unpacked(
    tmp_path, monkeypatch
):
    np.savez_compressed(tmp_path / "x.npz", images=np.zeros((40, 500, 500), np.uint8), labels=[0])
    assert (tmp_path / "x.npz").stat().st_size < 20_000
    monkeypatch.setattr("calibre.data.formats.npz.MOST_BYTES", 5_000_000)
    monkeypatch.setattr("calibre.data.formats.npz._array", None)  # nothing is unpacked
    with pytest.raises(UserError, match=r"unpacks to 0\.0 GB, which this machine cannot hold"):
        named(tmp_path / "x.npz")


def test_other_arrays_of_the_file_are_not_read(tmp_path):
    images = random_images(10, 4, 4, 1)
    objects = np.array([{}, []], object)
    np.savez(tmp_path / "x.npz", images=images, labels=[0, 1] * 5, notes=objects)
    assert len(named(tmp_path / "x.npz").labels) == 10


@pytest.mark.parametrize("more", [{}, {"unlabelled": random_images(4, 8, 8, 1)}])
@pytest.mark.parametrize("two", [True, False])
def test_arrays_without_an_image_to_train_on(tmp_path, two, more):
    none, some = (random_images(count, 8, 8, 1) for count in (0, 4))
    arrays = {"images": none, "labels": np.zeros(0, int)}
    if two:
        arrays = {
            "x_train": none, "y_train": np.zeros(0, int), "x_test": some, "y_test": [0, 1, 0, 1],
        }  # fmt: skip
    np.savez(tmp_path / "mine.npz", **arrays, **more)
    for ask in (load, facts):
        with pytest.raises(UserError, match=r"mine\.npz holds no images to train on"):
            ask(DataSettings(source=str(tmp_path / "mine.npz")))


def test_npz_that_is_none(tmp_path):
    (tmp_path / "mine.npz").write_text("hello")
    with pytest.raises(UserError, match=r"mine\.npz cannot be read"):
        named(tmp_path / "mine.npz")


# --- folders of images


def put(path: Path, image, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image.squeeze()).save(path, **options)


def test_folder_with_a_sub_folder_per_class(tmp_path):
    place = tmp_path / "pets"
    images = random_images(10, 5, 7, 3)
    for i, image in enumerate(images):
        put(place / ("cat" if i < 5 else "dog") / f"{i}.png", image)
    put(place / ".thumbnails" / "x.png", images[0])
    (place / "cat" / "._0.png").write_text("left by a Mac")
    (place / "notes.txt").write_text("no image")
    pool = named(place)
    assert (pool.name, pool.classes, pool.shape) == ("pets", ("cat", "dog"), (5, 7, 3))
    assert (len(pool.train), len(pool.test), pool.owners) == (8, 2, None)
    assert sorted(labels_of(pool, pool.test)) == [0, 1]
    expected = sorted((image.tobytes(), int(i >= 5)) for i, image in enumerate(images))
    assert (
        sorted((x.tobytes(), y) for x, y in zip(pool.images, pool.labels, strict=True)) == expected
    )


def test_folder_with_train_test_and_clients(tmp_path):
    images = random_images(4, 4, 4, 1)
    put(tmp_path / "x/train/anna/cat/1.png", images[0])
    put(tmp_path / "x/train/ben/dog/1.png", images[1])
    put(tmp_path / "x/test/anna/dog/1.png", images[2])
    put(tmp_path / "x/test/carl/eel/1.JPG", images[3], quality=100)
    pool = named(tmp_path / "x")
    assert (pool.train, pool.test, pool.classes) == (range(2), range(2, 4), ("cat", "dog", "eel"))
    assert pool.labels.tolist() == [0, 1, 1, 2]
    assert [pool.owner_names[i] for i in pool.owners] == ["anna", "ben", "anna", "carl"]
    np.testing.assert_array_equal(pool.images[:3], images[:3])


def test_a_class_may_be_called_train(tmp_path):
    for name in ("car", "train"):
        for i in range(5):
            put(tmp_path / f"x/{name}/{i}.png", random_images(1, 4, 4, 1, i))
    assert named(tmp_path / "x").classes == ("car", "train")


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ([(8, 8), (8, 9), (8, 8)], 8),
        ([(31, 99), (99, 35), (40, 40)], 32),  # the median shorter side, down to a multiple of 8
        ([(100, 200), (300, 150), (400, 400)], 64),
    ],
)
def test_unlike_sizes_are_brought_to_one(tmp_path, sizes, chosen):
    for i, (width, height) in enumerate(sizes):
        put(tmp_path / f"x/cat/{i}.png", np.full((height, width, 3), 50 + i, np.uint8))
    pool = named(tmp_path / "x", test_fraction=0.34)
    assert pool.shape == (chosen, chosen, 3)
    assert sorted(pool.images[:, 0, 0, 0].tolist()) == [50, 51, 52]
    (note,) = pool.report["notes"]
    assert f"brought to {chosen} x {chosen}; data.size" in note
    wanted = named(tmp_path / "x", test_fraction=0.34, size=6)
    assert (wanted.shape, wanted.report["notes"]) == ((6, 6, 3), [])


def test_one_stray_size_among_many_is_brought_to_theirs(tmp_path, monkeypatch):
    monkeypatch.setattr("calibre.data.intake.SAMPLE", 5)
    for i in range(20):
        put(tmp_path / f"x/cat/{i:02}.png", np.full((8, 6, 3), i, np.uint8))
    put(tmp_path / "x/cat/03.png", np.full((30, 30, 3), 3, np.uint8))
    pool = named(tmp_path / "x")
    assert pool.shape == (8, 6, 3)
    assert sorted(pool.images[:, 0, 0, 0].tolist()) == list(range(20))
    assert "brought to 6 x 8" in pool.report["notes"][0]


def test_resizing_is_antialiased(tmp_path):
    stripes = np.zeros((5, 64, 64, 1), np.uint8)
    stripes[:, ::2] = 255  # finer than the small image can show: gray, not black or white
    for i in range(5):
        stripes[i, 16 * (i % 4), :8] = i  # no two are the same
        put(tmp_path / f"x/a/{i}.png", stripes[i])
    np.savez(tmp_path / "x.npz", images=stripes, labels=[0] * 5)
    for source in ("x", "x.npz"):
        small = named(tmp_path / source, size=8).images
        assert small.shape == (5, 8, 8, 1)
        assert abs(small[:, 1:-1, 2:].astype(int) - 127).max() < 10


def test_gray_and_colour_mixed_become_colour(tmp_path):
    gray, colour = random_images(5, 4, 4, 1), random_images(5, 4, 4, 3)
    for i in range(5):
        put(tmp_path / f"x/colour/{i}.png", colour[i])
        put(tmp_path / f"x/gray/{i}.png", gray[i])
    pool = named(tmp_path / "x")
    got = {image.tobytes() for image in pool.images}
    assert got == {x.tobytes() for x in [*colour, *gray.repeat(3, axis=-1)]}


@pytest.mark.parametrize("format", ["jpg", "png"])
def test_exif_orientation_is_applied(tmp_path, format):
    upright = np.zeros((16, 32), np.uint8)
    upright[:, :16] = 255  # bright on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn me by 90 degrees clockwise to look right"
    for i in range(5):
        upright[:8, 8] = 220 + 7 * i  # no two are the same
        put(tmp_path / f"x/a/{i}.{format}", upright)
        upright[8:, 8] = 220 + 7 * i
        put(tmp_path / f"x/b/{i}.{format}", np.rot90(upright), exif=exif)
    pool = named(tmp_path / "x")
    assert pool.report["converted"] == {"turned upright": 5}
    assert pool.shape == (16, 32, 1)
    assert (pool.images[:, :, :12] > 200).all()
    assert (pool.images[:, :, 20:] < 50).all()


@pytest.mark.parametrize(
    "content", [b"", b"not an image", encoded(random_images(1, 64, 64, 3)[0])[:-9000]]
)
def test_an_undecodable_file_is_named(tmp_path, content):
    for i in range(5):
        put(tmp_path / f"x/a/{i}.png", random_images(1, 64, 64, 3, i))
    (tmp_path / "x/a/3.png").write_bytes(content)
    with pytest.raises(UserError, match=r"x/a/3\.png (cannot|is no).* 1 of 5 images"):
        named(tmp_path / "x")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "holds no images"),
        (["1.png"], r"1\.png is not where"),
        (["a/1.png", "b/c/1.png"], r"b/c/1\.png is not where"),
        (["a/b/c/1.png"], r"a/b/c/1\.png is not where"),
        (["test/a/1.png"], r"none in train/"),
    ],
)
def test_folders_that_make_no_sense(tmp_path, files, message):
    (tmp_path / "x").mkdir()
    for file in files:
        put(tmp_path / "x" / file, random_images(1, 4, 4, 1))
    with pytest.raises(UserError, match=message):
        named(tmp_path / "x")


# --- parquet


def test_parquet_with_binary_images_and_clients(tmp_path):
    images = random_images(10, 4, 4, 3)
    write_parquet(
        tmp_path / "mine.parquet",
        picture=[encoded(image) for image in images],
        kind=["eel", "cat"] * 5,
        hospital=list("abcde") * 2,
        note=["x"] * 10,
    )
    pool = named(tmp_path / "mine.parquet", label_column="kind", client_column="hospital")
    assert (pool.classes, pool.owner_names) == (("cat", "eel"), tuple("abcde"))
    rows = {image.tobytes(): i for i, image in enumerate(images)}
    for image, label, owner in zip(pool.images, pool.labels, pool.owners, strict=True):
        row = rows[image.tobytes()]
        assert (label, owner) == (1 - row % 2, row % 5)


def test_a_folder_of_parquet_files_with_paths(tmp_path):
    images = random_images(6, 4, 4, 3)
    for i, image in enumerate(images):
        put(tmp_path / f"x/pictures/{i}.png", image)
    for name, rows in (("train-0", [0, 1]), ("train-1", [2, 3]), ("test-0", [4, 5])):
        paths = [f"pictures/{i}.png" for i in rows]
        write_parquet(tmp_path / f"x/{name}.parquet", image=paths, label=[i % 3 for i in rows])
    pool = named(tmp_path / "x")
    np.testing.assert_array_equal(pool.images, images)
    assert pool.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert (pool.train, pool.test) == (range(4), range(4, 6))


def test_class_names_that_hugging_face_wrote(tmp_path):
    features = {
        "info": {"features": {"label": {"names": ["cat", "dog", "eel"], "_type": "ClassLabel"}}}
    }
    table = pa.table({"image": as_structs(random_images(10, 4, 4, 1)), "label": [0, 2] * 5})
    table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, tmp_path / "mine.parquet")
    pool = named(tmp_path / "mine.parquet")
    assert pool.classes == ("cat", "dog", "eel")
    assert set(pool.labels) == {0, 2}


PNG = encoded(random_images(1, 4, 4, 1)[0])
NEITHER = {"bytes": None, "path": None}


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"a": [PNG], "b": [PNG], "label": [0]}, {}, "which column holds the image.* one of a, b"),
        ({"image": [PNG], "x": [0], "y": [0]}, {}, "which column holds the label.* one of x, y"),
        (
            {"image": [PNG], "label": [0]},
            {"client_column": "who"},
            "client_column = 'who'.*only image, label",
        ),
        (
            {"image": 4 * [PNG] + [None], "label": 5 * [0]},
            {},
            "row 4 has nothing in column 'image'",
        ),
        (
            {"image": 4 * [PNG] + [b"junk"], "label": 5 * [0]},
            {},
            r"mine\.parquet row 4 is no image",
        ),
        (
            {"image": 5 * ["no.png"], "label": 5 * [0]},
            {},
            r"none of the 5 images can be read: .*row 0: no\.png is not there: no such file",
        ),
        ({"image": 5 * [NEITHER], "label": 5 * [0]}, {}, "row 0 has neither image bytes nor"),
        (
            {"image": 5 * [PNG], "label": 5 * [0], "age": 5 * [7]},
            {"image_column": "age"},
            "row 0 has int in column 'age': an image is bytes or the path",
        ),
    ],
)
def test_parquet_mistakes(tmp_path, columns, settings, message):
    if columns.get("image") == 5 * [NEITHER]:
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns = columns | {"image": pa.array(columns["image"], kind)}
    write_parquet(tmp_path / "mine.parquet", **columns)
    with pytest.raises(UserError, match=message):
        named(tmp_path / "mine.parquet", **settings)


def test_parquet_files_of_unknown_part(tmp_path):
    for name in ("train", "validation"):
        write_parquet(tmp_path / f"x/{name}.parquet", image=[PNG], label=[0])
    with pytest.raises(UserError, match=r"validation\.parquet is neither train"):
        named(tmp_path / "x")


def test_a_file_that_is_no_parquet(tmp_path):
    (tmp_path / "mine.parquet").write_text("hello")
    with pytest.raises(UserError, match=r"mine\.parquet cannot be read as a parquet file"):
        named(tmp_path / "mine.parquet")


# --- names and places


@pytest.mark.parametrize(
    "name", [name for name in KNOWN if name not in ("digits", "fashion-mnist")]
)
def test_an_absent_data_set_says_where_we_looked_and_how_to_get_it(root, name):
    with pytest.raises(UserError, match=f"{root}.*calibre-fl data download {name}"):
        named(name)


def test_an_unknown_name_is_no_folder_before_it_is_anything_else():
    said = r"'fashoin': there is no such folder or file, .*; did you mean 'fashion-mnist'"
    with pytest.raises(UserError, match=said):
        named("fashoin")


@pytest.mark.parametrize("source", ["~nobody-here/x", "x" * 5000, "a\0b", "\udcff"])
def test_names_that_no_file_can_have(source):
    with pytest.raises(UserError, match="there is no such folder or file"):
        named(source)


def test_a_module_in_the_current_folder_can_be_named(tmp_path, monkeypatch):
    """In a process of its own, whose path does not have that folder."""
    (tmp_path / "my_images.py").write_text(
        "import numpy as np\n"
        "def make():\n"
        "    images = np.arange(10, dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)\n"
        "    return {'images': images, 'labels': [0, 1] * 5}\n"
        "def fail():\n"
        "    return 1 / 0\n"
    )
    (tmp_path / "numpy.py").write_text("raise RuntimeError('not the library')\n")
    program = (
        "from calibre.data.sources import load\nfrom calibre.sections import DataSettings\n"
        "print(len(load(DataSettings(source='my_images:make')).labels))\n"
        "try:\n    load(DataSettings(source='my_images:fail'))\n"
        "except ValueError as error:\n    print(error)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert not done.stderr
    count, failure = done.stdout.splitlines()
    assert count == "10"
    assert failure == "data.source = 'my_images:fail' fails: ZeroDivisionError: division by zero"


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "data.tar").write_text("1,2")
    with pytest.raises(UserError, match=r"must be an \.npz, a \.parquet or a \.csv"):
        named(tmp_path / "data.tar")


def test_root_comes_before_the_environment_and_the_environment_before_the_cache(
    tmp_path, monkeypatch
):
    images = random_images(2, 28, 28, 1)[..., 0]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    places = {
        "root": tmp_path / "root",
        "env": tmp_path / "data",
        "xdg": tmp_path / "xdg/calibre/data",
    }
    for label, place in enumerate(places.values()):
        write_idx(place / "mnist", (images, [label, label]), (images, [label, label]))
    assert set(named("mnist", root=places["root"]).labels) == {0}
    assert set(named("mnist").labels) == {1}
    monkeypatch.delenv("CALIBRE_DATA")
    assert set(named("mnist").labels) == {2}


def test_the_registry_names_every_known_data_set():
    assert set(DATA_SETS) == set(KNOWN)


def test_describe_says_what_is_here(root):
    images = random_images(2, 28, 28, 1)[..., 0]
    write_idx(root / "mnist", (images, [0, 1]), (images, [0, 1]))
    rows = {row.name: row for row in describe()}
    assert list(rows) == list(KNOWN)
    assert (rows["mnist"].found, rows["mnist"].get) == (root / "mnist", "")
    assert rows["digits"].found is not None
    assert rows["stl10"].found is None
    assert rows["stl10"].get == "calibre-fl data download stl10"
    assert rows["stl10"].known.shape == (96, 96, 3)
    assert rows["stl10"].known.unlabelled == 100_000


def test_listing_imports_nothing_slow():
    code = (
        "import sys; from calibre.data import download, sources; sources.describe()\n"
        "print([m for m in ('torch', 'pyarrow', 'sklearn') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_progress_counts_images():
    seen = []
    load(DataSettings(source="digits"), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (1797, 1797)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
