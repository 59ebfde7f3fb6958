import pytest

from calibre.files import write_atomic


def test_a_file_is_replaced_whole(tmp_path):
    write_atomic(tmp_path / "f", "old")
    write_atomic(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    write_atomic(tmp_path / "f", "old")

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
