"""Labelling as people do it: in a real Chromium, with keys, and with a finger on a phone."""

import csv
from typing import Any

import pytest

from calibre.data import labels_file
from calibre.pages.server import Server
from calibre.personal.bundle_folder import BundleThereError
from tests.finished.made_learner import folder_of_digits, started
from tests.pages.test_label import served
from tests.pages.test_page_in_browser import until

HOSTILE = "<img src=x onerror=window.hacked=1>"


@pytest.fixture
def folder(tmp_path):
    return folder_of_digits(tmp_path / "clinic")


def written(folder) -> dict[str, str]:
    if not (folder / "labels.csv").exists():
        return {}
    with (folder / "labels.csv").open(newline="") as file:
        return {row["path"]: row["label"] for row in csv.DictReader(file)}


def visit(browser: Any, server: Server, width: int = 1200, height: int = 900) -> None:
    browser.get_log("browser")
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    touch = {"enabled": width < 600}
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", touch)
    browser.get(server.url)
    until(browser, "return document.getElementById('progress').textContent !== ''")


def text(browser: Any, name: str) -> str:
    return browser.find_element("id", name).text


def progress(browser: Any, said: str) -> None:
    says(browser, "progress", said)


def says(browser: Any, name: str, said: str) -> None:
    until(browser, f"return document.getElementById('{name}').textContent.includes('{said}')")


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def tap(browser: Any, element: Any) -> None:
    """A finger, down and up, as one order: a finger that rests for long presses nothing."""
    from selenium.webdriver.common.actions import interaction
    from selenium.webdriver.common.actions.action_builder import ActionBuilder
    from selenium.webdriver.common.actions.pointer_input import PointerInput

    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    finger = PointerInput(interaction.POINTER_TOUCH, "finger")
    order = ActionBuilder(browser, mouse=finger, duration=0)
    order.pointer_action.move_to(element).pointer_down().pointer_up()
    order.perform()


def button(browser: Any, place: str, said: str) -> Any:
    return next(
        each
        for each in browser.find_elements("css selector", f"#{place} button")
        if each.text.split("\n")[-1].strip().endswith(said)
    )


def test_keys_label_skip_undo_and_say_not_sure(browser, folder):
    labelling = started(folder, classes=["cat", "dog"])
    with served(labelling) as server:
        visit(browser, server)
        first = text(browser, "name")
        press(browser, "2")
        progress(browser, "1 labelled")
        assert written(folder) == {first: "dog"}
        second = text(browser, "name")
        assert second != first
        press(browser, "s")
        until(browser, f"return document.getElementById('name').textContent !== '{second}'")
        third = text(browser, "name")
        press(browser, "n")
        progress(browser, "1 not sure")
        assert written(folder) == {first: "dog", third: ""}
        press(browser, "u")
        progress(browser, "1 labelled · 35")
        assert text(browser, "name") == third
        press(browser, "u")
        progress(browser, "0 labelled")
        assert written(folder) == {}
        assert browser.get_log("browser") == []


def test_a_new_class_is_typed_and_then_has_a_key(browser, folder):
    from selenium.webdriver import Keys

    with served(started(folder, classes=["cat"])) as server:
        visit(browser, server)
        press(browser, "/")
        press(browser, HOSTILE)
        assert text(browser, "give") == "New class"
        press(browser, Keys.ENTER)
        progress(browser, "1 labelled")
        assert [*written(folder).values()] == [HOSTILE]
        press(browser, "2")
        progress(browser, "2 labelled")
        assert [*written(folder).values()] == [HOSTILE] * 2
        assert browser.execute_script("return window.hacked === undefined")


def test_more_than_nine_classes_are_searched(browser, folder):
    names = [f"class {letter}" for letter in "abcdefghijklmn"]
    with served(started(folder, classes=names)) as server:
        visit(browser, server)
        assert len(browser.find_elements("css selector", "#classes button")) == 9
        assert len(browser.find_elements("css selector", "#found button")) == 5
        browser.find_element("id", "search").send_keys("S M")
        (found,) = browser.find_elements("css selector", "#found button")
        assert found.text == "class m"
        found.click()
        progress(browser, "1 labelled")
        assert [*written(folder).values()] == ["class m"]


