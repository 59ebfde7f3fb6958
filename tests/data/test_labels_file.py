"""labels.csv: what a person labelled since, for every way in which data is read."""

import csv
import io
import os

import numpy as np
import pytest
from PIL import Image

from calibre.data import labels_file
from calibre.data.labels_file import Label
from calibre.data.sources import left_out, load
from calibre.errors import UserError
from calibre.sections import DataSettings

TIME = "2025-11-03T14:05:09Z"
ODD_NAMES = [
    "a,b.png",
    'q"q.png',
    "line\nbreak.png",
    " space .png",
    "ünï.png",
    "x;y\t.png",
    "'.png",
]


@pytest.fixture(autouse=True)
def pools(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "pools"))


def put(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(file, "PNG")
    path.write_bytes(file.getvalue())


def pool_of(place, **settings):
    return load(DataSettings(source=str(place), **settings))


def held(pool, part):
    """Shade, class and owner of each image."""
    names = [*pool.classes, None]
    owners = pool.owners if pool.owners is not None else [0] * len(pool.labels)
    return {
        (int(pool.images[i, 0, 0, 0]), names[pool.labels[i]],
         pool.owner_names[owners[i]] if pool.owner_names else None)
        for i in part
    }  # fmt: skip


# --- the file


def test_what_was_written_is_read(tmp_path):
    rows = [Label(name, f"class {name}", TIME) for name in ODD_NAMES]
    rows.append(Label("unsure.png", "", TIME))
    labels_file.write(tmp_path / "labels.csv", rows)
    assert labels_file.read(tmp_path / "labels.csv") == rows
    with (tmp_path / "labels.csv").open(encoding="utf-8", newline="") as file:
        assert [*csv.reader(file)] == [["path", "label", "time"], *map(list, rows)]


def test_no_file_and_an_empty_one_have_no_rows(tmp_path):
    assert labels_file.read(tmp_path / "labels.csv") == []
    for content in ("", "path,label,time\n", "\ufeffPath, Label\r\n"):
        (tmp_path / "labels.csv").write_text(content, encoding="utf-8")
        assert labels_file.read(tmp_path / "labels.csv") == []


def test_columns_in_another_order_and_without_time(tmp_path):
    (tmp_path / "labels.csv").write_text("label,by,path\n cat ,me,1.png\n\n,,\n")
    assert labels_file.read(tmp_path / "labels.csv") == [("1.png", "cat", "")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1.png,cat", "row 3 has 2 columns, not 3"),
        ("1.png,cat,now,more", "row 3 has 4 columns, not 3"),
        (",cat,now", "row 3 has no path"),
        ("/etc/passwd,cat,now", "row 3 has the path '/etc/passwd', which leads out"),
        ("a/../../x.png,cat,now", "which leads out"),
        ("1.png," + "x" * 201 + ",now", "label of 201 characters"),
        ('1.png,"cat,now', "is no table"),
        ("1.png," + "x" * 200_000 + ",now", "field larger"),
    ],
)
def test_odd_rows_are_named(tmp_path, line, why):
    path = tmp_path / "labels.csv"
    path.write_text(f"path,label,time\n0.png,dog,now\n{line}\n")
    with pytest.raises(UserError, match=why):
        labels_file.read(path)


