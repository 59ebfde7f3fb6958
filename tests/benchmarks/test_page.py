"""docs/speed.md is what the benchmarks kept. Where it fails:  python -m benchmarks.page"""

import json

import pytest

from benchmarks import page


def test_the_page_tells_what_was_kept():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text
    kept = json.loads(page.LATEST.read_text())
    assert all(f"| {result['name']} | " in text for result in kept)


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (("heads", 10.317, "<= 20", True), "| heads | 10.32 | at most 20 | abc |"),
        (("views", 177927.8, ">= 20000", True), "| views | 177,928 | at least 20,000 | abc |"),
        (("memory", 1.137, "<= 1.10", False), "| memory | **1.137** | at most 1.1 | abc |"),
    ],
)
def test_a_promise_that_is_missed_is_in_bold(result, line, tmp_path, monkeypatch):
    keys = ("name", "ratio", "target", "met")
    kept = [{**dict(zip(keys, result, strict=True)), "commit": "abc"}]
    (tmp_path / "latest.json").write_text(json.dumps(kept))
    monkeypatch.setattr(page, "LATEST", tmp_path / "latest.json")
    assert page.promises().splitlines()[2:] == [line]
