import json

import pytest

from calibre.report.page import render
from calibre.report.page.wrong_answers import where_to_find, wrong_answers
from calibre.report.runs import read
from tests.personal.made_bundle import COLOURS, make_bundle
from tests.report.made_run import make_run


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "run", 3, 1, names=("a", "b", "<i>c</i>", "d"))


def add_bundle(folder, place: str, client: str, experiment: str | None = None) -> None:
    own = read(folder).metrics.experiment
    facts = {"experiment": own if experiment is None else experiment, "seed": 0}
    made = make_bundle(per_class=20, test=3, client=client, run=facts)
    made.save(folder / "bundles" / place)


def test_cards_of_the_runs_own_clients_are_told_in_their_order(folder):
    assert wrong_answers(read(folder)) == []
    add_bundle(folder, "one", "<i>c</i>")
    add_bundle(folder, "two", "a")
    found = wrong_answers(read(folder))
    assert [each["client"] for each in found] == ["a", "<i>c</i>"]
    assert [row[0] for row in found[0]["classes"]] == [*COLOURS]
    assert found[0]["images"] == sum(row[1] for row in found[0]["classes"]) == 60


def test_others_are_passed_over(folder):
    add_bundle(folder, "stranger", "nobody of the run")
    add_bundle(folder, "other", "a", experiment="another")
    add_bundle(folder, "damaged", "b")
    (folder / "bundles" / "damaged" / "card.json").write_text("{")
    assert wrong_answers(read(folder)) == []
    add_bundle(folder, "b", "b")
    add_bundle(folder, "b-old-1", "b")
    assert len(wrong_answers(read(folder))) == 1


def test_the_page_holds_counts_and_no_picture(folder):
    add_bundle(folder, "one", "a")
    page = render([read(folder)])
    assert "What each model gets wrong" in page
    assert "data:image" not in page
    assert "mistakes.png" not in page
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert data["runs"][0]["wrong"][0]["client"] == "a"


def test_without_bundles_it_says_where_to_look(tmp_path, folder):
    assert "calibre-fl bundle" in where_to_find(read(folder))
    sites = make_run(tmp_path / "sites", 3, 1, changes=["engine.runtime=flower"])
    assert "at its site alone" in where_to_find(read(sites))
    assert "at its site alone" in render([read(sites)])
