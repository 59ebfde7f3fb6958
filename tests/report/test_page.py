import base64
import fnmatch
import hashlib
import json
import math
import re
import time
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibre.cli import app
from calibre.data.federation import load
from calibre.engine import rounds
from calibre.errors import UserError
from calibre.report import events
from calibre.report.events import RoundDone
from calibre.report.metrics import ClientResult
from calibre.report.page import plotted, render, story, write_page
from calibre.report.runs import read, read_all
from tests.report import in_memory
from tests.report.made_run import make_run

OURS = "Calibre (SimCLR) with labels"

HOSTILE = ("<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>", "a'\"&<!--")


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and the text inside them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and data.strip():
            self.texts.append((self.elements[-1][0], data))

    def of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]

    @property
    def words(self) -> str:
        return " ".join(text for tag, text in self.texts if tag not in ("script", "style"))

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.of("script")[0])  # type: ignore[no-any-return]


def client(id: int, accuracy: float, novel: bool = False, **other: Any) -> ClientResult:
    about = {"samples": 40, "unlabelled": 0, "test_samples": 100, "classes": 4, "floors": {}}
    return ClientResult(id, f"site {id}", novel, accuracy=accuracy, **{**about, **other})


def test_of_very_many_clients_a_page_shows_a_sample_with_both_ends() -> None:
    draw = np.random.default_rng(0).random(20_000)
    everyone = [client(i, float(a), novel=i >= 19_950) for i, a in enumerate(draw)]
    shown = plotted.shown_clients(everyone)
    assert plotted.MOST <= len(shown) + plotted.FEWEST <= plotted.MOST + 2 * plotted.FEWEST
    assert [one.id for one in shown] == sorted({one.id for one in shown})
    assert sum(one.novel for one in shown) == 50  # too few to leave one out
    trained = sorted(one.accuracy for one in shown if not one.novel)
    assert (trained[0], trained[-1]) == (draw[:19_950].min(), draw[:19_950].max())
    for share in (0.1, 0.5, 0.9):
        assert abs(np.quantile(trained, share) - np.quantile(draw, share)) < 0.01
    assert plotted.shown_clients(everyone[:10_000]) == everyone[:10_000]


def test_the_page_of_twenty_thousand_clients_is_small_and_says_what_it_leaves_out() -> None:
    accuracies = [i % 101 / 100 for i in range(20_000)]
    html = render(
        [in_memory.run(accuracies, floors={"untrained": accuracies, "local": accuracies})]
    )
    assert len(html) < 3_000_000
    assert "of 20,000 clients, charts and table show 10,000" in Page(html).words


def test_the_verdict_says_whom_the_model_serves_badly() -> None:
    scores = [(0.9, 0.5), (0.5, 0.7), (0.7, 0.7), (0.8, 0.9)]
    clients = [client(i, own, floors={"local": alone}) for i, (own, alone) in enumerate(scores)]
    clients.append(client(4, 0.6, novel=True, floors={"local": 0.2}))
    trained, novel, alone = (text.replace("\xa0", " ") for text in story.verdict(clients))
    assert trained == (
        "4 clients trained: mean accuracy 72.5 %, the worst tenth 50.0 %; from 50.0 % (site 1) to "
        "90.0 % (site 0)."
    )
    assert novel.startswith("1 client joined only afterwards (novel): mean accuracy 60.0 %")
    assert alone == (
        "2 clients of 5 are better off with local training alone, which reaches 60.0 % on "
        "average: site 1 (50.0 % against 70.0 %: 20.0 points (95 % interval 6.7 to 33.3)), "
        "site 3 (80.0 % against 90.0 %: 10.0 points, but 100 test images: not established "
        "(95 % interval -0.1 to 20.1))."
    )


def test_the_verdict_needs_no_floors_and_is_glad_when_nobody_loses() -> None:
    assert len(story.verdict([client(0, 0.5)])) == 1
    assert story.verdict([client(0, 0.5, floors={"local": 0.5})])[1].startswith("Nobody is better")


def test_a_loss_counts_only_beyond_what_the_test_set_can_explain() -> None:
    # two standard errors of 70 % against 50 %: 2 sqrt((.21 + .25) / n), .136 of 100, .303 of 20
    lost = {"floors": {"local": 0.7}}
    assert story.beyond_chance(client(0, 0.5, test_samples=100, **lost), "local")
    assert not story.beyond_chance(client(0, 0.5, test_samples=20, **lost), "local")
    assert not story.beyond_chance(client(0, 0.9, test_samples=100, **lost), "local")


