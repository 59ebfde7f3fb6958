"""Parquet files with images inside: read as a stream, in any cut of files and row groups."""

import io
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from calibre.data.formats import decoders, parquet_file
from calibre.data.sources import facts, load
from calibre.errors import UserError
from calibre.sections import DataSettings


@pytest.fixture(autouse=True)
def pools(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "pools"))


def encoded(pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def shade(number: int) -> bytes:
    """An image whose pixels are its number."""
    return encoded(np.full((4, 4), number, np.uint8))


def write(path, images, labels, row_group=None, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"image": [{"bytes": image, "path": None} for image in images], "label": labels}
    pq.write_table(pa.table(columns | more), path, row_group_size=row_group)


def pool_of(source):
    return load(DataSettings(source=str(source)))


def rows_of(pool, part):
    """Shade and label of each image, in the order of the pool."""
    cut = slice(part.start, part.stop)
    return [*zip(pool.images[cut, 0, 0, 0].tolist(), pool.labels[cut].tolist(), strict=True)]


@pytest.mark.parametrize("row_group", [None, 3, 1])
@pytest.mark.parametrize("batch", [512, 2])
def test_every_image_keeps_its_label_and_its_place(tmp_path, monkeypatch, row_group, batch):
    """Two training files and a test file, a label missing here and there."""
    monkeypatch.setattr(parquet_file, "BATCH", batch)
    labels = [None if i % 7 == 4 else i % 3 for i in range(30)]
    for name, rows in (("train-0", range(11)), ("train-1", range(11, 22)), ("test", range(22, 30))):
        kept = [i for i in rows if name != "test" or labels[i] is not None]
        write(
            tmp_path / f"x/{name}.parquet", map(shade, kept), [labels[i] for i in kept], row_group
        )
    pool = pool_of(tmp_path / "x")
    known = [(i, label) for i, label in enumerate(labels) if label is not None]
    assert rows_of(pool, pool.train) == [row for row in known if row[0] < 22]
    assert rows_of(pool, pool.test) == [row for row in known if row[0] >= 22]
    assert rows_of(pool, pool.unlabelled) == [(i, -1) for i in (4, 11, 18)]


def test_a_test_part_is_split_off_as_from_a_folder(tmp_path):
    """Same images, labels and order: the same bits, however they are stored."""
    for i in range(40):
        place = tmp_path / f"folder/{'ab'[i % 2]}/{'xy'[i // 2 % 2]}/{i:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(shade(i))
    files = sorted((tmp_path / "folder").rglob("*.png"))
    write(
        tmp_path / "folder.parquet",
        [file.read_bytes() for file in files],
        [file.parent.name for file in files],
        row_group=7,
        client=[file.parents[1].name for file in files],
    )
    one, other = pool_of(tmp_path / "folder"), pool_of(tmp_path / "folder.parquet")
    assert len(one.test) == 8
    assert one.fingerprint == other.fingerprint
    np.testing.assert_array_equal(one.images, other.images)


def test_images_are_not_all_in_memory_at_once(tmp_path, monkeypatch):
    """Of a file that is one row group, while each block is decoded: Python's memory and Arrow's."""
    noise = np.random.default_rng(0).integers(0, 256, (240, 64, 64, 3), dtype=np.uint8)
    table = pa.table({"image": [*map(encoded, noise)], "label": [0, 1] * 120})
    pq.write_table(
        table, tmp_path / "x.parquet", use_dictionary=False, data_page_size=50_000,
        write_batch_size=4,
    )  # fmt: skip
    del table
    write(tmp_path / "y.parquet", map(shade, range(10)), [0, 1] * 5)
    pool_of(tmp_path / "y.parquet")  # what is imported late, is
    whole = (tmp_path / "x.parquet").stat().st_size
    assert whole > 2_900_000
    for module, name, value in (
        (parquet_file, "BATCH_BYTES", 100_000), (parquet_file, "BUFFER", 10_000),
        (decoders, "BLOCK_BYTES", 100_000), (decoders, "WORTH_PROCESSES", 0.01),
        (decoders, "usable_cores", lambda: 1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    held, given = [], []
    decode_block = decoders.decode_block

    def watched(images, shape):
        held.append(tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes())
        given.append(sum(len(image.content) for image in images))
        return decode_block(images, shape)

    monkeypatch.setattr(decoders, "decode_block", watched)
    tracemalloc.start()
    try:
        before = pa.total_allocated_bytes()
        pool = pool_of(tmp_path / "x.parquet")
    finally:
        tracemalloc.stop()
    assert len(pool.labels) == 240
    assert max(given) <= 100_000
    assert max(held) - before < whole / 3


def test_what_is_wrong_is_found_in_any_row_group(tmp_path):
    images = [shade(i) for i in range(30)]
    images[17] = b"junk"
    write(tmp_path / "x.parquet", images, [0, 1] * 15, row_group=4)
    report = pool_of(tmp_path / "x.parquet").report
    ((name, why),) = report["unreadable"]["files"].items()
    assert name.endswith("x.parquet row 17")
    assert "no image" in why


def test_facts_come_from_few_rows(tmp_path):
    sizes = [(6, 8)] * 20 + [(10, 8)]
    images = [encoded(np.full(size, i, np.uint8)) for i, size in enumerate(sizes)]
    write(
        tmp_path / "x.parquet", images, [0, 1, 2] * 7, row_group=5, client=list("ab") * 10 + ["a"]
    )
    found = facts(DataSettings(source=str(tmp_path / "x.parquet")))
    assert found.table.sum(axis=1).tolist() == [11, 10]
    assert found.sizes == "from 8 x 6 to 8 x 10"
    assert found.channels == 1


def test_a_damaged_page_is_told(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    path = tmp_path / "x.parquet"
    write(path, map(encoded, noise), [0, 1] * 20)
    start = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 64] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.parquet: columns image cannot be read"):
        pool_of(path)


def repeated(path, value, count, label=None, codec="none"):
    """One value in many rows: the file has it once."""
    same = pa.array([0] * count, pa.int32())
    labels = pa.array([i % 2 for i in range(count)])
    if label is not None:
        labels = pa.DictionaryArray.from_arrays(same, pa.array([label]))
    images = pa.DictionaryArray.from_arrays(same, pa.array([value]))
    pq.write_table(
        pa.table({"image": images, "label": labels}), path, store_schema=False, compression=codec
    )


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_a_value_that_every_row_repeats_is_not_unpacked_for_all_of_them(tmp_path, codec):
    path = tmp_path / "x.parquet"
    repeated(path, bytes(8_000_000), 300, codec=codec)
    before, peak = pa.total_allocated_bytes(), 0
    for _, value in parquet_file.images_of(path, "image", np.arange(300)):
        assert len(value) == 8_000_000
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 2 * parquet_file.MOST_BATCH_BYTES  # all of them: 2,400 MB


def test_a_label_of_a_megabyte_in_every_row_is_refused(tmp_path):
    repeated(tmp_path / "x.parquet", shade(1), 3000, label="x" * 1_000_000)
    before = pa.total_allocated_bytes()
    with pytest.raises(UserError, match="a value has 1,000,000 bytes"):
        pool_of(tmp_path / "x.parquet")
    assert pa.total_allocated_bytes() - before < 10_000_000


def test_words_in_dictionaries_and_gaps_are_read(tmp_path):
    words = pa.array(["cat", None, "dog", "cat", "dog", "cat"] * 2).dictionary_encode()
    images = [shade(i) for i in range(12)]
    pq.write_table(pa.table({"image": images, "label": words}), tmp_path / "x.parquet")
    pool = pool_of(tmp_path / "x.parquet")
    names = [*pool.classes, None]
    found = {
        int(image[0, 0, 0]): names[label]
        for image, label in zip(pool.images, pool.labels, strict=True)
    }
    assert found == dict(enumerate(["cat", None, "dog", "cat", "dog", "cat"] * 2))


@pytest.mark.parametrize("label", [[[1]], [{"a": 1}], [b"a"], [1.5]])
def test_labels_that_are_none_are_named(tmp_path, label):
    table = pa.table({"image": [shade(i) for i in range(6)], "label": label * 6})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"whole numbers or (words|names)"):
        load(
            DataSettings(
                source=str(tmp_path / "x.parquet"), image_column="image", label_column="label"
            )
        )


def test_a_deeply_nested_column_is_refused(tmp_path):
    nested = pa.array([1] * 6)
    for _ in range(3000):
        nested = pa.StructArray.from_arrays([nested], ["a"])
    table = pa.table({"image": [shade(i) for i in range(6)], "label": [0, 1] * 3, "deep": nested})
    pq.write_table(table, tmp_path / "x.parquet", store_schema=False)
    with pytest.raises(UserError, match=r"x\.parquet cannot be read as a parquet file"):
        pool_of(tmp_path / "x.parquet")


def test_files_called_in_capitals_are_found(tmp_path):
    write(tmp_path / "x/TRAIN.PARQUET", map(shade, range(10)), [0, 1] * 5)
    assert len(pool_of(tmp_path / "x").labels) == 10
