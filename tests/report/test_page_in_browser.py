"""The report page as people meet it: in a real Chromium, with mouse, keys and a phone's width."""

from pathlib import Path
from typing import Any

import pytest

from calibre.report.page import write_page
from calibre.report.runs import Run, read, read_all
from tests.personal.made_bundle import make_bundle
from tests.report.made_run import make_run

HOSTILE = ("<script>window.hacked = 1</script>", "</script><img src=x onerror=window.hacked=2>")
LONG = "a-hospital-with-a-name-that-goes-on-and-on-" * 4


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Run]]:
    """Pages to look at, by name."""
    folder = tmp_path_factory.mktemp("runs")
    few = make_run(folder / "few", 7, 3, failing=[2], warnings=["the encoder has collapsed"])
    rival = make_run(folder / "rival", 7, 3, better=0.1, changes=["method.name=fedrep"])
    many = make_run(folder / "many", 8_000, 2_000, classes=[f"class {i}" for i in range(100)])
    hostile = make_run(
        folder / "<b>hostile", 2, 1, names=[*HOSTILE, LONG], classes=[*HOSTILE, LONG]
    )
    bare = make_run(folder / "bare", 1, 0, rounds=1, floors=(), changes=["method.name=fedavg"])
    pages = {"few": [few], "many": [many], "hostile": [hostile], "bare": [bare]}
    return {
        "two": read_all([few, rival]),
        **{name: [read(folder) for folder in folders] for name, folders in pages.items()},
    }


def visit(
    browser: Any, runs: list[Run], tmp_path: Path, width: int = 1200, dark: bool = False
) -> None:
    """Open the page of these runs, as wide and as dark as asked."""
    page = tmp_path / "page.html"
    write_page(runs, page)
    browser.get_log("browser")  # what went before is forgotten
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get(page.as_uri())
    wait_for_drawing(browser)


def wait_for_drawing(browser: Any) -> None:
    """Plots are drawn once their size is known: a frame later."""
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def column(browser: Any, number: int) -> list[str]:
    """The cells of a column of the table of clients."""
    script = (
        "return [...document.querySelectorAll('.clients tbody tr')].map(r => r.cells[%d].innerText)"
    )
    return list(browser.execute_script(script % number))


def heading(browser: Any, text: str) -> Any:
    buttons = browser.find_elements("css selector", ".clients th button")
    return next(button for button in buttons if button.text.startswith(text))


def plot_in_view(browser: Any, name: str) -> Any:
    """A plot in the middle of the window, where it stays: a page that is scrolled hides its tip."""
    plot = browser.find_element("class name", name)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    wait_for_drawing(browser)
    return plot


def tip(browser: Any) -> str:
    return str(browser.find_element("id", "tip").text)


def painted(browser: Any) -> list[int]:
    """How many pixels each plot that is to be seen has painted."""
    script = """
      const plots = [...document.querySelectorAll('.plot')];
      return plots.filter((plot) => plot.checkVisibility()).map((plot) => {
        const canvas = plot.querySelector('canvas');
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return pixels.filter((value, i) => i % 4 === 3 && value > 0).length;
      });"""
    return list(browser.execute_script(script))


@pytest.mark.parametrize("name", ["few", "many", "two", "hostile", "bare"])
@pytest.mark.parametrize("width", [1200, 360])
def test_the_page_loads_without_errors_and_fits(
    browser: Any, runs: dict[str, list[Run]], tmp_path: Path, name: str, width: int
) -> None:
    visit(browser, runs[name], tmp_path, width)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    plots = painted(browser)
    assert len(plots) >= 2
    assert min(plots) > 200
    assert browser.execute_script("return window.hacked") is None


def test_the_table_of_clients_sorts(
    browser: Any, runs: dict[str, list[Run]], tmp_path: Path
) -> None:
    visit(browser, runs["few"], tmp_path)
    clients = runs["few"][0].clients
    worst_first = sorted(f"{100 * client.accuracy:05.2f}" for client in clients)
    assert [f"{float(cell):05.2f}" for cell in column(browser, 2)] == worst_first
    heading(browser, "accuracy").click()
    assert [f"{float(cell):05.2f}" for cell in column(browser, 2)] == worst_first[::-1]
    heading(browser, "client").click()
    assert column(browser, 0) == sorted(client.name for client in clients)
    heading(browser, "labelled").send_keys("\n")  # by keys too
    assert column(browser, 6) == [str(n) for n in sorted(client.samples for client in clients)]