def test_warnings_tell_failures_collapse_and_clients_that_never_trained(tmp_path: Path) -> None:
    run = read(make_run(tmp_path, 300, 0, rounds=1, failing=[7, 7, 9], warnings=["collapsed!"]))
    collapse, failures, *rest = story.warnings(run)
    assert collapse == "collapsed!"
    assert failures.startswith("3 times a client failed")
    assert "Most often client-7 (2), client-9 (1);" in failures
    assert "<b>ran out" in failures
    trained = set(run.rounds[0].clients)
    (missed,) = [text for text in rest if "never trained" in text]
    assert missed.startswith(f"{300 - len(trained)} clients never trained in any of 1 round:")


def test_warnings_tell_small_test_sets_and_guessing(tmp_path: Path) -> None:
    run = read(make_run(tmp_path, 3, 0, floors=()))
    assert story.warnings(run) == []
    poor = [client(0, 0.2, test_samples=19), client(1, 0.26)]  # of 4 classes
    object.__setattr__(run, "clients", poor)
    guessing, coarse = story.warnings(run)
    assert guessing.startswith("1 client does worse than guessing")
    assert "site 0 (20.0" in guessing
    assert coarse.startswith("1 client is scored on fewer than 20 test images (at fewest 19)")


def test_warnings_tell_who_is_left_out_and_whose_score_says_nothing(tmp_path: Path) -> None:
    run = read(make_run(tmp_path, 3, 0, floors=()))
    object.__setattr__(run, "clients", [replace(client(0, 1.0), classes=1), client(1, 0.9)])
    (alone,) = story.warnings(run)
    assert alone.startswith("1 client with one class alone: 100 % there")
    assert alone.endswith(": site 0.")
    sheet = tmp_path / "federation.json"
    told = json.loads(sheet.read_text())
    told["left_out"] = {"Ward <b>": "1 labelled image to train on: 2 are needed"}
    sheet.write_text(json.dumps(told))
    words = Page(render([read(tmp_path)])).words
    assert "1 client is left out, and in no figure: Ward <b> (1 labelled image to" in words


def test_curves_are_the_mean_and_percentiles_of_what_clients_report() -> None:
    rounds = [
        {i: {"loss": float(i), "same": 1.0} for i in range(11)},
        {0: {"loss": 2.5, "same": 1.0, "began": 1.0, "odd": 1.0}},
        {1: {"loss": math.nan, "same": 1.0, "began": 2.0, "odd": 2.0}},
    ]
    loss, odd = plotted.curves(
        [RoundDone(round=3 + i, clients=told, seconds=1.0) for i, told in enumerate(rounds)]
    )
    assert (loss["name"], odd["name"]) == ("loss", "odd")  # not what never changes, nor the clock
    assert loss["rounds"] == [3, 4, 5]
    assert loss["mean"] == [5, 2.5, None]
    assert loss["low"] == [1, 2.5, None]  # the 10th percentile of 0, 1, ... 10
    assert loss["high"] == [9, 2.5, None]
    assert odd["mean"] == [None, 1, 2]


def test_a_small_federation_is_mapped_client_by_client(tmp_path: Path) -> None:
    federation = load(make_run(tmp_path, 9, 3))
    drawn = plotted.class_map(federation)
    np.testing.assert_array_equal(drawn["values"], federation.counts())
    assert [head["novel"] for head in drawn["columns"]] == [0] * 9 + [1] * 3
    assert drawn["columns"][9]["name"] == "novel-9"
    assert drawn["columns"][9]["short"] == "9"
    held = federation.client(4)
    images = [len(held.labelled), len(held.unlabelled), len(held.test)]
    assert drawn["columns"][4]["totals"] == images
    assert min(images[0], images[2]) > 0


def test_charts_have_names_and_the_title_no_place_on_this_machine(tmp_path: Path) -> None:
    names = ("hospital-2", "hospital-10", "praxis")
    place = make_run(tmp_path, 3, 0, names=names, changes=["data.source=/home/me/scans"])
    run = read(place)
    assert plotted.client_columns(run)["short"] == [*names]
    assert [head["short"] for head in plotted.class_map(load(place))["columns"]] == [*names]
    page = render([run])
    (title,), (heading,) = (
        re.findall("<title>(.*)</title>", page),
        re.findall("<h1>(.*)</h1>", page),
    )
    assert "on scans" in title
    assert heading == f"{OURS} on scans"
    assert "/" not in title


