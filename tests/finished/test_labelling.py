import csv
import os
import threading

import pytest

from calibre.data import labels_file
from calibre.errors import UserError
from calibre.finished.labelling import ConflictError
from tests.finished.made_labels import digits
from tests.finished.made_learner import folder_of_digits, label_all, started, truth_of


@pytest.fixture
def folder(tmp_path):
    return folder_of_digits(tmp_path / "clinic")


def written(folder) -> dict[str, str]:
    with (folder / "labels.csv").open(newline="") as file:
        return {row["path"]: row["label"] for row in csv.DictReader(file)}


def first(labelling) -> int:
    return labelling.state()["queue"][0]["index"]


def test_a_label_is_in_the_file_before_the_call_returns(folder):
    labelling = started(folder)
    index = first(labelling)
    labelling.label(index, 'cat, or "dog"', None)
    assert written(folder) == {labelling.name(index): 'cat, or "dog"'}
    state = labelling.state()
    assert state["labelled"] == 1
    assert state["classes"] == [{"name": 'cat, or "dog"', "labels": 1}]
    assert index not in [row["index"] for row in state["queue"]]


def test_starting_again_goes_on(folder):
    label_all(started(folder), 7)
    again = started(folder)
    state = again.state()
    assert state["labelled"] == 7
    assert {row["name"] for row in state["classes"]} <= {"0", "1", "2"}
    assert not {row["name"] for row in state["queue"]} & set(written(folder))


def test_the_first_suggestions_are_of_all_classes(folder):
    """Three blobs, three clusters at the least: every class is among the first few."""
    labelling = started(folder)
    label_all(labelling, 8)
    assert {row["name"] for row in labelling.state()["classes"]} == {"0", "1", "2"}


def test_in_the_end_every_image_was_looked_at_once(folder):
    labelling = started(folder)
    label_all(labelling, 36)
    state = labelling.state()
    assert state["queue"] == []
    assert not state["looking"]
    assert state["labelled"] == 36
    assert len(written(folder)) == 36


def test_not_sure_is_kept_and_not_asked_again(folder):
    labelling = started(folder)
    index = first(labelling)
    labelling.label(index, "", None)
    assert written(folder) == {labelling.name(index): ""}
    assert labelling.state()["unsure"] == 1
    again = started(folder)
    assert index not in [row["index"] for row in again.state()["queue"]]


def test_skipping_puts_an_image_last_and_writes_nothing(folder):
    labelling = started(folder)
    index = first(labelling)
    labelling.skip(index)
    queue = [row["index"] for row in labelling.state()["queue"]]
    assert queue[-1] == index
    assert queue[0] != index
    assert not (folder / "labels.csv").exists()


def test_undo_takes_back_step_by_step(folder):
    labelling = started(folder)
    one = first(labelling)
    labelling.label(one, "a", None)
    labelling.label(one, "b", "a")
    two = first(labelling)
    labelling.label(two, "", None)
    assert labelling.undo() == two
    assert first(labelling) == two
    assert labelling.undo() == one
    assert written(folder) == {labelling.name(one): "a"}
    assert labelling.undo() == one
    assert written(folder) == {}
    assert not labelling.state()["undo"]
    with pytest.raises(ConflictError, match="nothing to undo"):
        labelling.undo()


def test_the_estimate_is_what_held_out_labels_say(folder):
    labelling = started(folder)
    labelling.learn()
    assert labelling.state()["estimate"] is None
    label_all(labelling, 12)
    assert labelling.state()["pending"]
    labelling.learn()
    state = labelling.state()
    assert not state["pending"]
    found = state["estimate"]
    assert found["labels"] == 12
    assert found["value"] == 1.0  # blobs far apart
    assert found["low"] < 0.9 < found["high"] == 1.0
    label_all(labelling, 6)
    labelling.learn()
    assert [row["labels"] for row in labelling.state()["growth"]] == [12, 18]
    labelling.undo()
    labelling.learn()
    assert [row["labels"] for row in labelling.state()["growth"]] == [12, 17]


def test_wrong_labels_show_in_the_estimate(folder):
    labelling = started(folder)
    for i in range(36):
        labelling.label(i, "odd" if i % 2 else "even", None)
    labelling.learn()
    assert labelling.state()["estimate"]["value"] < 0.75


def test_the_guess_is_the_class_of_the_blob(folder):
    labelling = started(folder)
    assert labelling.guess(first(labelling)) == []
    label_all(labelling, 12)
    for row in labelling.state()["queue"]:
        guess = labelling.guess(row["index"])
        assert guess[0][0] == truth_of(labelling, row["index"])
        assert sum(share for _, share in guess) == pytest.approx(1)


def test_of_two_who_label_the_same_image_the_second_is_told(folder):
    labelling = started(folder)
    index = first(labelling)
    labelling.label(index, "cat", None)
    with pytest.raises(ConflictError, match="somebody was quicker"):
        labelling.label(index, "dog", None)
    assert written(folder) == {labelling.name(index): "cat"}


def test_many_at_once_lose_nothing(folder):
    labelling = started(folder)
    threads = [
        threading.Thread(target=lambda i=i: labelling.label(i, f"class {i % 3}", None))
        for i in range(36)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written(folder)) == 36