def test_the_estimate_its_interval_and_its_growth_are_shown(browser, folder):
    with served(started(folder, classes=["0", "1", "2"])) as server:
        visit(browser, server)
        says(browser, "estimate", "Not known yet")
        for count in range(1, 13):
            press(browser, str(int(text(browser, "name")[0]) + 1))
            progress(browser, f"{count} labelled")
        says(browser, "estimate", "12 labels")
        assert "100.0 % right (95 % interval 75.8 % to 100.0 %)" in text(browser, "estimate")
        assert browser.find_element("css selector", "#growth polygon").is_displayed()
        line = browser.find_element("css selector", "#growth polyline").get_attribute("points")
        assert len(line.split()) >= 2
        shown = browser.find_elements("css selector", "#counts dd")
        assert sum(int(each.text) for each in shown) == 12


def test_the_models_guess_comes_only_on_request(browser, folder):
    with served(started(folder, classes=["0", "1", "2"])) as server:
        visit(browser, server)
        for count in range(1, 10):
            press(browser, str(int(text(browser, "name")[0]) + 1))
            progress(browser, f"{count} labelled")
        assert text(browser, "guess") == ""
        truth = text(browser, "name")[0]
        press(browser, "g")
        says(browser, "guess", "model says")
        assert text(browser, "guess").startswith(f"The model says: {truth} ")


def test_a_label_is_corrected_on_the_contact_sheet(browser, folder):
    with served(started(folder, classes=["cat", "dog"])) as server:
        visit(browser, server)
        name = text(browser, "name")
        press(browser, "1")
        progress(browser, "1 labelled")
        browser.find_element("css selector", "#seen summary").click()
        until(browser, "return document.querySelectorAll('#sheet button').length === 1")
        browser.find_element("css selector", "#sheet button").click()
        assert text(browser, "name") == name
        press(browser, "2")
        until(browser, "return document.querySelector('#sheet span')?.textContent === 'dog'")
        assert written(folder) == {name: "dog"}


def test_another_window_and_another_program_are_noticed(browser, folder):
    labelling = started(folder, classes=["cat", "dog"])
    with served(labelling) as server:
        visit(browser, server)
        index = labelling.state()["queue"][0]["index"]
        labelling.label(index, "cat", None)  # as another window would
        press(browser, "2")
        until(browser, "return !document.getElementById('message').hidden")
        assert "somebody was quicker" in text(browser, "message")
        progress(browser, "1 labelled")
        assert written(folder) == {labelling.name(index): "cat"}
        other = labelling.state()["queue"][0]["index"]
        rows = labels_file.read(folder / "labels.csv")
        labels_file.write(folder / "labels.csv", [*rows, (labelling.name(other), "cow", "")])
        progress(browser, "2 labelled")  # by itself
        assert "Another program changed" in text(browser, "message")


def test_when_the_command_ends_the_page_says_so_and_nothing_is_lost(browser, folder):
    labelling = started(folder, classes=["cat"])
    with served(labelling) as server:
        visit(browser, server)
        press(browser, "1")
        progress(browser, "1 labelled")
    press(browser, "1")
    says(browser, "message", "has ended")
    assert len(written(folder)) == 1
    assert started(folder).state()["labelled"] == 1


