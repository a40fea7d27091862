"""What the browser's tests share: the browser, and ways to ask its page."""

from __future__ import annotations

import shutil
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")


def open_browser() -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    # Chromium's own sandbox does not start as root, as tests in a container run.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1280,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


def drawn(browser: Any) -> None:
    ready = "return document.documentElement.dataset.ready === 'all'"
    WebDriverWait(browser, 30).until(lambda driver: driver.execute_script(ready))


def shown_rows(browser: Any) -> list[WebElement]:
    rows = browser.find_elements(By.CSS_SELECTOR, "#layers tbody tr:not([hidden])")
    return list(rows)


def column(browser: Any, index: int) -> list[str]:
    script = """return [...document.querySelectorAll('#layers tbody tr:not([hidden])')]
                .map(row => (row.cells[arguments[0]].querySelector('.title')
                             ?? row.cells[arguments[0]]).textContent)"""
    return list(browser.execute_script(script, index))


def curve(browser: Any) -> str:
    """The drawn lines of the chosen layer's singular values, once they are there."""

    def path(driver: Any) -> str:
        script = """const panel = document.getElementById('detail');
            const row = document.querySelector('#layers tr[aria-selected=true]');
            if (panel.dataset.drawn !== row?.dataset.id) return '';
            return [...panel.querySelectorAll('.mark-line path')].map(p => p.getAttribute('d'))
                .join('|')"""
        return str(driver.execute_script(script))

    return str(WebDriverWait(browser, 10).until(path))


def background(browser: Any) -> str:
    return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))


def system_theme(browser: Any, theme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
