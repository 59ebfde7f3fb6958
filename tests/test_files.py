import errno
import os

import pytest

from calibre.errors import UserError
from calibre.files import in_words, read_toml, write_atomic


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


def test_a_toml_file_is_read_or_said_to_be_none(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text('name = "Zoë"\n[data]\nsize = 3\n', encoding="utf-8")
    assert read_toml(file) == {"name": "Zoë", "data": {"size": 3}}
    for content in (b"name = ", "name = 'Zoë'".encode("latin-1")):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"site\.toml is not a TOML file"):
            read_toml(file)
    with pytest.raises(UserError, match=r"cannot read .*nowhere: No such file"):
        read_toml(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENOSPC, "the disk is full: /some/file; go on"),
        (errno.EROFS, "the file system is read-only: /some/file; go on"),
        (errno.EACCES, "permission is missing: /some/file; go on"),
        (errno.EMFILE, "too many files are open"),
    ],
)
def test_what_a_machine_lacks_is_told_in_words(code, said):
    with pytest.raises(UserError, match=said), in_words("go on"):
        raise OSError(code, os.strerror(code), "/some/file")


def test_other_errors_stay_what_they_are():
    with pytest.raises(FileNotFoundError), in_words("go on"):
        os.stat("/nowhere/at/all")