def test_small_tables_sort_too(browser: Any, runs: dict[str, list[Run]], tmp_path: Path) -> None:
    visit(browser, runs["two"], tmp_path)
    table = browser.find_element("css selector", "#comparison table")

    def means() -> list[float]:
        cells = table.find_elements("css selector", "tbody td:nth-child(3)")
        return [float(cell.get_attribute("data-value")) for cell in cells]

    shown = means()
    assert len(shown) == 8  # two methods and two floors; trained and novel clients
    table.find_element("css selector", "th:nth-child(3) button").click()
    assert means() == sorted(shown)
    table.find_element("css selector", "th:nth-child(3) button").click()
    assert means() == sorted(shown, reverse=True) != shown


def test_ten_thousand_rows_stay_quick(
    browser: Any, runs: dict[str, list[Run]], tmp_path: Path
) -> None:
    visit(browser, runs["many"], tmp_path)
    clients = runs["many"][0].clients
    assert len(column(browser, 0)) == 50
    assert "1–50 of 10,000" in browser.find_element("class name", "range").text
    browser.find_element("class name", "on").click()
    assert "51–100 of 10,000" in browser.find_element("class name", "range").text
    scores = sorted(client.accuracy for client in clients)
    assert [float(cell) for cell in column(browser, 2)] == pytest.approx(
        [100 * score for score in scores[50:100]]
    )
    took = browser.execute_script(
        "const began = performance.now(); arguments[0].click(); return performance.now() - began",
        heading(browser, "client"),
    )
    assert took < 2000  # milliseconds; about 30 on a quiet machine
    assert column(browser, 0)[:3] == ["client-0", "client-1", "client-2"]

    heading(browser, "accuracy").click()
    search = browser.find_element("css selector", "input[type=search]")
    search.send_keys("client-77")
    found = [client.name for client in clients if "client-77" in client.name]
    assert f"of {len(found)}" in browser.find_element("class name", "range").text
    worst_first = sorted(found, key=lambda name: (clients[int(name[7:])].accuracy, int(name[7:])))
    assert worst_first[0] != "client-77"
    worst_first.remove("client-77")
    assert column(browser, 0) == ["client-77", *worst_first[:49]]  # itself, then its namesakes


def test_clients_that_lose_by_the_federation_are_listed_apart(
    browser: Any, runs: dict[str, list[Run]], tmp_path: Path
) -> None:
    visit(browser, runs["few"], tmp_path)
    from selenium.webdriver.support.select import Select

    Select(browser.find_element("css selector", ".clients select")).select_by_visible_text(
        "better off alone"
    )
    behind = {c.name for c in runs["few"][0].clients if c.accuracy < c.floors["local"]}
    assert behind
    assert set(column(browser, 0)) == behind


def test_the_plot_names_the_client_under_the_mouse(
    browser: Any, runs: dict[str, list[Run]], tmp_path: Path
) -> None:
    from selenium.webdriver import ActionChains

    visit(browser, runs["few"], tmp_path)
    assert not browser.find_element("id", "tip").is_displayed()
    plot = plot_in_view(browser, "rank")
    browser.execute_script(
        "window.seen = []; const tip = document.getElementById('tip');"
        "new MutationObserver(() => seen.push(tip.innerText)).observe(tip, {childList: true})"
    )
    right, down = plot.size["width"] // 2, plot.size["height"] // 2
    mouse = ActionChains(browser, duration=0)
    for x in range(-right + 5, right, 35):
        for y in range(-down + 55, down - 40, 35):
            mouse.move_to_element_with_offset(plot, x, y)
    mouse.perform()
    tips = [text.splitlines() for text in browser.execute_script("return seen")]
    seen = {lines[0].rpartition(" (")[0]: lines for lines in tips}
    clients = runs["few"][0].clients
    assert seen.keys() == {client.name for client in clients}
    for client in clients:
        told = [line.replace("\xa0", " ") for line in seen[client.name]]
        assert f"{100 * client.accuracy:.1f} %" in told
        assert f"{100 * client.floors['local']:.1f} %" in told
        assert str(client.samples) in told
    ActionChains(browser).move_to_element(browser.find_element("tag name", "h1")).perform()
    assert not browser.find_element("id", "tip").is_displayed()