def test_files_that_are_no_labels(tmp_path):
    path = tmp_path / "labels.csv"
    for content, why in ((b"id,breed\n1,pug\n", "columns path, label"), (b"\xff\xfe", "UTF-8")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=why):
            labels_file.read(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="a pipe or a device"):
        labels_file.read(path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "labels.csv"
    labels_file.write(path, [("1.png", "cat", TIME)])
    before = path.read_bytes()
    with pytest.raises(UserError, match="leads out of its folder"):
        labels_file.write(path, [("../1.png", "cat", TIME)])
    with pytest.raises(UserError, match="not UTF-8"):
        labels_file.write(path, [("\udcff.png", "cat", TIME)])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        labels_file.write(path, [("2.png", "dog", TIME)])
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["labels.csv"]


# --- in folders


def test_labels_of_a_client_s_unlabelled_folder(tmp_path):
    for i in range(8):
        put(tmp_path / f"x/anna/cat/{i}.png", i)
        put(tmp_path / f"x/ben/dog/{i}.png", 10 + i)
    for i, name in enumerate(ODD_NAMES):
        put(tmp_path / "x/ben/unlabelled" / name, 100 + i)
    rows = [(name, "eel" if i % 2 else "cat", TIME) for i, name in enumerate(ODD_NAMES[:5])]
    labels_file.write(tmp_path / "x/ben/unlabelled/labels.csv", [*rows, (ODD_NAMES[5], "", TIME)])
    pool = pool_of(tmp_path / "x")
    assert pool.classes == ("cat", "dog", "eel")
    known = held(pool, [*pool.train, *pool.test])
    assert {row for row in known if row[0] >= 100} == {
        (100 + i, "eel" if i % 2 else "cat", "ben") for i in range(5)
    }
    assert held(pool, pool.unlabelled) == {(105, None, "ben"), (106, None, "ben")}
    assert pool.report["notes"] == ["images with a label from labels.csv: 5"]


@pytest.mark.parametrize("where", ["labels.csv", "anna/labels.csv", "anna/unlabelled/labels.csv"])
def test_the_file_may_lie_above_the_images(tmp_path, where):
    for i in range(6):
        put(tmp_path / f"x/anna/cat/{i}.png", i)
        put(tmp_path / f"x/anna/unlabelled/{i}.png", 50 + i)
    below = "anna/unlabelled/1.png"[len(os.path.dirname(where)) :].lstrip("/")
    labels_file.write(tmp_path / "x" / where, [(below, "dog", TIME)])
    pool = pool_of(tmp_path / "x")
    assert (51, "dog", "anna") in held(pool, [*pool.train, *pool.test])


def test_a_flat_folder_with_labels_and_clients_that_have_such(tmp_path):
    for i in range(12):
        put(tmp_path / f"flat/{i:02}.png", i)
        put(tmp_path / f"x/anna/{i:02}.png", i)
        put(tmp_path / f"x/ben/{i:02}.png", 50 + i)
    rows = [(f"{i:02}.png", "cat" if i % 2 else "dog", TIME) for i in range(10)]
    for place in ("flat", "x/anna", "x/ben"):
        labels_file.write(tmp_path / place / "labels.csv", rows)
    flat = pool_of(tmp_path / "flat")
    assert (flat.owners, flat.classes) == (None, ("cat", "dog"))
    assert held(flat, flat.unlabelled) == {(10, None, None), (11, None, None)}
    pool = pool_of(tmp_path / "x")
    assert pool.owner_names == ("anna", "ben")
    assert len(pool.train) + len(pool.test) == 20


def test_conflicts_unknown_files_and_odd_rows_are_said(tmp_path):
    for i in range(10):
        put(tmp_path / f"x/anna/cat/{i}.png", i)
        put(tmp_path / f"x/anna/unlabelled/{i}.png", 50 + i)
    (tmp_path / "x/anna/labels.csv").write_text(
        "path,label,time\n"
        "cat/3.png,dog,\n"  # its folder says otherwise
        "cat/4.png,cat,\n"
        "unlabelled/1.png,dog,\n"
        "unlabelled/1.png,eel,\n"  # the last word counts
        "gone.png,dog,\n"
        "odd row\n"
    )
    pool = pool_of(tmp_path / "x")
    known = held(pool, [*pool.train, *pool.test])
    assert {row[:2] for row in known if row[0] in (3, 4, 51)} == {
        (3, "cat"), (4, "cat"), (51, "eel"),
    }  # fmt: skip
    first, against, unused = pool.report["notes"]
    assert first == "images with a label from labels.csv: 1"
    assert "otherwise than their folder: 1;" in against
    assert "cat/3.png stays 'cat'," in against
    assert "row 2 calls it 'dog'" in against
    assert "not used: 2;" in unused
    listed = left_out(DataSettings(source=str(tmp_path / "x")))
    assert [name.rsplit("/", 1)[1] for name, _ in listed] == [
        "labels.csv row 7",
        "labels.csv row 6",
    ]
    assert "gone.png, which is no image here" in listed[1][1]


def test_a_labels_file_of_another_make_is_left_alone(tmp_path):
    for i in range(6):
        put(tmp_path / f"x/cat/{i}.png", i)
    (tmp_path / "x/labels.csv").write_text("id,breed\n1,pug\n")
    (tmp_path / "x/cat/labels.csv").write_text("id,breed\n1,pug\n")
    pool = pool_of(tmp_path / "x")
    assert pool.classes == ("cat",)
    assert "does not have the columns path, label, time" in pool.report["notes"][0]


def test_a_new_label_is_noticed(tmp_path):
    """The cache is of other files then."""
    for i in range(6):
        put(tmp_path / f"x/cat/{i}.png", i)
        put(tmp_path / f"x/unlabelled/{i}.png", 50 + i)
    assert len(pool_of(tmp_path / "x").unlabelled) == 6
    labels_file.write(tmp_path / "x/unlabelled/labels.csv", [("1.png", "cat", TIME)])
    assert len(pool_of(tmp_path / "x").unlabelled) == 5


def test_a_labelled_test_image_is_one(tmp_path):
    for i in range(3):
        put(tmp_path / f"x/train/cat/{i}.png", i)
        put(tmp_path / f"x/test/unlabelled/{i}.png", 50 + i)
    labels_file.write(
        tmp_path / "x/test/unlabelled/labels.csv", [(f"{i}.png", "cat", TIME) for i in range(3)]
    )
    pool = pool_of(tmp_path / "x")
    assert {row[0] for row in held(pool, pool.test)} == {50, 51, 52}


def test_a_newcomer_and_a_site_take_it_too(tmp_path):
    from calibre.deploy.site_data import SiteSettings, own_data
    from calibre.personal.arrival import read_images

    for i in range(12):
        put(tmp_path / f"x/{i:02}.png", i)
    rows = [(f"{i:02}.png", "cat" if i % 2 else "dog", TIME) for i in range(10)]
    labels_file.write(tmp_path / "x/labels.csv", rows)
    arrived = read_images(tmp_path / "x", (4, 4, 1))
    assert (arrived.classes, len(arrived.train.labels), len(arrived.unlabelled)) == (
        ("cat", "dog"),
        10,
        2,
    )
    assert arrived.given == 10
    assert arrived.notes == ()  # nothing to warn of
    site = SiteSettings(name="a", data=DataSettings(source=str(tmp_path / "x")))
    data = own_data(site)
    assert (len(data.labelled) + len(data.test), len(data.unlabelled)) == (10, 2)
