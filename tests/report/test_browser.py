"""The report in a real browser: headless Chromium, driven through selenium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import report_documents as documents

pytest.importorskip("jinja2", reason="the report needs jinja2")
pytest.importorskip("vl_convert", reason="the report needs vl-convert-python")
pytest.importorskip("selenium", reason="these tests drive Chromium through selenium")

from report_browser import (
    CHROMIUM,
    DRIVER,
    background,
    column,
    curve,
    drawn,
    open_browser,
    shown_rows,
    system_theme,
)
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from spectralclip.report import render, render_fragment

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="chromium and chromedriver are not installed: tools/install_chromium.sh",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = open_browser()
    yield driver
    driver.quit()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Opens a page, waits until all is drawn, and in the end asks the console for complaints."""

    def opened(text: str) -> Any:
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        browser.get((tmp_path / "page.html").as_uri())
        browser.execute_script("localStorage.clear()")
        return browser

    yield opened
    assert browser.get_log("browser") == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["audit", "comparison", "nasty", "holes"])
def test_draws_without_complaint_or_network(show: Any, name: str) -> None:
    browser = show(render(getattr(documents, name)()))
    drawn(browser)
    assert browser.find_element(By.ID, "trouble").text == ""
    charts = browser.find_elements(By.CSS_SELECTOR, ".chart")
    assert len(charts) >= 4
    assert all(chart.find_elements(By.CSS_SELECTOR, "svg path") for chart in charts)
    resources = "return performance.getEntriesByType('resource').map(entry => entry.name)"
    assert browser.execute_script(resources) == []
    assert browser.title.startswith("ResNet")


def test_texts_run_nothing(show: Any) -> None:
    browser = show(render(documents.nasty()))
    drawn(browser)
    assert browser.find_elements(By.CSS_SELECTOR, "img") == []
    assert browser.title != "hacked"
    assert all(name.endswith(documents.NASTY) for name in column(browser, 1))
    # The tooltip is the library's own markup: it must show text as well.
    point = browser.find_element(By.CSS_SELECTOR, "#depth-chart .layer_4_marks path")
    webdriver.ActionChains(browser).move_to_element(point).perform()
    tooltip = (By.ID, "vg-tooltip-element")
    WebDriverWait(browser, 5).until(lambda _: "<img" in browser.find_element(*tooltip).text)
    assert browser.find_elements(By.CSS_SELECTOR, "img") == []


def test_empty_document_opens(show: Any) -> None:
    browser = show(render({"format": "spectralclip.audit", "version": 2, "layers": []}))
    drawn(browser)
    assert browser.find_element(By.ID, "trouble").text == ""


def test_sorts_by_every_column(show: Any) -> None:
    document = documents.audit(30)
    browser = show(render(document))
    drawn(browser)
    layers = document["layers"]
    expected = {
        2: lambda row: -row["norm"]["upper"],
        4: lambda row: -row["stable_rank"],
        5: lambda row: -row["parameters"],
    }
    heads = browser.find_elements(By.CSS_SELECTOR, "#layers thead th")
    assert heads[2].get_attribute("aria-sort") == "descending"
    for index, key in expected.items():
        if index != 2:
            heads[index].find_element(By.TAG_NAME, "button").click()
        assert heads[index].get_attribute("aria-sort") == "descending"
        assert column(browser, 1) == [row["name"] for row in sorted(layers, key=key)]
    heads[0].find_element(By.TAG_NAME, "button").click()
    assert column(browser, 0) == [str(place + 1) for place in range(30)]
    heads[0].find_element(By.TAG_NAME, "button").click()
    assert heads[0].get_attribute("aria-sort") == "descending"
    assert column(browser, 0) == [str(30 - place) for place in range(30)]
    assert sum(head.get_attribute("aria-sort") is not None for head in heads) == 1


def test_unbounded_sorts_above_all(show: Any) -> None:
    browser = show(render(documents.holes()))
    drawn(browser)
    norms = column(browser, 2)
    unbounded = [norm.endswith("not bounded") for norm in norms]
    assert unbounded == sorted(unbounded, reverse=True) and unbounded[0] and norms[-1] == "0"


def test_filters(show: Any) -> None:
    document = documents.audit(30)
    browser = show(render(document))
    drawn(browser)
    count = browser.find_element(By.ID, "shown")
    assert count.text == "30 rows"
    find = browser.find_element(By.ID, "filter")
    find.send_keys("BLOCK3 conv2d")
    assert sorted(column(browser, 1)) == ["block3.conv", "block3.conv+block3.bn"]
    assert count.text == "2 of 30 rows"
    find.clear()
    find.send_keys("x", Keys.BACKSPACE)
    for role in ("layer", "chain"):
        browser.find_element(By.CSS_SELECTOR, f"input[value={role}]").click()
        wanted = {row["name"] for row in document["layers"] if row["role"] == role}
        assert set(column(browser, 1)) == wanted
    browser.find_element(By.CSS_SELECTOR, "input[value=all]").click()
    browser.find_element(By.ID, "threshold").send_keys("1.5")
    wanted = {row["name"] for row in document["layers"] if row["norm"]["upper"] > 1.5}
    assert set(column(browser, 1)) == wanted and 0 < len(wanted) < 30


def test_choosing_a_row_changes_the_curve(show: Any) -> None:
    browser = show(render(documents.audit(30)))
    drawn(browser)
    first = curve(browser)
    assert first.count("|") in (0, 2)  # one curve for a layer, three for a chain and its parts
    row = shown_rows(browser)[4]
    name = row.find_element(By.CSS_SELECTOR, ".title").text
    row.click()
    assert curve(browser) != first
    assert browser.find_element(By.CSS_SELECTOR, "#detail h3").text == name
    assert row.get_attribute("aria-selected") == "true"


