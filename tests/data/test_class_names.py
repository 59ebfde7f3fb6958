"""Names that people read as one, and names that are none."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from calibre.data.class_names import odd_names
from calibre.data.formats.folder import listed_images
from calibre.data.sources import load, read
from calibre.sections import DataSettings

COMPOSED, APART = "gr\u00fcn", "gru\u0308n"  # one letter; a letter and two dots


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "pools"))
    (tmp_path / "x").mkdir()
    return tmp_path / "x"


def shade(i):
    return Image.fromarray(np.full((4, 4), i, np.uint8))


def in_folders(place, rows):
    for i, (client, label) in enumerate(rows):
        folder = place / client / label
        folder.mkdir(parents=True, exist_ok=True)
        shade(i).save(folder / f"{i}.png")
    return place


def in_csv(place, rows):
    lines = ["path,label,client"]
    for i, (client, label) in enumerate(rows):
        shade(i).save(place / f"{i}.png")
        lines.append(f"{i}.png,{label},{client}")
    (place / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    return place / "t.csv"


def in_parquet(place, rows):
    in_csv(place, rows)
    clients, labels = zip(*rows, strict=True)
    images = [(place / f"{i}.png").read_bytes() for i in range(len(rows))]
    columns = {"image": images, "label": labels, "client": clients}
    pq.write_table(pa.table({name: pa.array(list(c)) for name, c in columns.items()}),
                   place / "t.parquet")  # fmt: skip
    return place / "t.parquet"


def in_npz(place, rows):
    clients, labels = zip(*rows, strict=True)
    images = np.stack([np.asarray(shade(i)) for i in range(len(rows))])
    np.savez(place / "t.npz", images=images, labels=labels, clients=clients)
    return place / "t.npz"


@pytest.mark.parametrize("write", [in_folders, in_csv, in_parquet, in_npz])
def test_two_ways_to_write_a_letter_are_one_name(place, write):
    rows = [(client, label) for client in (COMPOSED, APART) for label in (COMPOSED, APART, "rot")]
    pool = load(DataSettings(source=str(write(place, 2 * rows))))
    assert (pool.classes, pool.owner_names) == ((COMPOSED, "rot"), (COMPOSED,))
    numbers = [0 if label != "rot" else 1 for _, label in 2 * rows]
    found = dict(zip(pool.images[:, 0, 0, 0].tolist(), pool.labels.tolist(), strict=True))
    assert found == dict(enumerate(numbers))


def test_labels_in_a_file_and_named_classes_too(place):
    in_folders(place, [("", COMPOSED), ("", "rot"), ("", "unlabelled")])
    (place / "unlabelled" / "labels.csv").write_text(f"path,label\n2.png,{APART}\n")
    assert read(DataSettings(source=str(place))).classes == (COMPOSED, "rot")
    assert {image.label for image in listed_images(place)[0]} == {COMPOSED, "rot"}
    np.savez(place / "t.npz", images=np.zeros((3, 4, 4), np.uint8), classes=["rot", APART],
             labels=[COMPOSED, APART, "rot"])  # fmt: skip
    raw = read(DataSettings(source=str(place / "t.npz")))
    assert (raw.classes, raw.train.labels.tolist()) == (("rot", COMPOSED), [1, 1, 0])


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (["cat", "dog", "0", "10", "100", "a1", "b1"], []),
        (["Cat", "cat", "dog"], ["'Cat' and 'cat';"]),
        (["01", "1", "10"], ["'01' and '1';"]),
        (["grade-02", "Grade-2", "00", "0"], ["'grade-02' and 'Grade-2' (and 1 more);"]),
        (["cat", "nan"], ["is called 'nan'"]),
        (["-1", "0", "None"], ["is called '-1'", "is called 'None'"]),
        (["NA", "NULL", "nano"], ["is called 'NA'", "is called 'NULL'"]),
    ],
)
def test_names_that_may_be_mistakes_are_told(classes, said):
    found = list(odd_names(classes))
    assert len(found) == len(said)
    assert all(part in note for part, note in zip(said, found, strict=True))


def test_the_notes_come_with_the_data(place):
    rows = [("a", name) for name in ("Cat", "cat", "nan")] * 3
    pool = load(DataSettings(source=str(in_csv(place, rows))))
    assert pool.classes == ("Cat", "cat", "nan")
    notes = json.dumps(pool.report["notes"])
    assert "'Cat' and 'cat'" in notes
    assert "'nan'" in notes
