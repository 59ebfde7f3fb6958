import json
import sys

import pytest
from typer.testing import CliRunner

from calibre import cli
from calibre.engine import rounds
from calibre.registry import TSNE
from tests.report.made_run import make_run


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    return [
        str(make_run(place / name, 8, 3, better=0.1 * i, changes=[f"method.name={name}"]))
        for i, name in enumerate(("calibre", "fedavg"))
    ]


def invoke(*arguments):
    return CliRunner().invoke(cli.app, list(map(str, arguments)))


def test_compare_prints_markdown_where_there_is_no_terminal(folders):
    result = invoke("compare", *folders)
    assert result.exit_code == 0, result.output
    table, tests, notes = result.output.split("\n\n")
    assert table.startswith("| clients | method | mean % |")
    assert "| 8 trained | FedAvg |" in table
    assert "| trained | FedAvg | Calibre (SimCLR) with labels |" in tests
    assert "Holm" in notes


def test_compare_writes_every_format(folders, tmp_path):
    files = [tmp_path / "new" / f"table.{suffix}" for suffix in ("md", "csv", "tex", "json")]
    outs = [part for file in files for part in ("--out", file)]
    assert invoke("compare", *folders, *outs, "--no-floors", "--all-pairs").exit_code == 0
    md, table, tex, facts = (file.read_text() for file in files)
    assert "local only" not in md
    assert table.startswith("clients,number,method,seeds,mean,")
    assert (tmp_path / "new" / "table-tests.csv").read_text().startswith("clients,one,other,")
    assert r"\toprule" in tex
    assert len(json.loads(facts)["methods"]) == 2
    assert json.loads(invoke("compare", *folders, "--json").output)["seeds"] == [0]
    for format, start in (("csv", "clients,"), ("latex", "%"), ("json", "{"), ("markdown", "|")):
        assert invoke("compare", *folders, "--format", format).output.startswith(start)


def test_every_figure_is_a_command(folders, tmp_path):
    result = invoke("figure", "sorted", *folders, "--out", tmp_path, "--json")
    assert json.loads(result.output)["files"] == [
        str(tmp_path / "sorted.png"), str(tmp_path / "sorted.svg"),
    ]  # fmt: skip
    result = invoke("figure", "federation", folders[0])
    assert result.exit_code == 0, result.output
    assert f"{folders[0]}/figures/federation.png" in result.output


def test_tsne_prints_the_measures_it_draws(tiny, tmp_path):
    folder = tmp_path / "run"
    rounds.run(tiny("training.rounds=1", "method.name=fedavg"), folder)
    result = invoke("figure", TSNE, folder, "--clients", "0,2-3", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.output)
    assert [(row["method"], row["by"]) for row in facts["measures"]] == [
        ("FedAvg", "class"), ("FedAvg", "client"),
    ]  # fmt: skip
    assert 0 <= facts["measures"][0]["nmi"] <= 1
    assert (folder / "figures" / "tsne.svg").exists()
    said = invoke("figure", TSNE, folder, "--by", "class", "--out", tmp_path).output
    assert "images by class: silhouette" in said
    assert "by client" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "nowhere"], "nowhere is not a run folder"),
        (["compare", "FIRST", "--out", "x.pdf"], "--out x.pdf: end it with one of .md"),
        (["compare", "FIRST", "FIRST"], "hold the same experiment"),
        (["figure", "curve", "FIRST"], "did you mean 'curves'"),
        (["figure", "sorted", "FIRST", "--clients", "1"], "for the figure tsne, not for sorted"),
        (["figure", "tsne", "FIRST", "--clients", "one"], "no client 'one': known: client-0, "),
        (["figure", "tsne", "FIRST", "--clients", "-1"], "no client '-1'"),
        (["figure", "tsne", "FIRST", "--clients", "99"], "no client '99'"),
        (["figure", "tsne", "FIRST"], "lacks the checkpoint of its last round"),
    ],
)
def test_a_users_mistake_is_a_message_and_exit_code_2(
    arguments, message, folders, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    given = [folders[0] if part == "FIRST" else part for part in arguments]
    monkeypatch.setattr(sys, "argv", ["calibre-fl", *given])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert message in " ".join(said.err.split())
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []


def test_the_suite_ends_in_the_same_table(tmp_path):
    from tests.conftest import TINY

    sets = [part for change in (*TINY, "training.rounds=1") for part in ("--set", change)]
    arguments = ["--method", "fedavg", "--method", "fedavg", "--method", "fedrep"]
    result = invoke("suite", *sets, *arguments, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    table = result.output[result.output.index("| clients") :]
    assert table == invoke("compare", *sorted(tmp_path.iterdir())).output
    assert "| 5 trained | FedRep |" in table
