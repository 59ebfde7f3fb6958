"""A run watched in a real Chromium: it goes on, fails, ends, and its report opens."""

from typing import Any

import pytest

from calibre.pages.server import Server
from calibre.report import events
from tests.pages.test_page_in_browser import texts, until
from tests.pages.test_watch import watched
from tests.report.made_run import make_run
from tests.report.test_live import beginning

HOSTILE = "<img src=x onerror=window.hacked=1>"


def visit(browser: Any, server: Server, width: int = 1200) -> None:
    browser.get_log("browser")
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(server.url)
    until(browser, "return document.getElementById('said').textContent !== ''")


def says(browser: Any, name: str, said: str) -> None:
    until(browser, f"return document.getElementById('{name}').textContent.includes(\"{said}\")")


def test_the_page_follows_the_run(browser, tmp_path):
    folder = beginning(tmp_path / "run", 6, failing=[2])
    with watched(folder) as server:
        visit(browser, server)
        says(browser, "said", "6 of 20 rounds")
        assert browser.find_element("id", "bar").get_attribute("value") == "6"
        assert texts(browser, "#failures li") == ["round 1, c: <b>ran out"]
        assert "c (1)" in texts(browser, "#often")[0]
        charts = len(browser.find_elements("css selector", ".curves canvas"))
        log = folder / "events.jsonl"
        events.append(log, events.RoundDone(round=7, clients={0: {"loss": 0.5}}, seconds=1.0))
        events.append(log, events.Warned(text=HOSTILE))
        says(browser, "said", "7 of 20 rounds")
        assert texts(browser, "#warnings li") == [HOSTILE]
        assert len(browser.find_elements("css selector", ".curves canvas")) == charts > 0
        assert browser.execute_script("return window.hacked === undefined")
        assert "7 of 20" in browser.title
        assert browser.get_log("browser") == []


def test_charts_are_drawn_and_answer_the_keyboard(browser, tmp_path):
    with watched(beginning(tmp_path / "run", 6)) as server:
        visit(browser, server)
        until(browser, "return document.querySelectorAll('.curves canvas').length > 0")
        chart = browser.find_element("css selector", ".curves .plot")
        assert "loss by round" in chart.get_attribute("aria-label")
        ink = (
            "const c = document.querySelector('.curves canvas');"
            "const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "return p.some((value) => value > 0)"
        )
        until(browser, ink)
        chart.send_keys("\ue014")  # the arrow to the right
        until(browser, "return !document.getElementById('tip').hidden")
        assert "loss, round 1" in browser.find_element("id", "tip").text


def test_a_run_that_ends_leads_to_its_report(browser, tmp_path):
    folder = beginning(tmp_path / "run", 6)
    with watched(folder) as server:
        visit(browser, server)
        assert not browser.find_element("id", "report").is_displayed()
        make_run(folder, 4, 2, rounds=6)
        says(browser, "said", "Finished")
        assert len(texts(browser, "#results tbody tr")) == 6
        browser.find_element("id", "report").click()
        until(browser, "return document.querySelectorAll('.clients tbody tr').length > 0")
        assert "Mean and fairness" in browser.find_element("tag name", "body").text
        assert browser.get_log("browser") == []


@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits(browser, tmp_path, width):
    folder = beginning(tmp_path / ("a-long-name-" * 12), 6, failing=[0, 1, 2])
    events.append(folder / "events.jsonl", events.Warned(text="x" * 300))
    with watched(folder) as server:
        visit(browser, server, width)
        until(browser, "return document.querySelectorAll('.curves canvas').length > 0")
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width  # less by the bar to scroll with


def test_a_server_that_is_gone_is_told(browser, tmp_path):
    with watched(beginning(tmp_path / "run", 6)) as server:
        visit(browser, server)
    says(browser, "said", "watch has stopped")