def test_choosing_in_the_chart_chooses_in_the_table(show: Any) -> None:
    browser = show(render(documents.audit(30)))
    drawn(browser)
    ring = "#depth-chart .layer_3_marks path"
    before = browser.find_element(By.CSS_SELECTOR, ring).get_attribute("transform")
    points = browser.find_elements(By.CSS_SELECTOR, "#depth-chart .layer_4_marks path")
    assert len(points) == 30
    webdriver.ActionChains(browser).move_to_element(points[7]).click().perform()
    chosen = browser.find_element(By.CSS_SELECTOR, "#layers tr[aria-selected=true]")
    assert chosen.get_attribute("data-id") == "7"
    assert browser.find_element(By.CSS_SELECTOR, ring).get_attribute("transform") != before


def test_keyboard_alone(show: Any) -> None:
    browser = show(render(documents.audit(30)))
    drawn(browser)

    def active() -> WebElement:
        element: WebElement = browser.switch_to.active_element
        return element

    def press(*keys: str) -> None:
        webdriver.ActionChains(browser).send_keys(*keys).perform()

    press(Keys.TAB)
    assert active().get_attribute("class") == "skip-link"
    press(Keys.ENTER)
    assert active().get_attribute("id") == "layers"
    for _ in range(6):
        press(Keys.TAB)
    press(Keys.ENTER)
    assert browser.find_elements(By.CSS_SELECTOR, "th[aria-sort]")[0].text.startswith("Parameters")
    press(Keys.TAB)
    assert active().tag_name == "tr"
    outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    press(Keys.HOME)
    assert active().get_attribute("data-id") == shown_rows(browser)[0].get_attribute("data-id")
    press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP, Keys.ENTER)
    assert active().get_attribute("aria-selected") == "true"
    assert active().get_attribute("data-id") == shown_rows(browser)[1].get_attribute("data-id")
    name = active().find_element(By.CSS_SELECTOR, ".title").text
    assert browser.find_element(By.CSS_SELECTOR, "#detail h3").text == name
    press(Keys.END, " ")
    assert active().get_attribute("data-id") == shown_rows(browser)[-1].get_attribute("data-id")
    assert active().get_attribute("aria-selected") == "true"
    press("/")
    assert active().get_attribute("id") == "filter" and active().get_attribute("value") == ""


def test_theme(show: Any) -> None:
    browser = show(render(documents.audit(9)))
    drawn(browser)
    colours = {}
    for theme in ("light", "dark"):
        system_theme(browser, theme)
        colours[theme] = background(browser)
    assert colours["light"] != colours["dark"]
    label = "return getComputedStyle(document.querySelector('#depth-chart text')).fill"
    dark = browser.execute_script(label)
    button = browser.find_element(By.ID, "theme")
    assert button.text.endswith("Auto")
    button.click()
    assert button.text.endswith("Light") and background(browser) == colours["light"]
    assert browser.execute_script(label) != dark  # the charts went along
    system_theme(browser, "light")
    button.click()
    assert button.text.endswith("Dark") and background(browser) == colours["dark"]

    def is_remembered(driver: Any) -> bool:
        driver.refresh()
        drawn(driver)
        return background(driver) == colours["dark"]

    WebDriverWait(browser, 10).until(is_remembered)  # a busy browser stores it a little later


@pytest.mark.parametrize("name", ["audit", "comparison", "nasty"])
def test_phone_does_not_scroll_sideways(browser: Any, show: Any, name: str) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        show(render(getattr(documents, name)()))
        drawn(browser)
        assert browser.execute_script("return document.documentElement.scrollWidth") == 360
        table = browser.find_element(By.ID, "scroll")
        assert table.get_property("scrollWidth") <= table.get_property("clientWidth")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_comparison_shows_both_sides(show: Any) -> None:
    document = documents.comparison(30)
    browser = show(render(document))
    drawn(browser)
    heads = [head.text.split(" ")[0] for head in browser.find_elements(By.CSS_SELECTOR, "thead th")]
    assert heads[:5] == ["#", "Layer", "Before", "After", "Change"]
    assert len(shown_rows(browser)) == 30
    assert curve(browser).count("|") == 1
    for layer in ("layer_3_marks", "layer_4_marks"):
        points = browser.find_elements(By.CSS_SELECTOR, f"#depth-chart .{layer} path")
        assert len(points) == 30


def test_fragment_runs_in_its_frame(show: Any) -> None:
    browser = show(f"<!doctype html><p>notebook</p>{render_fragment(documents.audit(9))}")
    browser.switch_to.frame(browser.find_element(By.TAG_NAME, "iframe"))
    try:
        drawn(browser)
        assert len(shown_rows(browser)) == 9
        browser.find_element(By.ID, "theme").click()
    finally:
        browser.switch_to.default_content()


def test_prints_light_with_everything_unfolded(show: Any) -> None:
    browser = show(render(documents.audit(60)))
    drawn(browser)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Page.printToPDF", {})
    assert browser.execute_script(
        "return [...document.querySelectorAll('details')].every(d=>d.open)"
    )
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark})
    try:
        text = browser.execute_script("return getComputedStyle(document.body).color")
        assert text == "rgb(28, 33, 40)"
        assert not browser.find_element(By.ID, "controls").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


@pytest.mark.parametrize("rows", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_large_document_opens(
    show: Any, record_property: Callable[[str, object], None], rows: int
) -> None:
    browser = show(render(documents.audit(rows)))
    drawn(browser)
    assert len(shown_rows(browser)) == rows
    # For the record; how fast is a matter of the machine.
    record_property("milliseconds", browser.execute_script("return performance.now()"))
