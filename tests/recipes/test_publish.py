"""Pages made from the ledger, and that those in the repository are."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calibre.cli.reproduction import build
from calibre.errors import UserError
from calibre.evidence.kept import Evidence
from calibre.recipes import all_recipes, publish, reproduce
from calibre.recipes.recipe import Conclusion, Recipe
from calibre.report import figures
from calibre.report.figures.style import drawn_as

ROOT = Path(__file__).parents[2]


@pytest.fixture
def recipe(tiny, monkeypatch):
    """Two methods on digits, three seeds."""

    def experiments(scale, seeds):
        return [
            tiny("training.rounds=1", f"method.name={name}", f"seed={seed}")
            for seed in seeds
            for name in ("fedavg", "fedrep")
        ]

    def conclude(runs, scale):
        said = ", ".join(f"{run.label} {run.seed}: {run.metrics.train.mean}" for run in runs)
        draw = {"points": lambda: figures.compose("mean-variance", runs)}
        return Conclusion(f"{said}\n\n![points](picture:points)", draw)

    made = Recipe("two", "Two methods", experiments, conclude)
    monkeypatch.setattr(all_recipes, "recipes", lambda: {"two": made})
    return made


@pytest.fixture
def pages(tmp_path):
    (tmp_path / "docs").mkdir()
    block = "<!-- evidence: two -->\nold words\n<!-- end -->\n"
    (tmp_path / "README.md").write_text("# No runs here\n")
    (tmp_path / "docs/results.md").write_text(f"before\n\n{block}\nafter\n")
    return tmp_path


def run(recipe, pages, seeds, methods=()):
    evidence = Evidence(pages / "evidence")
    chosen = reproduce.only(methods, recipe.experiments("cpu", range(seeds)))
    reproduce.reproduce(recipe, "cpu", chosen, pages / "runs", lambda event: None, evidence)


def results(pages):
    made = publish.build(pages, Evidence(pages / "evidence"))
    return made, made.pages["docs/results.md"]


def in_one_line(text):
    return " ".join(text.split())


def test_what_was_not_run_is_said_with_its_command(recipe, pages):
    made, text = results(pages)
    assert text == (
        "before\n\n<!-- evidence: two -->\n"
        "Not run yet: `calibre-fl reproduce two --seeds 3 --ledger evidence`\n"
        "<!-- end -->\n\nafter\n"
    )
    assert made.pages["README.md"] == "# No runs here\n"
    assert not made.pictures


def test_a_page_tells_what_the_ledger_holds_and_is_drawn_once(recipe, pages):
    run(recipe, pages, 3)
    made, text = results(pages)
    for entry in Evidence(pages / "evidence").entries.values():
        told = f"{entry.run.label} {entry.run.seed}: {entry.run.metrics.train.mean}"
        assert told in in_one_line(text)
    (picture,) = made.pictures
    assert f"![points]({picture.removeprefix('docs/')})" in text
    assert [file.name for file in made.write()] == [Path(picture).name, "results.md"]
    assert publish.held_pictures(pages) == {picture}
    assert list(results(pages)[0].write()) == []  # nothing has changed
    assert "old words" not in (pages / "docs/results.md").read_text()


def test_methods_are_shown_with_the_seeds_that_all_of_them_have(recipe, pages):
    run(recipe, pages, 1)
    run(recipe, pages, 2, ["fedavg"])
    made, text = results(pages)
    said = in_one_line(text)
    assert "FedAvg 0" in said
    assert "FedRep 0" in said
    assert "FedAvg 1" not in said
    assert "shown are runs of seed 0; 3 runs are still missing" in in_one_line(text)
    assert made.unused == ()  # it only waits for the other's second seed
    before = set(made.pictures)
    run(recipe, pages, 2)
    made, text = results(pages)
    assert "FedRep 1" in in_one_line(text)
    assert "shown are runs of seeds 0 to 1; 2 runs are still missing" in in_one_line(text)
    assert not before & set(made.pictures)  # other runs, other pictures


def test_entries_that_no_page_asks_for_are_named(recipe, pages):
    run(recipe, pages, 1)
    (pages / "docs/results.md").write_text("nothing of runs\n")
    assert len(results(pages)[0].unused) == 2


def test_prose_is_wrapped_and_tables_are_not():
    table, long = "| " + "x " * 80 + "|", "- " + "word " * 40
    lines = publish.wrapped(f"{table}\n{long}\n### " + "t" * 120).splitlines()
    assert lines[0] == table
    assert all(len(line) <= 100 for line in lines[1:-1])
    assert [line[:2] for line in lines[1:-1]] == ["- ", "  ", "  "]
    assert " ".join(line.strip() for line in lines[1:-1]) == long.strip()


def test_older_pictures_go(recipe, pages):
    (pages / publish.IMAGES).mkdir(parents=True)
    (pages / publish.IMAGES / "old.png").write_bytes(b"")
    written = list(results(pages)[0].write())
    assert pages / publish.IMAGES / "old.png" in written
    assert publish.held_pictures(pages) == set()


def test_pages_and_pictures_that_are_something_else_are_named(recipe, pages):
    (pages / "README.md").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"README.md: it is not text in UTF-8"):
        results(pages)
    (pages / "README.md").write_text("")
    (pages / publish.IMAGES).parent.mkdir(parents=True)
    (pages / publish.IMAGES).write_text("")
    with pytest.raises(UserError, match="evidence is not a folder, and pictures belong there"):
        results(pages)


def test_a_folder_without_entries_is_not_published(pages):
    before = (pages / "docs/results.md").read_text()
    with pytest.raises(UserError, match="evdence holds no entry of a ledger"):
        build(pages / "evdence", pages)
    assert (pages / "docs/results.md").read_text() == before


def test_a_campaign_goes_on_and_runs_nothing_twice(recipe, pages, monkeypatch):
    run(recipe, pages, 1)
    first = {file: file.stat().st_mtime_ns for file in (pages / "evidence").rglob("*.json")}
    run(recipe, pages, 2)
    assert len(Evidence(pages / "evidence").entries) == 4
    assert all(file.stat().st_mtime_ns == time for file, time in first.items())
    monkeypatch.setattr("calibre.engines.run", lambda *a: pytest.fail("the ledger has it"))
    run(recipe, pages, 2)


def test_nothing_is_built_from_an_edited_entry(recipe, pages):
    run(recipe, pages, 1)
    file = next((pages / "evidence").glob("*/metrics.json"))
    file.write_text(file.read_text().replace("0.", "0.9", 1))
    with pytest.raises(UserError, match=f"{file.parent.name} was changed by hand"):
        results(pages)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("<!-- evidence: tow -->\n<!-- end -->\n", "no evidence 'tow': did you mean 'two'"),
        ("<!-- evidence: two -->\nand no end\n", "has no  <!-- end -->"),
        ("<!--evidence: two-->\n<!-- end -->\n", "does not begin with  <!-- evidence: NAME -->"),
        ("<!-- evidnce: two -->\n<!-- end -->\n", "does not begin with  <!-- evidence: NAME -->"),
    ],
)
def test_markers_that_make_no_sense(recipe, pages, block, said):
    (pages / "README.md").write_text(block)
    with pytest.raises(UserError, match=said):
        results(pages)


def test_a_picture_that_was_damaged_or_drawn_otherwise_is_drawn_again(recipe, pages):
    run(recipe, pages, 1)
    (picture,) = (file for file in results(pages)[0].write() if file.suffix == ".png")
    sound = picture.read_bytes()
    picture.write_bytes(b"garbage")
    assert list(results(pages)[0].write()) == [picture]
    assert picture.read_bytes() == sound


def test_nothing_is_written_where_a_picture_cannot_be_drawn(recipe, pages, monkeypatch):
    run(recipe, pages, 1)
    before = (pages / "docs/results.md").read_text()

    def fails(*_):
        raise UserError("no ink")

    monkeypatch.setattr(publish, "drawn_as", fails)
    with pytest.raises(UserError, match="no ink"):
        list(results(pages)[0].write())
    assert (pages / "docs/results.md").read_text() == before
    assert not (pages / publish.IMAGES).exists()


BLOCKS = {
    "summary", "folders", "main-comparison", "label-budget", "equal-images", "labels-at-novel",
    "novel-classes", "table-1", "calibration-forms", "objectives", "larger-scale",
    "learning-rates", "digits",
}  # fmt: skip


def test_the_pages_of_this_repository_are_what_its_ledger_says():
    """Where it fails:  calibre-fl evidence build  in the repository, and commit what it wrote."""
    made = publish.build(ROOT, Evidence(ROOT / "evidence"))
    for page, text in made.pages.items():
        assert (ROOT / page).read_text(encoding="utf-8") == text
    named = [
        block["name"] for text in made.pages.values() for block in publish.BLOCK.finditer(text)
    ]
    assert sorted(named) == sorted(BLOCKS)  # none has lost its markers
    assert made.unused == ()


def test_the_pictures_of_this_repository_are_what_its_ledger_says():
    """By their pixels, for other machines may pack them otherwise. Where it fails: as above."""
    made = publish.build(ROOT, Evidence(ROOT / "evidence"))
    assert publish.held_pictures(ROOT) == set(made.pictures)
    for name, draw in made.pictures.items():
        kept, drawn = (
            np.asarray(Image.open(file).convert("RGB"), float)
            for file in (ROOT / name, io.BytesIO(drawn_as("png", draw(), publish.DPI)))
        )
        assert kept.shape == drawn.shape
        assert np.abs(kept - drawn).mean() < 1
