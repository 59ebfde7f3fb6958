"""What sites tell of their data: whoever tells nonsense is named, and the others go on."""

import json

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from calibre.data.augment import statistics
from calibre.deploy import roster as rosters
from calibre.deploy.client import app
from calibre.deploy.coordinator import coordinate
from calibre.deploy.records import SiteReport, text_of
from calibre.errors import UserError
from tests.deploy.folders import write_folders
from tests.deploy.local_grid import LocalGrid
from tests.deploy.test_coordinator import OWNERS, experiment, nodes

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 1), dtype=np.uint8)


def told(name="anna", classes=("0", "1"), rows=slice(None), **fields):
    pixels = IMAGES[rows].astype(np.float64)
    return SiteReport(
        **{
            "name": name, "novel": False, "shape": (8, 8, 1), "classes": classes,
            "labelled": [3] * len(classes), "test": [1] * len(classes), "unlabelled": 2,
            "total": [pixels.sum()], "squares": [(pixels**2).sum()], "values": pixels.size,
        } | fields
    )  # fmt: skip


def test_the_federation_is_the_sum_of_what_its_sites_tell(tmp_path):
    bert = told("bert", ("1", "7"), slice(6, 12), labelled=[5, 4], test=[2, 0], unlabelled=1)
    late = told("carl", ("7",), slice(0, 3), novel=True)
    reports = [late, bert, told(rows=slice(6))]
    roster = rosters.begin(reports, experiment(tmp_path, "method.name=fedavg"))
    assert [member.name for member in roster.members] == ["anna", "bert", "carl"]
    assert roster.facts.classes == ("0", "1", "7")
    federation = rosters.federation_of(roster)
    assert federation.train_table.tolist() == [[3, 3, 0], [0, 5, 4], [0, 0, 3]]
    assert federation.test_table.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 1]]
    sizes = [
        (len(held.labelled), len(held.unlabelled), len(held.test))
        for held in map(federation.client, range(3))
    ]
    assert sizes == [(6, 2, 2), (9, 1, 2), (3, 2, 1)]
    every = np.concatenate([IMAGES, IMAGES[:3]])  # the newcomer's images are there twice
    assert roster.facts.mean == pytest.approx(statistics(every).mean)
    assert roster.facts.std == pytest.approx(statistics(every).std)
    roster.save(tmp_path)
    assert rosters.load(tmp_path) == roster
    assert rosters.load(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("classes", "order"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["10", "9", "b"], ("10", "9", "b")),
        (["10", "9", "²"], ("10", "9", "²")),  # a digit to Python, and no number
        (["10", "9", "1" * 30], ("10", "1" * 30, "9")),
        (["10", "9", "٣"], ("10", "9", "٣")),
    ],
)
def test_classes_are_in_the_order_of_their_numbers_only_if_all_are_numbers(
    tmp_path, classes, order
):
    asked = experiment(tmp_path, "method.name=fedavg")
    reports = [told(str(i), (name,), labelled=[2]) for i, name in enumerate(classes)]
    assert rosters.begin(reports, asked).facts.classes == order


UNFIT = {
    "shape": ({"shape": (8, 8, 3), "total": [1, 1, 1], "squares": [1, 1, 1]}, "gray images"),
    "size": ({"shape": (9, 8, 1)}, r"'bert' has images of \[9, 8, 1\]"),
    "counts": ({"labelled": [3]}, "'bert' tells counts that do not fit"),
    "few": ({"test": [0, 0]}, "'bert' has 6 labelled and 0 test images"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_site_that_does_not_fit_is_named(tmp_path, case):
    fields, said = UNFIT[case]
    asked = experiment(tmp_path, "method.name=fedavg")
    with pytest.raises(UserError, match=said):
        rosters.begin([told(), told("bert", **fields)], asked)


def test_more_images_than_can_be_numbered_are_told_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(rosters, "MOST_TOGETHER", 15)
    asked = experiment(tmp_path, "method.name=fedavg")
    rosters.federation_of(rosters.begin([told()], asked))
    with pytest.raises(UserError, match="more than 15 images together"):
        rosters.federation_of(rosters.begin([told(), told("bert")], asked))


NONSENSE = {
    "too many to count": ({"labelled": [10**400] * 4}, "labelled"),
    "too many in all": ({"unlabelled": 10**8}, "more than 100,000,000 images"),
    "negative": ({"test": [-1, 1, 1, 1]}, "test"),
    "a word": ({"labelled": ["²", 1, 1, 1]}, "labelled"),
    "half an image": ({"unlabelled": 0.5}, "unlabelled"),
    "huge sums": ({"total": [1e308], "squares": [1e308]}, "not those of pixels"),
    "no variance": ({"squares": [0.0]}, "not those of pixels"),
    "endless name": ({"classes": ["x" * 201]}, "classes"),
    "no pixel": ({"values": 0}, "values"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    write_folders(folder, OWNERS[:3])
    return folder


def with_bert(place, change):
    """Three sites, of which the second one's hello is changed."""

    def fail(node, message):
        if node != 101 or message.metadata.message_type != "query":
            return None
        reply = app(message, grid.contexts[node])
        words = json.loads(text_of(reply.content))
        words["site"] |= change
        content = RecordDict({"text": ConfigRecord({"json": json.dumps(words)})})
        return Message(content, reply_to=message)

    grid = LocalGrid(nodes(place, OWNERS[:3]), fail=fail)
    return grid


@pytest.mark.parametrize("case", NONSENSE)
def test_a_site_that_tells_nonsense_is_refused_by_name_and_the_others_train(place, tmp_path, case):
    change, said = NONSENSE[case]
    heard = []
    asked = experiment(place, "method.name=fedavg", "engine.sites=2", "training.rounds=1")
    metrics = coordinate(
        with_bert(place, change), asked, tmp_path / "run",
        lambda event: heard.append(getattr(event, "text", "")), patience=5,
    )  # fmt: skip
    (warning,) = [text for text in heard if "refused" in text]
    assert warning.startswith("site 'bert' was refused: ")
    assert said in warning
    assert len(warning) < 1000
    assert metrics.train.clients == 2
    assert metrics.failures == 0


def test_a_class_called_by_an_odd_digit_is_a_class_like_any_other(tmp_path):
    write_folders(tmp_path, OWNERS[:2])
    for part in ("train", "test"):
        (tmp_path / "bert" / "images" / part / "3").rename(
            tmp_path / "bert" / "images" / part / "²"
        )
    asked = experiment(tmp_path, "method.name=fedavg", "engine.sites=2", "training.rounds=1")
    grid = LocalGrid(nodes(tmp_path, OWNERS[:2]))
    metrics = coordinate(grid, asked, tmp_path / "run", lambda event: None, patience=5)
    assert (metrics.train.clients, metrics.failures) == (2, 0)
    known = json.loads((tmp_path / "run" / "federation.json").read_text())["classes"]
    assert known == ["0", "1", "2", "3", "²"]