def test_the_model_is_made_and_replaced_on_request_only(browser, folder):
    made = []

    def make(replace):
        if made and not replace:
            raise BundleThereError("There is a model already.")
        made.append(replace)
        card = (
            "# Model\n\n**Warning:** one image of a cat\n\n| is | cat |\n| --- | --- |\n| cat | 1 |"
        )
        return {"bundle": "bundles/clinic", "labels": 1, "accuracy": "not known", "card": card,
                "older": "bundles/clinic-old-1" if replace else None}  # fmt: skip

    with served(started(folder, classes=["cat"]), make) as server:
        visit(browser, server)
        assert not browser.find_element("id", "make").is_enabled()
        press(browser, "1")
        progress(browser, "1 labelled")
        browser.find_element("id", "make").click()
        says(browser, "made", "Made from 1")
        browser.find_element("css selector", "#about summary").click()
        assert "one image of a cat" in text(browser, "card")
        assert browser.find_element("css selector", "#card td").text == "cat"
        browser.find_element("id", "make").click()
        until(browser, "return !document.getElementById('replace').hidden")
        assert made == [False]
        browser.find_element("id", "replace").click()
        says(browser, "made", "old-1")
        assert made == [False, True]


def test_every_part_of_an_enlarged_image_can_be_seen(browser, folder):
    corners = """
      const [frame, image] = ["large", "closer"].map((id) => document.getElementById(id));
      frame.scrollTo(0, 0);
      const first = image.getBoundingClientRect();
      frame.scrollTo(1e6, 1e6);
      const last = image.getBoundingClientRect();
      return [first.left >= 0, first.top >= 0, last.right <= innerWidth + 1,
              last.bottom <= innerHeight + 1, first.width > innerWidth];
    """
    with served(started(folder, classes=["cat"])) as server:
        for width, height in ((600, 900), (390, 844)):
            visit(browser, server, width, height)
            until(browser, "return document.getElementById('image').naturalWidth > 0")
            press(browser, "z")
            until(browser, "return document.getElementById('closer').clientWidth > innerWidth")
            assert browser.execute_script(corners) == [True] * 5
            press(browser, "z")
            until(browser, "return document.getElementById('large').hidden")


