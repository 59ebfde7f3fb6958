"""The page as people meet it: in a real Chromium, with files, keys and a phone's width."""

import csv
import io
from contextlib import contextmanager
from typing import Any

import pytest
from PIL import Image

from calibre.pages.predict import Predictions
from calibre.pages.server import Access, Server
from calibre.personal.bundle import Bundle
from tests.personal.made_bundle import COLOURS, STRANGER, make_bundle, square

HOSTILE = ("<img src=x onerror=window.hacked=1>", "<script>window.hacked=2</script>", "blue " * 30)
TOKEN = "correct-horse-battery-staple"


@contextmanager
def served(bundle: Bundle, pictures: bool = False, **options: Any):
    with (
        Predictions(bundle, body=100_000, pictures=pictures) as made,
        Server(made.routes, port=0, **options).in_background() as running,
    ):
        yield running


@pytest.fixture(scope="module", params=["plain", "hostile"])
def bundle(request):
    names = {"classes": HOSTILE, "client": HOSTILE[1]} if request.param == "hostile" else {}
    return make_bundle(**names)


@pytest.fixture(scope="module")
def server(bundle):
    with served(bundle) as running:
        yield running


@pytest.fixture
def pictures(tmp_path):
    """A square of each colour, a stranger, and a file that is no image."""
    for name, colour in {**COLOURS, "stranger": STRANGER}.items():
        Image.fromarray(square(colour, 42)).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    return tmp_path


def visit(browser: Any, server: Server, width: int = 1200) -> None:
    browser.get_log("browser")  # what went before is forgotten
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(server.url)
    until(browser, "return document.querySelectorAll('#card h2').length > 0")


def until(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 30).until(lambda driver: driver.execute_script(condition))


def choose(browser: Any, *files) -> None:
    """Through the file picker; back when every image has its answer."""
    before = len(browser.find_elements("tag name", "article"))
    browser.find_element("id", "file").send_keys("\n".join(map(str, files)))
    answered(browser, before + len(files))


def answered(browser: Any, count: int) -> None:
    until(browser, f"return document.querySelectorAll('article h2').length === {count}")
    until(browser, "return !document.getElementById('csv').disabled")


def texts(browser: Any, selector: str) -> list[str]:
    return [found.text for found in browser.find_elements("css selector", selector)]


def test_images_chosen_are_answered_beside_their_names(browser, server, bundle, pictures):
    visit(browser, server)
    assert bundle.card.client.split("<")[0] in browser.title
    choose(browser, *(pictures / f"{name}.png" for name in COLOURS), pictures / "stranger.png")
    found = dict(zip(texts(browser, "article .file"), texts(browser, "article h2"), strict=True))
    expected = {
        f"{name}.png": label.strip() for name, label in zip(COLOURS, bundle.classes, strict=True)
    }
    assert found == {**expected, "stranger.png": "none of your classes"}
    shown = browser.execute_script("return document.querySelector('article img').naturalWidth")
    assert shown > 0
    assert texts(browser, "#count") == ["4 images · 1 none of your classes"]
    assert browser.execute_script("return window.hacked === undefined")
    assert browser.get_log("browser") == []


def test_the_surest_come_first_unless_asked_otherwise(browser, server, bundle, pictures):
    from selenium.webdriver.support.ui import Select

    mixed = (square(COLOURS["red"], 7) * 0.8 + square(COLOURS["green"], 7) * 0.2).astype("uint8")
    Image.fromarray(mixed).save(pictures / "mixed.png")
    given = ["broken", "mixed", "stranger", *COLOURS]
    files = [pictures / f"{name}.png" for name in given]
    found = dict(zip((file.name for file in files), bundle.predict(files), strict=True))
    classed = [name for name, answer in found.items() if answer.label is not None]
    strangers = [name for name, answer in found.items() if answer.label is None][1:]
    rising = sorted(classed, key=lambda name: found[name].probability)

    visit(browser, server)
    choose(browser, *files)
    order = Select(browser.find_element("id", "order"))
    assert texts(browser, "article .file") == [*rising[::-1], *strangers, "broken.png"]
    order.select_by_value("unsure")
    assert texts(browser, "article .file") == [*strangers, *rising, "broken.png"]
    order.select_by_value("given")
    assert texts(browser, "article .file") == [f"{name}.png" for name in given]


def test_a_stranger_has_no_bars_and_says_why(browser, server, bundle, pictures):
    visit(browser, server)
    choose(browser, pictures / "stranger.png", pictures / "red.png")
    assert browser.find_elements("css selector", "article.none meter") == []
    assert len(browser.find_elements("css selector", "article:not(.none) meter")) == 3
    (said,) = texts(browser, "article.none")
    assert f"limit {bundle.limit:.2f}" in said
    assert "%" not in said


def test_reasons_for_a_refusal_are_shown(browser, server, pictures):
    Image.new("RGB", (40, 40)).save(pictures / "black.png")
    visit(browser, server)
    choose(browser, pictures / "black.png")
    assert texts(browser, "article.none h2") == ["none of your classes"]
    assert texts(browser, "article.none li") == ["it is blank, or nearly so"]


def test_an_image_dropped_is_answered(browser, server, bundle, pictures):
    visit(browser, server)
    content = list((pictures / "red.png").read_bytes())
    browser.execute_script(
        """
        const given = new DataTransfer();
        given.items.add(new File([new Uint8Array(arguments[0])], "red.png", {type: "image/png"}));
        const drop = document.getElementById("drop");
        for (const kind of ["dragover", "drop"])
          drop.dispatchEvent(new DragEvent(kind, {dataTransfer: given, bubbles: true,
                                                  cancelable: true}));
        """,
        content,
    )
    answered(browser, 1)
    assert texts(browser, "article h2") == [bundle.classes[0].strip()]