def test_the_plot_is_walked_by_keys_from_worst_to_best(
    browser: Any, runs: dict[str, list[Run]], tmp_path: Path
) -> None:
    from selenium.webdriver.common.keys import Keys

    visit(browser, runs["few"], tmp_path)
    browser.find_element("css selector", ".rank-legend button:nth-child(2)").click()
    browser.find_element("css selector", ".rank-legend button:nth-child(3)").click()
    plot = plot_in_view(browser, "rank")
    names = []
    for _ in range(10):
        plot.send_keys(Keys.ARROW_RIGHT)
        names.append(tip(browser).splitlines()[0].rpartition(" (")[0])
    clients = runs["few"][0].clients
    ranked = sorted(clients, key=lambda client: (client.novel, client.accuracy, client.id))
    assert names == [client.name for client in ranked]
    ring = browser.execute_script(
        "const over = document.querySelector('.scatters .plot canvas:last-child');"
        "const pixels = over.getContext('2d').getImageData(0, 0, over.width, over.height).data;"
        "return pixels.some((value) => value > 0)"
    )
    assert ring  # the other plots mark the same client
    plot.send_keys(Keys.ENTER)  # finds it in the table
    assert column(browser, 0) == [ranked[-1].name]
    plot.send_keys(Keys.ESCAPE)
    assert not browser.find_element("id", "tip").is_displayed()


def test_a_run_that_is_opened_is_drawn(
    browser: Any, runs: dict[str, list[Run]], tmp_path: Path
) -> None:
    visit(browser, runs["two"], tmp_path)
    before = len(painted(browser))
    browser.find_element("css selector", ".links li:nth-child(2) a").click()
    wait_for_drawing(browser)
    plots = painted(browser)
    assert len(plots) > before
    assert min(plots) > 200


def test_a_series_can_be_hidden(browser: Any, runs: dict[str, list[Run]], tmp_path: Path) -> None:
    visit(browser, runs["few"], tmp_path)
    button = browser.find_element("css selector", ".rank-legend button:nth-child(2)")
    assert (button.text, button.get_attribute("aria-pressed")) == ("untrained encoder", "true")
    before = painted(browser)[0]
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert painted(browser)[0] < before


def test_it_is_dark_where_people_want_it_dark_and_light_on_paper(
    browser: Any, runs: dict[str, list[Run]], tmp_path: Path
) -> None:
    def brightness() -> int:
        script = "return getComputedStyle(document.body).backgroundColor"
        return int(browser.execute_script(script).split("(")[1].split(",")[0])

    visit(browser, runs["few"], tmp_path, dark=True)
    assert brightness() < 60
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert brightness() == 255
    visit(browser, runs["few"], tmp_path)
    assert brightness() == 255


def test_names_from_elsewhere_stay_text(
    browser: Any, runs: dict[str, list[Run]], tmp_path: Path
) -> None:
    from selenium.webdriver.common.keys import Keys

    visit(browser, runs["hostile"], tmp_path)
    assert set(column(browser, 0)) == {*HOSTILE, LONG}
    for name in ("rank", "heat"):
        plot = plot_in_view(browser, name)
        for _ in range(4):
            plot.send_keys(Keys.ARROW_RIGHT)
            assert tip(browser)
    assert browser.find_elements("tag name", "img") == []
    assert browser.execute_script("return window.hacked") is None


def test_what_a_model_gets_wrong_is_shown_for_the_client_chosen(browser, tmp_path):
    from selenium.webdriver.support.ui import Select

    hostile = (HOSTILE[0], "plain", LONG)
    run = make_run(tmp_path / "run", 2, 0, names=["a", HOSTILE[1]])
    facts = {"experiment": read(run).metrics.experiment, "seed": 0}
    for place, name in (("0", "a"), ("1", HOSTILE[1])):
        made = make_bundle(per_class=20, test=3, client=name, classes=hostile, run=facts)
        made.save(run / "bundles" / place)
    visit(browser, [read(run)], tmp_path, width=390)
    section = browser.find_element("css selector", ".mistaken")
    assert "On 60 images, by cross-validation" in section.text
    first = [row.text.split()[0] for row in section.find_elements("css selector", ".recalls tr")]
    assert first[0] == "class"
    assert len(first) == 1 + 3
    Select(section.find_element("tag name", "select")).select_by_index(1)
    assert "plain" in section.find_element("css selector", ".recalls").text
    assert browser.execute_script("return window.hacked === undefined")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    assert browser.get_log("browser") == []