def test_an_image_is_enlarged_where_it_was_pressed(browser, folder):
    from selenium.webdriver import ActionChains

    with served(started(folder, classes=["cat"])) as server:
        visit(browser, server)
        until(browser, "return document.getElementById('image').naturalWidth > 0")
        place = browser.find_element("id", "zoom")
        side = place.size["height"]
        ActionChains(browser).move_to_element_with_offset(
            place, -side // 3, -side // 3
        ).click().perform()
        until(browser, "return document.getElementById('closer').clientWidth > 0")
        until(browser, "return document.getElementById('large').scrollTop === 0")
        browser.find_element("id", "large").click()
        ActionChains(browser).move_to_element_with_offset(place, 0, side // 3).click().perform()
        until(browser, "return document.getElementById('large').scrollTop > 300")
        left, wide = browser.execute_script(
            "const it = document.getElementById('large'); return [it.scrollLeft, it.scrollWidth]"
        )
        assert left == pytest.approx((wide - 1200) / 2, abs=20)


def test_on_a_phone_the_image_stays_in_sight_of_all_classes(browser, folder):
    names = [f"a class with a long name that goes on, {letter}" for letter in "abcdefghijklmn"]
    with served(started(folder, classes=names)) as server:
        visit(browser, server, 390, 844)
        last = browser.find_elements("css selector", "#found button")[-1]
        browser.execute_script("arguments[0].scrollIntoView({block: 'end'})", last)
        place = "return arguments[0].getBoundingClientRect()"
        seen = browser.execute_script(place, browser.find_element("id", "image"))
        assert seen["top"] >= 0
        assert seen["bottom"] < browser.execute_script(place, last)["top"] < 844


def test_a_page_opened_while_the_file_makes_no_sense_comes_by_itself(browser, folder):
    labelling = started(folder, classes=["cat"])
    with served(labelling) as server:
        (folder / "labels.csv").write_text("path,label,time\nodd row\n")
        browser.get(server.url)
        says(browser, "message", "row 2 has 1 columns")
        (folder / "labels.csv").unlink()
        progress(browser, "0 labelled")
        assert not browser.find_element("id", "message").is_displayed()


def test_all_that_was_labelled_can_be_looked_at(browser, tmp_path):
    folder = folder_of_digits(tmp_path / "many", each=110)
    rows = [(file.name, file.name[0], "") for file in folder.glob("*.png")]
    labels_file.write(folder / "labels.csv", rows)
    with served(started(folder)) as server:
        visit(browser, server)
        browser.find_element("css selector", "#seen summary").click()
        until(browser, "return document.querySelectorAll('#sheet button').length === 300")
        browser.find_element("id", "more").click()
        until(browser, "return document.querySelectorAll('#sheet button').length === 330")
        assert not browser.find_element("id", "more").is_displayed()


def test_buttons_stay_under_a_finger_when_others_label(browser, folder):
    labelling = started(folder, classes=["cat", "dog"])
    with served(labelling) as server:
        visit(browser, server)
        pressed = button(browser, "classes", "dog")
        index = labelling.state()["queue"][-1]["index"]
        labelling.label(index, "cat", None)  # as another window would
        progress(browser, "1 labelled")  # by itself
        pressed.click()
        progress(browser, "2 labelled")
        labelling.label(labelling.state()["queue"][-1]["index"], "cow", None)
        until(browser, "return document.querySelectorAll('#classes button').length === 3")


def test_what_was_asked_before_a_label_is_not_shown_after_it(browser, folder):
    labelling = started(folder, classes=["cat", "dog"])
    with served(labelling) as server:
        visit(browser, server)
        browser.execute_script(SLOW_STATE)
        until(browser, "return window.asked")
        press(browser, "1")
        progress(browser, "1 labelled")
        browser.execute_script("window.answer()")
        until(browser, "return window.then")
        assert browser.execute_script("return window.then").startswith("1 labelled")


SLOW_STATE = """
const real = window.fetch;
window.fetch = async (path, how) => {
  if (path !== "state" || window.asked) return real(path, how);
  window.asked = true;
  const reply = await real(path, how), found = await reply.json();
  await new Promise((go) => { window.answer = go; });
  setTimeout(() => { window.then = document.getElementById("progress").textContent; }, 0);
  return { ok: true, json: async () => found };
};
"""


def test_on_a_phone_a_finger_labels_zooms_and_undoes(browser, folder):
    labelling = started(folder, classes=["cat", "dog"])
    with served(labelling) as server:
        visit(browser, server, 390, 844)
        shown = "return document.getElementById('image').naturalWidth > 0"
        until(browser, shown)
        tap(browser, browser.find_element("id", "zoom"))
        until(browser, "return document.body.classList.contains('zoomed')")
        tap(browser, browser.find_element("id", "large"))
        until(browser, "return !document.body.classList.contains('zoomed')")
        name = text(browser, "name")
        tap(browser, button(browser, "classes", "dog"))
        progress(browser, "1 labelled")
        assert written(folder) == {name: "dog"}
        tap(browser, browser.find_element("id", "undo"))
        progress(browser, "0 labelled")
        browser.execute_script("scrollTo(0, 0)")
        widths = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert widths == [390, 390]
        heights = (
            "return [...document.querySelectorAll('button, input')]"
            ".filter((e) => e.offsetParent).map((e) => e.offsetHeight)"
        )
        assert min(browser.execute_script(heights)) >= 44
        for count in range(1, 5):
            tap(browser, button(browser, "classes", "dog"))
            progress(browser, f"{count} labelled")
        until(
            browser,
            "return document.querySelector('#growth text')?.getBoundingClientRect().height > 0",
        )
        drawn = "return document.querySelector('#growth text').getBoundingClientRect().height"
        assert browser.execute_script(drawn) >= 13  # as large as on a desk
        browser.execute_script("scrollTo(0, 0)")
        low = browser.execute_script(
            "return document.querySelector('#classes button').getBoundingClientRect().bottom"
        )
        assert low < 844  # image and classes are seen together
