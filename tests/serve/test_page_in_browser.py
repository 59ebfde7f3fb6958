"""The page as people meet it: in a real Chromium, with files, keys and a phone's width."""

import threading
from typing import Any

import pytest
from PIL import Image

from calibre.serve.server import Limits, Server
from tests.personal.made_bundle import COLOURS, STRANGER, make_bundle, square

HOSTILE = ("<img src=x onerror=window.hacked=1>", "<script>window.hacked=2</script>", "blue " * 30)


@pytest.fixture(scope="module", params=["plain", "hostile"])
def server(request):
    names = {"classes": HOSTILE, "client": HOSTILE[1]} if request.param == "hostile" else {}
    made = Server(make_bundle(**names), port=0, limits=Limits(body=100_000))
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


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
    until(browser, "return document.getElementById('accuracy').textContent !== ''")


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


def headings(browser: Any) -> list[str]:
    return [found.text for found in browser.find_elements("css selector", "article h2")]


def test_images_chosen_are_answered(browser, server, pictures):
    names = server.bundle.classes
    visit(browser, server)
    assert server.bundle.card.client.split("<")[0] in browser.title
    choose(browser, *(pictures / f"{name}.png" for name in COLOURS), pictures / "stranger.png")
    expected = ["none of your classes", *(name.strip() for name in reversed(names))]
    assert headings(browser) == expected
    assert len(browser.find_elements("css selector", "article.none")) == 1
    shown = browser.execute_script("return document.querySelector('article img').naturalWidth")
    assert shown > 0
    assert browser.execute_script("return window.hacked === undefined")
    assert browser.get_log("browser") == []


def test_an_image_dropped_is_answered(browser, server, pictures):
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
    assert headings(browser) == [server.bundle.classes[0].strip()]


def test_what_cannot_be_answered_says_why(browser, server, pictures):
    (pictures / "large.png").write_bytes(b"x" * 100_001)
    visit(browser, server)
    choose(browser, pictures / "broken.png")
    choose(browser, pictures / "large.png")
    assert headings(browser) == ["no answer", "no answer"]
    said = [found.text for found in browser.find_elements("css selector", "article.bad p")]
    assert "at most" in said[0]
    assert "send an image file" in said[1]


def test_it_fits_a_phone(browser, server, pictures):
    visit(browser, server, width=360)
    choose(browser, pictures / "blue.png")
    browser.find_element("tag name", "summary").click()
    widths = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert widths == [360, 360]


def test_the_keyboard_reaches_everything(browser, server):
    from selenium.webdriver import ActionChains, Keys

    def press(key: str) -> Any:
        ActionChains(browser).send_keys(key).perform()
        return browser.switch_to.active_element

    visit(browser, server)
    assert press(Keys.TAB).get_attribute("id") == "file"
    outline = "return getComputedStyle(document.getElementById('drop')).outlineStyle"
    assert browser.execute_script(outline) == "solid"
    assert press(Keys.TAB).tag_name == "summary"
    press(Keys.ENTER)
    assert '"format": "calibre-bundle"' in browser.find_element("id", "card").text
