import json
import os
import resource

import pytest
from safetensors.torch import load_file

from calibre.errors import UserError
from calibre.personal.bundle import load
from calibre.personal.bundle_folder import BundleThereError
from tests.personal.made_bundle import make_bundle


def test_a_bundle_is_four_files_without_a_pickle(bundle):
    assert sorted(file.name for file in bundle.iterdir()) == [
        "card.json", "card.md", "mistakes.png", "model.safetensors",
    ]  # fmt: skip
    tensors = load_file(bundle / "model.safetensors")
    assert tensors["network.head.weight"].shape[0] == 3
    assert tensors["means"].shape[0] == 3


def test_the_same_making_gives_the_same_bytes(bundle, tmp_path):
    make_bundle().save(tmp_path / "again")
    for file in bundle.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


@pytest.mark.parametrize("name", ["model.safetensors", "card.md", "card.json"])
def test_a_changed_byte_is_found(copy, name):
    content = bytearray((copy / name).read_bytes())
    place = content.rindex(b"9") if name != "model.safetensors" else len(content) - 2
    content[place] ^= 1
    (copy / name).write_bytes(bytes(content))
    with pytest.raises(UserError, match=f"{name} is damaged or was changed"):
        load(copy)


@pytest.mark.parametrize("name", ["model.safetensors", "card.md"])
def test_a_missing_file_is_told(copy, name):
    (copy / name).unlink()
    with pytest.raises(UserError, match=f"cannot read .*{name}"):
        load(copy)


NO_FILES = {
    "a pipe": os.mkfifo,
    "a device": lambda place: place.symlink_to("/dev/zero"),
    "a link": lambda place: place.symlink_to("/etc/hostname"),
    "a folder": lambda place: place.mkdir(),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", ["model.safetensors", "card.md", "card.json", "mistakes.png"])
def test_what_is_no_file_is_refused_at_once(copy, name, kind):
    (copy / name).unlink()
    NO_FILES[kind](copy / name)
    with pytest.raises(UserError, match=r"is a link|cannot read|it has no card\.json"):
        load(copy)


def test_a_file_that_only_claims_to_be_large_takes_no_memory(copy):
    os.truncate(copy / "model.safetensors", 3 * 2**30)  # it takes no room on the disk either
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match="does not match the card's hash"):
        load(copy)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kilobytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "has version 1, this Calibre reads 3"),
        ({"format": "x"}, "not the card of a bundle"),
        ({"surprise": 1}, "unknown key 'surprise'"),
        ({"parts": [{"kind": "pixels", "side": 10**9}]}, "side"),
    ],
    ids=["version", "format", "key", "encoders"],
)
def test_a_card_that_is_none(copy, change, message):
    values = json.loads((copy / "card.json").read_text()) | change
    (copy / "card.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        load(copy)


def test_a_folder_that_is_no_bundle(bundle, tmp_path):
    with pytest.raises(UserError, match=r"is not a bundle: it has no card\.json$"):
        load(tmp_path)
    with pytest.raises(UserError, match=f"bundles inside it, such as .*{bundle.name}"):
        load(bundle.parent)
    (tmp_path / "card.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"card.json is damaged|not the card"):
        load(tmp_path)


def test_saving_replaces_a_bundle_and_nothing_else(copy, tmp_path):
    make_bundle(client="another").save(copy)
    assert load(copy).card.client == "another"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy"]  # nothing left beside it
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    with pytest.raises(UserError, match="is there and is no bundle"):
        make_bundle().save(tmp_path / "letters")
    assert (tmp_path / "letters" / "a.txt").read_text() == "dear"


def test_a_save_that_fails_leaves_the_old_bundle(copy, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("calibre.personal.bundle_folder.write_atomic", full)
    with pytest.raises(UserError, match="No space left"):
        make_bundle(client="another").save(copy)
    assert load(copy).card.client == "clinic"


def test_an_older_bundle_is_kept_refused_for_or_replaced(tmp_path):
    one, other = make_bundle(client="one"), make_bundle(client="other")
    one.save(tmp_path / "b", "refuse")
    with pytest.raises(BundleThereError, match="already"):
        other.save(tmp_path / "b", "refuse")
    assert load(tmp_path / "b").card.client == "one"
    other.save(tmp_path / "b", "keep")
    assert load(tmp_path / "b").card.client == "other"
    assert load(tmp_path / "b-old-1").card.client == "one"
    one.save(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "b-old-1"]


def test_a_first_bundle_and_an_empty_folder_leave_nothing_older(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        make_bundle().save(tmp_path / name, "keep")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "new"]


def test_a_run_is_told_from_a_bundle(tmp_path):
    """And it is said how to get bundles of it, or which are there."""
    (tmp_path / "experiment.toml").write_text("")
    with pytest.raises(UserError, match=r"it is a run, .* calibre-fl bundle"):
        load(tmp_path)
    (tmp_path / "bundles" / "anna").mkdir(parents=True)
    (tmp_path / "bundles" / "anna" / "card.json").write_text("{}")
    with pytest.raises(UserError, match=r"there are bundles inside it, such as .*bundles/anna"):
        load(tmp_path)
