from pathlib import Path

import pytest

from calibre.data import labels_file
from calibre.errors import UserError
from calibre.finished.collection import of_client, of_folder
from calibre.finished.label_store import LabelStore
from calibre.finished.labelled_model import make_model
from calibre.finished.run import FinishedRun
from calibre.personal.bundle import load
from tests.finished.made_labels import digits, hospitals, run_of


def by_name(collection):
    return {Path(image.path).name: image for image in collection.images}


def test_a_flat_folder_has_its_labels_beside_it(tmp_path):
    one, two = digits(tmp_path / "c", {0: 1, 1: 1})
    labels_file.write(tmp_path / "c" / "labels.csv", [(two.name, "one", "")])
    found = of_folder(tmp_path / "c")
    assert found.client == "c"
    assert {image.path: image.label for image in found.images} == {str(one): "", str(two): "one"}
    assert {image.labels_file for image in found.images} == {tmp_path / "c" / "labels.csv"}


def test_folders_of_classes_are_labels_and_test_images_stay_out(tmp_path):
    (one,) = digits(tmp_path / "c" / "train" / "cat", {0: 1})
    (two,) = digits(tmp_path / "c" / "train" / "unlabelled", {1: 1})
    digits(tmp_path / "c" / "test" / "cat", {2: 1})
    found = by_name(of_folder(tmp_path / "c"))
    assert found.keys() == {one.name, two.name}
    assert (found[one.name].label, found[one.name].labels_file) == ("cat", None)
    assert found[two.name].labels_file == two.parent / "labels.csv"


def test_a_nearer_labels_file_counts_more_than_one_above(tmp_path):
    one, two = digits(tmp_path / "c" / "unlabelled", {0: 1, 1: 1})
    above = [(f"unlabelled/{file.name}", "above", "") for file in (one, two)]
    labels_file.write(tmp_path / "c" / "labels.csv", above)
    labels_file.write(one.parent / "labels.csv", [(one.name, "near", "")])
    found = of_folder(tmp_path / "c")
    store = LabelStore(found.images)
    said = {Path(found.images[i].path).name: store.row(i).label for i in range(2)}
    assert said == {one.name: "near", two.name: "above"}
    place = [Path(image.path) for image in found.images].index(two)
    store.put(place, "mine", "")
    assert store.row(place).label == "mine"
    assert len(labels_file.read(tmp_path / "c" / "labels.csv")) == 2  # only read


def test_a_clients_own_images_and_the_runs_classes(tmp_path):
    finished = FinishedRun(run_of(hospitals(tmp_path / "h"), tmp_path / "r"))
    found = of_client(finished, finished.find(["south"])[0])
    assert found.client == "south"
    assert found.place == tmp_path / "h" / "south"
    assert len(found.images) == 18 + 24
    assert all("/south/" in image.path for image in found.images)
    assert found.classes == ("0", "1", "2")
    assert not found.novel


def test_a_client_is_found_however_its_folder_writes_its_letters(tmp_path):
    hospitals(tmp_path / "h")
    (tmp_path / "h" / "south").rename(tmp_path / "h" / "su\u0308d")
    finished = FinishedRun(run_of(tmp_path / "h", tmp_path / "r"))
    found = of_client(finished, finished.find(["s\u00fcd"])[0])
    assert found.place == tmp_path / "h" / "su\u0308d"
    assert len(found.images) == 18 + 24


def test_images_without_a_folder_of_the_client_are_none(tmp_path):
    assert of_client(FinishedRun(run_of(None, tmp_path / "r")), 0) is None


def test_a_folder_of_torn_images_is_told(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "x.png").write_bytes(b"no")
    with pytest.raises(UserError, match="none of the images"):
        of_folder(tmp_path / "c").decoded((8, 8, 1))


def test_what_is_odd_about_labels_is_told_of_this_client_alone(tmp_path):
    finished = FinishedRun(run_of(hospitals(tmp_path / "h"), tmp_path / "r"))
    for client in ("north", "south"):
        place = tmp_path / "h" / client / "unlabelled" / "labels.csv"
        labels_file.write(place, [(f"gone-from-{client}.png", "cat", "")])
    found = of_client(finished, finished.find(["south"])[0])
    (note,) = found.notes
    assert "not used: 1;" in note
    assert "gone-from-south.png, which is no image here" in note
    (note,) = of_folder(tmp_path / "h" / "north").notes
    assert "gone-from-north.png" in note


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("Train", "TEST")])
def test_a_clients_model_is_measured_on_the_runs_test_images_of_that_client(tmp_path, train, test):
    hospitals(tmp_path / "h" / train)
    for client in ("north", "south"):
        digits(tmp_path / "h" / test / client, {1: 7, 2: 5}, skip=100, named=True)
    digits(tmp_path / "h" / test / "north", {9: 3}, skip=100, named=True)  # which south never has
    run = run_of(tmp_path / "h", tmp_path / "r")
    finished = FinishedRun(run)
    held = of_client(finished, finished.find(["south"])[0])
    assert held.place == tmp_path / "h" / train / "south"
    make_model(run, held, tmp_path / "b", replace=False)
    card = load(tmp_path / "b").card
    assert (card.accuracy.how, card.accuracy.images) == ("test images", 12)
    assert {each.name: each.test for each in card.classes} == {"0": 0, "1": 7, "2": 5}
