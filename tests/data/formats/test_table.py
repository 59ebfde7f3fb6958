"""Tables of paths, labels and clients."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from calibre.data.sources import load
from calibre.errors import UserError
from calibre.sections import DataSettings


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Twelve images; the shade of each is its number."""
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "pools"))
    (tmp_path / "pictures").mkdir()
    for i in range(12):
        image = Image.fromarray(np.full((4, 4), i, np.uint8))
        image.save(tmp_path / "pictures" / f"{i}.png")
    return tmp_path


def pool_of(source, **settings):
    return load(DataSettings(source=str(source), **settings))


def table(pool):
    """Label, owner and part by shade."""
    parts = {i: part for part in ("train", "test", "unlabelled") for i in getattr(pool, part)}
    rows = {}
    for i, image in enumerate(pool.images[:, 0, 0, 0].tolist()):
        label = pool.classes[pool.labels[i]] if pool.labels[i] >= 0 else None
        owner = pool.owner_names[pool.owners[i]] if pool.owners is not None else None
        rows[image] = (label, owner, parts[i])
    return rows


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_csv_of_paths_labels_clients_and_parts(folder, separator, start):
    lines = [["path", "label", "client", "split"]]
    for i in range(12):
        label = "" if i in (3, 4) else ["cat", "dog, big"][i % 2]
        label = f'"{label}"' if "," in label else label
        lines.append([f"pictures/{i}.png", label, f"00{i % 3}", "test" if i > 8 else "train"])
    text = start + "\n".join(separator.join(line) for line in lines) + "\n\n"
    (folder / "mine.csv").write_text(text, encoding="utf-8")
    pool = pool_of(folder / "mine.csv")
    assert (pool.classes, pool.owner_names) == (("cat", "dog, big"), ("000", "001", "002"))
    assert table(pool) == {
        i: (
            None if i in (3, 4) else ["cat", "dog, big"][i % 2],
            f"00{i % 3}",
            "unlabelled" if i in (3, 4) else "test" if i > 8 else "train",
        )
        for i in range(12)
    }


def test_numbers_are_counted_as_numbers(folder):
    rows = "".join(f"pictures/{i}.png,{i % 6 * 5}\n" for i in range(12))
    (folder / "mine.csv").write_text("file,label\n" + rows)
    pool = pool_of(folder / "mine.csv")
    assert pool.classes == ("0", "5", "10", "15", "20", "25")
    assert pool.owners is None


def test_columns_of_any_name(folder):
    rows = "".join(f"{i % 2},pictures/{i}.png,h{i % 2}\n" for i in range(12))
    (folder / "mine.csv").write_text("finding,slide,hospital\n" + rows)
    pool = pool_of(
        folder / "mine.csv",
        image_column="slide", label_column="finding", client_column="hospital",
    )  # fmt: skip
    assert {i: row[:2] for i, row in table(pool).items()} == {
        i: (str(i % 2), f"h{i % 2}") for i in range(12)
    }


def test_a_changed_image_is_noticed(folder):
    rows = "".join(f"pictures/{i}.png,{i % 2}\n" for i in range(12))
    (folder / "mine.csv").write_text("path,label\n" + rows)
    assert 99 not in table(pool_of(folder / "mine.csv"))
    Image.fromarray(np.full((4, 4), 99, np.uint8)).save(folder / "pictures" / "3.png")
    assert 99 in table(pool_of(folder / "mine.csv"))


def test_a_path_that_leads_nowhere_is_left_out(folder):
    rows = "".join(f"pictures/{i}.png,{i % 2}\n" for i in range(12))
    (folder / "mine.csv").write_text("path,label\n" + rows + "pictures/13.png,1\n")
    pool = pool_of(folder / "mine.csv")
    ((name, why),) = pool.report["unreadable"]["files"].items()
    assert name.endswith("mine.csv row 14: pictures/13.png")
    assert "no such file" in why


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2", r"which column holds the image\? Set data.image_column to one of a, b"),
        ("path,x,y\n1,2,3", r"which column holds the label\? Set data.label_column to one of x, y"),
        ("path,label\n", "holds no training images with a label"),
        ("path,label\na.png,\n", "holds no training images with a label"),
        ("path,label\na.png\n", "row 2 has 1 columns, the first has 2"),
        ("path,path\na,b\n", "a name of its own"),
        ("path,label\n,cat\n", "row 2 has nothing in column 'path'"),
        ("path,label,client\na.png,cat,\n", "row 2 has nothing in column 'client'"),
        ("path,label,split\na.png,cat,val\n", "row 2 has 'val' in column 'split'.*train or test"),
        ("path,label,split\na.png,,test\n", "row 2 is a test image with nothing in .*'label'"),
        (b"path,label\n\xff\xfe.png,cat\n", "in UTF-8"),
    ],
)
def test_csv_mistakes(folder, text, message):
    content = text if isinstance(text, bytes) else text.encode()
    (folder / "mine.csv").write_bytes(content)
    with pytest.raises(UserError, match=rf"mine\.csv.*{message}"):
        pool_of(folder / "mine.csv")


def test_parquet_without_some_labels(folder):
    """As pandas writes whole numbers with gaps among them: floating-point, with NaN."""
    labels = [float(i % 3) if i != 5 else float("nan") for i in range(12)]
    clients = [f"c{i % 2}" for i in range(12)]
    paths = [f"pictures/{i}.png" for i in range(12)]
    columns = {"image": paths, "label": labels, "client": clients}
    pq.write_table(pa.table(columns), folder / "mine.parquet")
    pool = pool_of(folder / "mine.parquet")
    assert pool.classes == ("0", "1", "2")
    rows = table(pool)
    assert rows.pop(5) == (None, "c1", "unlabelled")
    assert {i: row[:2] for i, row in rows.items()} == {
        i: (str(i % 3), f"c{i % 2}") for i in range(12) if i != 5
    }


def test_the_numbers_of_rows_that_pandas_writes_are_no_column(folder):
    rows = [f"pictures/{i}.png,{'ab'[i % 2]},c{i // 6}" for i in range(12)]
    text = "\n".join(["path,label,client", *rows])
    (folder / "plain.csv").write_text(text)
    numbered = [f"{i},{row}" for i, row in enumerate(rows)]
    (folder / "mine.csv").write_text("\n".join([",path,label,client", *numbered]))
    plain, mine = (pool_of(folder / name) for name in ("plain.csv", "mine.csv"))
    assert (mine.classes, mine.owner_names) == (("a", "b"), ("c0", "c1"))
    assert table(mine) == table(plain)
    assert mine.fingerprint == plain.fingerprint


@pytest.mark.parametrize("first", ["1", "x", ""])
def test_another_column_without_a_name_is_a_mistake(folder, first):
    rows = [f"{first},pictures/{i}.png,{'ab'[i % 2]}" for i in range(4)]
    (folder / "mine.csv").write_text("\n".join([",path,label", *rows]))
    with pytest.raises(UserError, match="every column needs a name of its own"):
        pool_of(folder / "mine.csv")


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_table_says_what_it_needs(folder, text):
    (folder / "mine.csv").write_text(text)
    with pytest.raises(UserError, match=r"mine\.csv has no columns: it needs one .* called label"):
        pool_of(folder / "mine.csv")
    pq.write_table(pa.table({}), folder / "mine.parquet")
    with pytest.raises(UserError, match=r"mine\.parquet has no columns"):
        pool_of(folder / "mine.parquet")
