import csv
import io
import json

import pytest

from calibre.report import comparison_tables as tables
from calibre.report.compare import compare
from tests.report.in_memory import method, run

OURS = "Calibre (SimCLR) with labels"

FLOORS = {"local": [0.3, 0.4, 0.5, 0.2]}


@pytest.fixture
def comparison():
    return compare(
        [
            run([0.6, 0.8, 0.7], [0.5], seed=0, floors=FLOORS, bytes_up=1500),
            run([0.8, 1.0, 0.9], [0.7], seed=1, floors=FLOORS, bytes_up=1500),
            run([0.4, 0.5, 0.6], [0.9], method("fedavg"), seed=0, bytes_up=None),
            run([0.4, 0.5, 0.6], [0.8], method("fedavg"), seed=1, bytes_up=None),
        ]
    )


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_markdown_has_a_line_for_every_method_and_group(comparison):
    table, tests, notes = tables.markdown(comparison).split("\n\n")
    header, rule, *lines = map(cells, table.splitlines())
    assert header == tables.HEADER
    assert set(rule) == {"---", "---:"}
    assert [line[:2] for line in lines] == [
        ["3 trained", OURS], ["3 trained", "FedAvg"], ["3 trained", "local only"],
        ["1 novel", OURS], ["1 novel", "FedAvg"], ["1 novel", "local only"],
    ]  # fmt: skip
    # means .7 and .9: ± 12.706 × .1; worst of three is the worst tenth, and the least
    assert lines[0][2:] == [
        "80.00 ± 127.06", "0.0067 ± 0.0000", "8.16 ± 0.00", "70.00 ± 127.06", "70.00 ± 127.06",
        "10", "1.5",
    ]  # fmt: skip
    assert lines[1][-1] == ""  # an old run: what it sent was not kept
    assert lines[2][-2:] == lines[3][-2:] == ["", ""]
    assert len(tests.splitlines()) == 2 + 4
    assert notes.startswith("- the mean over 2 seeds")


def test_a_spreadsheet_gets_plain_figures(comparison):
    table = list(csv.DictReader(io.StringIO(tables.table_csv(comparison))))
    assert len(table) == 6
    first = table[0]
    assert (first["clients"], first["number"], first["seeds"]) == ("trained", "3", "2")
    assert float(first["mean"]) == pytest.approx(0.8)
    assert float(first["mean_half_interval"]) == pytest.approx(1.27062, rel=1e-4)
    assert (float(first["bytes_up"]), table[1]["bytes_up"]) == (1500, "")
    tests = list(csv.DictReader(io.StringIO(tables.tests_csv(comparison))))
    assert [float(row["p_holm"]) for row in tests] == [t.adjusted for t in comparison.tests]


def test_programs_get_everything(comparison):
    facts = json.loads(tables.as_json(comparison))
    assert facts["seeds"] == [0, 1]
    assert facts["federations"] == ["federation of seed 0", "federation of seed 1"]
    best, fedavg, local = facts["methods"]
    assert best["train"]["mean"]["value"] == pytest.approx(0.8)
    assert (best["floor"], local["floor"], fedavg["bytes_up"]) == (False, True, None)
    assert len(best["runs"]) == 2
    assert {"p", "p_holm", "difference", "pairs"} <= set(facts["tests"][0])


def test_latex_is_whole_and_knows_its_special_letters():
    odd = {"method": r"50% of_{x} & \more $5 #1 ~ ^"}
    text = tables.latex(
        compare([run([0.5, 0.6], [0.4], **odd), run([0.4, 0.3], [0.2], method("fedavg"))])
    )
    assert r"50\% of\_\{x\} \& \textbackslash{}more \$5 \#1 \textasciitilde{}" in text
    assert "\\usepackage{booktabs}" in text
    for thing in ("table*", "tabular"):
        assert text.count(rf"\begin{{{thing}}}") == text.count(rf"\end{{{thing}}}") == 2
    plain = text.replace(r"\{", "").replace(r"\}", "")
    assert plain.count("{") == plain.count("}")
    body = text.replace(r"\&", "")
    widths = [len(part.split("}")[0]) for part in body.split(r"\begin{tabular}{")[1:]]
    assert widths == [len(tables.HEADER), len(tables.TEST_HEADER)]
    for width, table in zip(widths, body.split(r"\begin{tabular}")[1:], strict=True):
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert len(rows) >= 3
        assert {row.count("&") for row in rows} == {width - 1}
    assert not set("±<>") & set(text)
    assert text.count(r"\midrule") == 4  # below each header, and between trained and novel


def test_what_comes_from_outside_breaks_no_table():
    text = tables.markdown(compare([run([0.5], method="a | b\nc")]))
    assert "a \\| b c" in text.splitlines()[2]


def test_the_screen_shows_the_same_cells(comparison):
    from rich.console import Console

    console = Console(width=200, record=True, file=io.StringIO())
    console.print(*tables.screen(comparison))
    shown = console.export_text()
    for block in (*tables.lines(comparison), *tables.test_lines(comparison)):
        for line in block:
            for cell in line:
                assert cell in shown