def test_what_cannot_be_answered_says_why(browser, server, pictures):
    (pictures / "large.png").write_bytes(b"x" * 100_001)
    visit(browser, server)
    choose(browser, pictures / "broken.png", pictures / "large.png")
    assert texts(browser, "article h2") == ["no answer", "no answer"]
    said = dict(zip(texts(browser, ".bad .file"), texts(browser, ".bad p:last-child"), strict=True))
    assert "send an image file" in said["broken.png"]
    assert "at most" in said["large.png"]
    assert texts(browser, "#count") == ["2 images · 2 without an answer"]


def test_the_answers_are_saved_as_csv(browser, server, bundle, pictures, tmp_path):
    from selenium.webdriver.support.ui import WebDriverWait

    place = tmp_path / "downloads"
    place.mkdir()
    (pictures / "red.png").rename(pictures / '=1+"1",2.png')
    browser.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(place)}
    )
    visit(browser, server)
    files = [pictures / '=1+"1",2.png', pictures / "stranger.png", pictures / "broken.png"]
    choose(browser, *files)
    browser.find_element("id", "csv").click()
    saved = place / "answers.csv"
    WebDriverWait(browser, 30).until(lambda _: saved.exists() and saved.stat().st_size)
    head, *rows = csv.reader(io.StringIO(saved.read_text(encoding="utf-8-sig"), newline=""))
    assert head == ["image", "answer", "nearest", "probability", "distance", "reasons", "error",
                    *(f"p({name})" for name in bundle.classes)]  # fmt: skip
    red, stranger, broken = bundle.predict(files)
    assert rows[0][0] == "'" + files[0].name  # a spreadsheet would have computed it
    assert rows[0][1].lstrip("'") == red.label
    assert float(rows[0][3]) == pytest.approx(red.probability)
    shares = [float(value) for value in rows[0][7:]]
    assert shares == pytest.approx([*red.probabilities.values()], abs=1e-6)
    assert rows[1][1] == stranger.answer
    assert rows[2][:2] == ["broken.png", broken.answer]
    assert "send an image file" in rows[2][6]


def test_the_card_and_its_warnings_are_read_on_the_page(browser):
    made = make_bundle(per_class=4, test=None, classes=("<b>a</b>", "b|c", "d*e`f\\"))
    with served(made) as running:
        visit(browser, running)
        assert texts(browser, "#warnings li") == list(made.card.warnings)
        assert len(made.card.warnings) > 1
        browser.find_element("tag name", "summary").click()
        sections = texts(browser, "#card h2")
        assert sections[:2] == ["Classes", "Are its probabilities right?"]
        cells = texts(browser, "#card table:first-of-type td")
        assert cells[:9:3] == ["<b>a</b>", "b|c", "d*e`f\\"]
        assert cells[1:9:3] == ["4", "4", "4"]
        text = browser.find_element("id", "card").text
        assert "Temperature" in text
        assert "\\" not in text.replace("d*e`f\\", "")
        assert "**" not in text


def test_it_fits_a_phone(browser, server, pictures):
    visit(browser, server, width=360)
    choose(browser, pictures / "blue.png", pictures / "stranger.png")
    browser.find_element("tag name", "summary").click()
    widths = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert widths == [360, 360]
    heights = "return [...document.querySelectorAll('button, select')].map((e) => e.offsetHeight)"
    assert min(browser.execute_script(heights)) >= 44  # a thumb's width


def test_the_keyboard_reaches_everything(browser, server, pictures):
    from selenium.webdriver import ActionChains, Keys

    def press(key: str) -> Any:
        ActionChains(browser).send_keys(key).perform()
        return browser.switch_to.active_element

    visit(browser, server)
    choose(browser, pictures / "red.png")
    browser.execute_script("document.activeElement.blur()")
    assert press(Keys.TAB).get_attribute("id") == "file"
    outline = "return getComputedStyle(document.getElementById('drop')).outlineStyle"
    assert browser.execute_script(outline) == "solid"
    assert press(Keys.TAB).get_attribute("id") == "order"
    assert press(Keys.TAB).get_attribute("id") == "csv"
    assert press(Keys.TAB).tag_name == "summary"
    press(Keys.ENTER)
    assert "Are its probabilities right?" in browser.find_element("id", "card").text


def test_the_token_is_asked_for_once(browser, bundle, pictures):
    with served(bundle, access=Access(token=TOKEN)) as running:
        browser.get(running.url)
        browser.find_element("id", "token").send_keys("wrong\n")
        until(browser, "return document.querySelector('.wrong:not([hidden])') !== null")
        browser.find_element("id", "token").send_keys(TOKEN + "\n")
        until(browser, "return document.querySelectorAll('#card h2').length > 0")
        visit(browser, running)
        choose(browser, pictures / "red.png")
        assert texts(browser, "article h2") == [bundle.classes[0].strip()]
        assert browser.execute_script("return document.cookie") == ""


@pytest.mark.parametrize("pictures", [True, False])
def test_mistakes_are_pictured_on_the_clients_own_machine_only(browser, pictures):
    made = make_bundle(per_class=20, test=3)
    with served(made, pictures) as running:
        visit(browser, running, width=390)
        browser.find_element("tag name", "summary").click()
        assert "What it gets wrong" in texts(browser, "#card h2")
        shown = "return [...document.querySelectorAll('#card img')].map((one) => one.naturalWidth)"
        if pictures:
            until(browser, "return document.querySelector('#card img')?.complete")
            assert browser.execute_script(shown)[0] > 90
            wide = "return document.querySelector('#card img').width"
            assert [browser.execute_script(wide)] == browser.execute_script(shown)  # can be read
        else:
            assert browser.find_elements("css selector", "#card img") == []
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390