def test_a_middling_federation_names_the_client_of_each_sorted_column(tmp_path: Path) -> None:
    federation = load(make_run(tmp_path, 100, 0))
    by_name = {federation.client(i).name: row for i, row in enumerate(federation.counts())}
    drawn = plotted.class_map(federation)
    assert len(drawn["columns"]) == 100
    for head, values in zip(drawn["columns"], drawn["values"], strict=True):
        np.testing.assert_array_equal(values, by_name[head["name"]])


def test_a_large_federation_is_mapped_in_groups_that_lose_no_image(tmp_path: Path) -> None:
    federation = load(make_run(tmp_path, 2001, 500, rounds=1))
    drawn = plotted.class_map(federation)
    assert len(drawn["columns"]) <= 402
    sizes = np.array([head["clients"] for head in drawn["columns"]])
    totals = (np.array(drawn["values"]) * sizes[:, None]).sum(0)
    np.testing.assert_allclose(totals, federation.counts().sum(0), atol=0.01 * 2501)


def test_the_page_holds_every_client_exactly(tmp_path: Path) -> None:
    run = read(make_run(tmp_path, 20, 5, failing=[3]))
    (shown,) = Page(render([run])).data["runs"]
    columns = shown["clients"]
    assert columns["accuracy"] == [round(c.accuracy, 6) for c in run.clients]
    assert columns["local"] == [round(c.floors["local"], 6) for c in run.clients]
    assert columns["name"] == [c.name for c in run.clients]
    assert columns["failures"] == [int(c.id == 3) for c in run.clients]
    assert columns["rounds"] == [6] * 20 + [0] * 5


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 12, 3)
    write_page([read(folder)], tmp_path / "a" / "page.html")
    write_page([read(folder)], tmp_path / "b.html")
    assert (tmp_path / "a" / "page.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_names_from_elsewhere_are_text_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(3)>"
    run = read(
        make_run(
            folder, 2, 1, names=HOSTILE, classes=HOSTILE, failing=[0], warnings=[HOSTILE[1]],
            changes=["data.source=<b>"],
        )
    )  # fmt: skip
    html = render([run])
    page = Page(html)
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert not [tag for tag, _ in page.elements if tag in ("img", "b", "iframe", "object")]
    assert html.count("<!--") == 0
    (shown,) = page.data["runs"]
    assert tuple(shown["clients"]["name"]) == HOSTILE  # and yet they are what they are
    assert tuple(shown["heat"]["classes"]) == HOSTILE
    assert folder.name in page.words
    assert HOSTILE[1] in page.words


def test_the_page_needs_no_network_and_allows_only_its_own_script(tmp_path: Path) -> None:
    html = render([read(make_run(tmp_path, 3, 1))])
    page = Page(html)
    assert "http://" not in html
    assert "https://" not in html
    assert not [a for _, a in page.elements if {"src", "style", "onclick"} & a.keys()]
    (policy,) = [
        a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives.keys() == {"default-src", "style-src", "script-src"}
    assert directives["default-src"] == "'none'"
    for tag in ("style", "script"):
        content = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)[0]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert directives[f"{tag}-src"] == f"'sha256-{digest}'"


def test_settings_and_commands_are_enough_to_repeat_the_run(tmp_path: Path) -> None:
    changes = ["data.source=cifar10", "data.root=/somewhere", "training.rounds=6"]
    run = read(make_run(tmp_path / "run", 3, 1, seed=5, changes=changes))
    commands, toml = Page(render([run])).of("pre")
    assert "calibre-fl data download cifar10" in commands
    assert f"hash {run.federation}" in commands
    assert tomllib.loads(toml)["training"]["rounds"] == 6
    again = tmp_path / "experiment.toml"
    again.write_text(toml)
    from calibre.experiment import read as read_experiment

    assert read_experiment(again).hash() == run.experiment.hash()
    assert "/somewhere" not in toml  # a place on one machine


def test_versions_and_hashes_are_told(tmp_path: Path) -> None:
    run = read(make_run(tmp_path, 3, 1))
    words = Page(render([run])).words
    for fact in ("3.11.2", "2.13.0", run.federation, run.experiment.hash()):
        assert fact in words


def test_a_page_of_several_runs_compares_them(tmp_path: Path) -> None:
    runs = read_all(
        [
            make_run(tmp_path / "a", 20, 5),
            make_run(tmp_path / "b", 20, 5, better=0.1, changes=["method.name=fedrep"]),
        ]
    )
    page = Page(render(runs))
    rows = page.words
    for run in runs:
        trained = [c.accuracy for c in run.clients if not c.novel]
        assert f"{100 * np.mean(trained):.2f}" in rows
    assert "Wilcoxon" in rows
    assert [shown["method"] for shown in page.data["runs"]] == [OURS, "FedRep"]


def test_unlike_federations_are_shown_but_not_compared(tmp_path: Path) -> None:
    runs = read_all(
        [
            make_run(tmp_path / "a", 20, 5),
            make_run(tmp_path / "b", 21, 5, changes=["method.name=fedrep"]),
        ]
    )
    page = Page(render(runs))
    assert "Not compared:" in page.words
    assert "Wilcoxon" not in page.words
    assert len(page.data["runs"]) == 2


def test_a_run_without_its_federation_still_has_a_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 3, 1)
    (folder / "federation.safetensors").unlink()
    page = Page(render([read(folder)]))
    assert "who holds what is not shown" in page.words
    assert page.data["runs"][0]["heat"] is None


