"""A pool is decoded once; what a kill, a race or a damaged disk leaves behind does no harm."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from calibre.data import cache
from calibre.data.sources import load
from calibre.errors import UserError
from calibre.sections import DataSettings


@pytest.fixture(autouse=True)
def pools(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "pools"))
    return tmp_path / "pools"


@pytest.fixture
def source(tmp_path):
    return write_source(tmp_path / "mine.npz")


def write_source(path: Path, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8),
        "y_train": np.arange(6) % 3,
        "clients_train": list("aabbcc"),
        "x_test": rng.integers(0, 256, (3, 4, 4, 3), dtype=np.uint8),
        "y_test": np.arange(3),
        "clients_test": list("abc"),
    }
    np.savez(path, **(arrays | changes))
    return path


def settings(source, **values):
    return DataSettings(source=str(source), **values)


def built(source, **values):
    """The pool, and whether it had to be decoded for that."""
    calls = []
    pool = load(settings(source, **values), progress=lambda done, total: calls.append(done))
    return pool, bool(calls)


def assert_same(one, other):
    np.testing.assert_array_equal(one.images, other.images)
    np.testing.assert_array_equal(one.labels, other.labels)
    np.testing.assert_array_equal(one.owners, other.owners)
    for field in ("name", "classes", "train", "test", "unlabelled", "fingerprint", "owner_names"):
        assert getattr(one, field) == getattr(other, field)


def test_the_second_load_maps_the_first(source, pools):
    first, decoded = built(source)
    second, decoded_again = built(source)
    assert decoded
    assert not decoded_again
    assert_same(first, second)
    assert isinstance(second.images, np.memmap)
    assert not second.images.flags.writeable
    (entry,) = pools.iterdir()
    assert {path.name for path in entry.iterdir()} == {
        "images.npy",
        "labels.npy",
        "left_out.csv",
        "owners.npy",
        "pool.json",
    }


def test_a_pool_without_owners(tmp_path):
    np.savez(
        tmp_path / "x.npz",
        images=np.arange(36, dtype=np.uint8).reshape(9, 2, 2),
        labels=np.zeros(9, int),
    )
    assert built(tmp_path / "x.npz")[0].owners is None
    assert built(tmp_path / "x.npz")[0].owners is None


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 255
    path.write_bytes(content)


def change(path, key, value):
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, json.loads(key): value}))


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: truncate(entry / "images.npy"),
        lambda entry: truncate(entry / "labels.npy"),
        lambda entry: (entry / "owners.npy").unlink(),
        lambda entry: truncate(entry / "pool.json"),
        lambda entry: (entry / "pool.json").unlink(),
        lambda entry: [path.unlink() for path in entry.iterdir()],
        lambda entry: (entry / "left_out.csv").unlink(),
        lambda entry: (entry / "pool.json").write_text("[" * 99_999),
        lambda entry: (entry / "pool.json").write_text('{"bytes": {}}'),
        lambda entry: (entry / "pool.json").write_text('{"bytes": 3}'),
        lambda entry: flip(entry / "images.npy", 3),
        lambda entry: flip(entry / "labels.npy", 40),
        lambda entry: change(entry / "pool.json", '"test"', [3, 4]),
    ],
)
def test_a_damaged_entry_is_built_anew(source, pools, damage):
    whole, _ = built(source)
    images = np.array(whole.images)
    (entry,) = pools.iterdir()
    damage(entry)
    repaired, decoded = built(source)
    assert decoded
    np.testing.assert_array_equal(repaired.images, images)
    assert repaired.fingerprint == whole.fingerprint
    assert not built(source)[1]
    assert list(pools.iterdir()) == [entry]


def test_changed_files_and_settings_have_entries_of_their_own(source):
    before, _ = built(source)
    resized, decoded = built(source, size=8)
    assert decoded
    assert resized.shape == (8, 8, 3)
    write_source(source, y_test=np.array([2, 2, 2]))
    after, decoded = built(source)
    assert decoded
    assert after.labels[-1] == before.labels[-1] == 2
    assert after.labels[-2] == 2 != before.labels[-2]


def test_touching_a_file_keeps_the_fingerprint(source):
    before, _ = built(source)
    os.utime(source, ns=(1, 1))
    after, decoded = built(source)
    assert decoded
    assert after.fingerprint == before.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"x_train": np.zeros((6, 4, 4, 3), np.uint8)},
        {"y_train": np.arange(6)[::-1] % 3},
        {"y_train": np.arange(6) % 3 + 1, "y_test": np.arange(3) + 1},  # other names, same indices
        {"clients_train": list("ababcc")},
    ],
)
def test_the_fingerprint_covers_all_content(source, change):
    before, _ = built(source)
    write_source(source, **change)
    assert built(source)[0].fingerprint != before.fingerprint


def test_the_fingerprint_covers_the_split(tmp_path):
    images, labels = np.arange(40, dtype=np.uint8).reshape(10, 2, 2), np.zeros(10, int)
    pools = []
    for end in (4, 5):
        path = tmp_path / f"{end}.npz"
        np.savez(
            path,
            x_train=images[:end], y_train=labels[:end], x_test=images[end:], y_test=labels[end:],
        )  # fmt: skip
        pools.append(built(path)[0])
    np.testing.assert_array_equal(pools[0].images, pools[1].images)
    assert pools[0].fingerprint != pools[1].fingerprint


def test_several_may_build_the_same_entry_at_once(source, pools):
    start, results = threading.Barrier(4), []

    def race():
        waited = []

        def wait_for_the_others(done, total):
            if not waited:
                waited.append(start.wait(timeout=60))

        results.append(load(settings(source), progress=wait_for_the_others))

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for pool in results[1:]:
        assert_same(results[0], pool)
    assert len(list(pools.iterdir())) == 1


def test_who_comes_second_by_a_moment_takes_no_sound_entry_away(source, pools, monkeypatch):
    """Between looking and renaming, another process has put its entry there."""
    first = load(settings(source))
    (entry,) = pools.iterdir()
    before = entry.stat().st_ino
    looked = []

    def read(folder):
        looked.append(folder)
        return None if len(looked) <= 2 else real(folder)  # as it was before the other came

    real = cache.read
    monkeypatch.setattr(cache, "read", read)
    assert_same(load(settings(source)), first)
    assert entry.stat().st_ino == before


def test_a_kill_leaves_nothing_that_is_taken_for_whole(source, pools):
    code = (
        "import os, signal, sys; from calibre.data.sources import load; "
        "from calibre.sections import DataSettings; "
        "load(DataSettings(source=sys.argv[1]), lambda *_: os.kill(os.getpid(), signal.SIGKILL))"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(source)])
    assert killed.returncode == -signal.SIGKILL
    (left,) = pools.iterdir()
    assert left.name.startswith(cache.UNFINISHED)
    assert built(source)[1]
    assert left.exists(), "it might belong to a process at work"

    long_ago = time.time() - 2 * cache.A_DAY
    os.utime(left, (long_ago, long_ago))
    built(source, size=2)
    assert not left.exists()


def test_a_reader_that_fails_leaves_nothing(source, pools):
    def fail(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(settings(source), progress=fail)
    assert list(pools.iterdir()) == []


def test_a_cache_that_cannot_be_written(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set CALIBRE_CACHE to a folder"):
        load(settings(source))


def test_the_default_place(monkeypatch, tmp_path):
    monkeypatch.delenv("CALIBRE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.entry([], {}).parent == tmp_path / "xdg" / "calibre" / "pools"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.entry([], {}).parent == tmp_path / ".cache" / "calibre" / "pools"


def test_a_file_that_vanished_is_named(tmp_path):
    (tmp_path / "x" / "a").mkdir(parents=True)
    (tmp_path / "x" / "a" / "1.png").symlink_to("nowhere.png")
    (tmp_path / "x" / "a" / "2.png").symlink_to("nowhere.png")
    with pytest.raises(UserError, match=r"none of the 2 images .*[12]\.png .*no such file"):
        load(settings(tmp_path / "x", test_fraction=0.5))