def test_what_another_program_wrote_is_taken_over_and_said(folder):
    labelling = started(folder)
    one, two = (row["index"] for row in labelling.state()["queue"][:2])
    labelling.label(one, "cat", None)
    rows = labels_file.read(folder / "labels.csv")
    labels_file.write(folder / "labels.csv", [*rows, (labelling.name(two), "dog", "")])
    with pytest.raises(ConflictError, match="somebody was quicker"):
        labelling.label(two, "cat", None)
    state = labelling.state()
    assert "Another program changed" in state["note"]
    assert "1 label was changed by it." in state["note"]
    assert state["labelled"] == 2
    assert two not in [row["index"] for row in state["queue"]]
    three = first(labelling)
    labelling.label(three, "bird", None)
    names = [labelling.name(i) for i in (one, two, three)]
    assert written(folder) == dict(zip(names, ("cat", "dog", "bird"), strict=True))


def test_rows_that_another_program_wrote_of_no_image_are_said(folder):
    labelling = started(folder)
    rows = [("elsewhere.png", "cat", ""), ("nowhere.png", "cat", "")]
    labels_file.write(folder / "labels.csv", rows)
    note = labelling.state()["note"]
    assert "0 labels were changed by it. 2 rows name no image" in note
    assert "'elsewhere.png'" in note


def test_a_deleted_file_is_said(folder):
    labelling = started(folder)
    label_all(labelling, 3)
    (folder / "labels.csv").unlink()
    state = labelling.state()
    assert "Another program deleted" in state["note"]
    assert "3 labels were changed by it" in state["note"]
    assert state["labelled"] == 0


def test_how_the_estimate_grew_is_known_after_a_new_start(folder):
    """From the labels and their times: of 33, the first 16 and the first 8."""
    times = [f"2025-01-01T00:00:{59 - i:02}Z" for i in range(33)]  # the last row came first
    images = sorted(file.name for file in folder.glob("*.png"))
    rows = [(name, name[0], time) for name, time in zip(images, times, strict=False)]
    labels_file.write(folder / "labels.csv", rows)
    labelling = started(folder)
    labelling.learn()
    state = labelling.state()
    assert [row["labels"] for row in state["growth"]] == [8, 16, 33]
    assert not state["pending"]
    first, *_ = state["growth"]
    assert first["images"] == 8  # all of digit 2, which has the earliest times
    labelling.learn()
    assert labelling.state()["growth"] == state["growth"]


def test_rows_of_files_that_are_not_here_stay(folder):
    labels_file.write(folder / "labels.csv", [("elsewhere.png", "cat", "2020-01-01T00:00:00Z")])
    labelling = started(folder)
    index = first(labelling)
    labelling.label(index, "dog", None)
    assert written(folder) == {"elsewhere.png": "cat", labelling.name(index): "dog"}


def test_an_undo_leaves_what_another_program_changed_since(folder):
    labelling = started(folder)
    index = first(labelling)
    labelling.label(index, "cat", None)
    labels_file.write(folder / "labels.csv", [(labelling.name(index), "lion", "")])
    with pytest.raises(ConflictError, match="another program"):
        labelling.undo()
    assert written(folder) == {labelling.name(index): "lion"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("path,label,time\n../x.png,cat,\n", "leads out of its folder"),
        ("path,label,doctor\n", "'doctor', which would be lost"),
        ("what is this", "does not have the columns"),
    ],
)
def test_a_file_that_would_be_damaged_is_left_as_it_is(folder, content, message):
    labelling = started(folder)
    (folder / "labels.csv").write_text(content)
    with pytest.raises(UserError, match=message):
        labelling.label(0, "cat", None)
    assert (folder / "labels.csv").read_text() == content


def test_an_image_that_vanished_is_said_and_nothing_written(folder):
    labelling = started(folder)
    index = first(labelling)
    os.unlink(labelling.images[index].path)
    with pytest.raises(ConflictError, match="no longer there"):
        labelling.label(index, "cat", None)
    assert not (folder / "labels.csv").exists()
    assert index not in [row["index"] for row in labelling.state()["queue"]]


def test_a_full_disk_loses_nothing(folder, monkeypatch):
    labelling = started(folder)
    label_all(labelling, 2)
    before = (folder / "labels.csv").read_bytes()
    state = labelling.state()

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(labels_file, "write_atomic", full)
    index = first(labelling)
    with pytest.raises(UserError, match="No space left on device"):
        labelling.label(index, "cat", None)
    monkeypatch.undo()
    assert (folder / "labels.csv").read_bytes() == before
    assert labelling.state() == state
    labelling.label(index, "cat", None)
    assert labelling.state()["labelled"] == 3


def test_images_in_class_folders_count_but_are_not_changed_here(folder):
    digits(folder / "zero", {0: 2}, skip=50)
    labelling = started(folder)
    state = labelling.state()
    assert state["labelled"] == 2
    fixed = [row["index"] for row in labelling.sheet() if row["fixed"]]
    assert len(fixed) == 2
    for label in ("one", ""):
        with pytest.raises(UserError, match="move the file"):
            labelling.label(fixed[0], label, "zero")
    labelling.label(first(labelling), "one", None)
    assert [row["label"] for row in labelling.sheet()] == ["one", "zero", "zero"]


@pytest.mark.parametrize(("index", "label"), [(-1, "a"), (36, "a"), (0, "x" * 201)])
def test_what_makes_no_sense_is_refused(folder, index, label):
    with pytest.raises(UserError):
        started(folder).label(index, label, None)
    assert not (folder / "labels.csv").exists()


def test_spaces_around_and_inside_a_name_are_one(folder):
    labelling = started(folder)
    labelling.label(0, "  big \n cat ", None)
    assert labelling.state()["classes"] == [{"name": "big cat", "labels": 1}]


def test_keys_stay_where_they_are_when_classes_come(folder):
    labelling = started(folder, classes=["z", "a"])
    labelling.label(0, "b", None)
    labelling.label(1, "a", None)
    assert [row["name"] for row in labelling.state()["classes"]] == ["z", "a", "b"]
