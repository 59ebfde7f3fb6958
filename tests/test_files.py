import errno
import os
import stat
from pathlib import Path

import pytest

from calibre.errors import UserError
from calibre.files import in_words, inside, private_folder, read_toml, write_atomic


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


def test_no_file_takes_the_place_of_a_device(monkeypatch):
    monkeypatch.setattr("os.open", pytest.fail)  # should it fail, the machine keeps its device
    with pytest.raises(UserError, match="/dev/null is a device"):
        write_atomic(Path("/dev/null"), "x")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("seed = " + "[" * 5000, "nested more than 32 deep"),
        ("seed = " + "[" * 100 + "]" * 100, "nested more than 32 deep"),
        ("[" + ".".join("a" * 500) + "]", "nested more than 32 deep"),
        ("a = " + "{a = " * 3000 + "1" + "}" * 3000, "nested more than 32 deep"),
        ("seed = " + "9" * 5000, "4300 digits"),
        ("seed = 0x" + "f" * 5000, "more than 64 bits"),
        ("#" * (2**24 + 1), "more than 16,777,216 bytes"),
    ],
    ids=["open", "lists", "keys", "tables", "digits", "hex", "long"],
)
def test_what_no_person_writes_is_no_toml(tmp_path, content, said):
    file = tmp_path / "site.toml"
    file.write_text(content)
    with pytest.raises(UserError, match=said):
        read_toml(file)


def test_a_pipe_or_device_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(UserError, match="cannot read"):
            read_toml(place)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_private_files_and_folders_are_for_their_owner_alone(tmp_path):
    old = os.umask(0)  # a system that would let everybody read everything
    try:
        write_atomic(tmp_path / "secret", "x", private=True)
        write_atomic(tmp_path / "public", "x")
        folder = private_folder(tmp_path / "a" / "b")
        (tmp_path / "open").mkdir(mode=0o777)
        private_folder(tmp_path / "open")
    finally:
        os.umask(old)
    assert (mode(tmp_path / "secret"), mode(tmp_path / "public")) == (0o600, 0o666)
    assert (mode(folder), mode(tmp_path / "open")) == (0o700, 0o700)


def test_a_folder_that_cannot_be_made_is_told_in_words(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot use .*file/x: Not a directory"):
        private_folder(tmp_path / "file" / "x")


@pytest.mark.parametrize("name", ["../x", "..", ".", "", "a/b", "/etc", "a\\b", "a\0b", "a\nb"])
def test_a_name_never_leads_out_of_its_folder(tmp_path, name):
    with pytest.raises(UserError, match="cannot be the name of a folder"):
        inside(tmp_path, name)


def test_other_names_are_as_they_are(tmp_path):
    for name in ("digits-calibre-1a2b", "..hidden", "Zoë 2"):
        assert inside(tmp_path, name).parent == tmp_path


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENOSPC, "the disk is full: /some/file; go on"),
        (errno.EROFS, "the file system is read-only: /some/file; go on"),
        (errno.EACCES, "permission is missing: /some/file; go on"),
        (errno.EMFILE, "too many files are open"),
        (errno.EFBIG, "a file may not become so large"),
        (errno.ENOMEM, "no memory left"),
        (errno.ELOOP, "links lead in a circle"),
        (errno.ESTALE, "the file system was taken away"),
    ],
)
def test_what_a_machine_lacks_is_told_in_words(code, said):
    with pytest.raises(UserError, match=said), in_words("go on"):
        raise OSError(code, os.strerror(code), "/some/file")


def test_other_errors_stay_what_they_are():
    with pytest.raises(FileNotFoundError), in_words("go on"):
        os.stat("/nowhere/at/all")