def test_a_run_without_rounds_floors_or_novel_clients_has_a_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 4, 0, rounds=0, floors=(), changes=["method.name=local"])
    (shown,) = Page(render([read(folder)])).data["runs"]
    assert shown["curves"] == []
    assert "local" not in shown["clients"]


def test_ten_thousand_clients_take_seconds(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 8_000, 2_000, rounds=50)
    began = time.process_time()  # of this process alone: others may share the machine
    html = render([read(folder)])
    assert time.process_time() - began < 5
    assert len(html) < 1_500_000


def test_the_command_writes_the_page_beside_the_run_or_where_one_says(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", 4, 1)
    two = make_run(tmp_path / "two", 4, 1, changes=["method.name=fedrep"])
    done = CliRunner().invoke(app, ["report", str(one)])
    assert done.exit_code == 0
    assert Path(done.stdout.strip()) == one / "report.html"
    assert (one / "report.html").read_text().startswith("<!doctype html>")
    page = tmp_path / "new" / "both.html"
    assert (
        CliRunner().invoke(app, ["report", str(one), str(two), "--out", str(page)]).exit_code == 0
    )
    assert "2 runs compared" in page.read_text()


@pytest.mark.parametrize("missing", ["", "metrics.json", "clients.csv"])
def test_a_folder_that_is_no_finished_run_is_named(tmp_path: Path, missing: str) -> None:
    folder = make_run(tmp_path / "run", 4, 1) if missing else tmp_path / "none"
    if missing:
        (folder / missing).unlink()
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert isinstance(done.exception, UserError)
    assert str(folder) in str(done.exception)
    assert not (folder / "report.html").exists()


def test_a_page_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    run = read(make_run(tmp_path / "run", 4, 1))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*page\.html"):
        write_page([run], tmp_path / "file" / "page.html")


def test_every_asset_is_shipped() -> None:
    root = Path(__file__).parents[2]
    shipped = tomllib.loads((root / "pyproject.toml").read_text())
    patterns = shipped["tool"]["setuptools"]["package-data"]["calibre.report.page"]
    assets = [f.name for f in (root / "src/calibre/report/page").iterdir() if f.is_file()]
    for asset in assets:
        assert asset.endswith(".py") or any(fnmatch.fnmatch(asset, p) for p in patterns), asset


def test_where_all_have_the_same_accuracy_nobody_is_called_worst_and_best() -> None:
    one = ClientResult(
        id=0, name="a", novel=False, samples=9, unlabelled=0, test_samples=5, classes=2,
        accuracy=1.0, floors={},
    )  # fmt: skip
    clients = [one, replace(one, id=1, name="b")]
    (said,) = story.verdict(clients)
    assert said.replace("\N{NO-BREAK SPACE}", " ") == (
        "2 clients trained: each has an accuracy of 100.0 %."
    )


def test_every_curve_of_calibres_training_says_what_it_is(tiny, tmp_path: Path) -> None:
    labels = "method.labels.weight=1", "training.rounds=1", "personal.floors=[]"
    rounds.run(tiny(*labels), tmp_path / "run")
    terms = {
        term
        for event in events.read(tmp_path / "run" / "events.jsonl") if event.event == "round"
        for report in event.clients.values()
        for term in report
    }  # fmt: skip
    assert {"l_c", "clusters", "dropped"} <= terms
    assert terms - plotted.HIDDEN <= plotted.MEANINGS.keys()
