"""Takes the pictures of the report that the documentation shows.

Run from the root of the repository, with the JSON of an audit and of a comparison:

    python tools/screenshots.py audit.json comparison.json

Writes report-light.png, report-dark.png, report-phone.png and report-comparison.png into
docs/images. Needs chromium, chromedriver and selenium.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from spectralclip.report import render

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
LARGEST = 300_000  # bytes of one picture


class Picture(NamedTuple):
    """One picture: of which document, how wide and high, in which theme."""

    name: str
    document: str
    width: int
    height: int
    theme: str


PICTURES = (
    Picture("report-light.png", "audit", 1200, 1700, "light"),
    Picture("report-dark.png", "audit", 1200, 1700, "dark"),
    Picture("report-phone.png", "audit", 360, 1500, "light"),
    Picture("report-comparison.png", "comparison", 1200, 1700, "light"),
)


def open_browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser") or ""
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def photograph(browser: webdriver.Chrome, page: Path, picture: Picture) -> bytes:
    """The top of the page, once every chart is drawn."""
    size: dict[str, Any] = {"width": picture.width, "height": picture.height}
    size |= {"deviceScaleFactor": 1, "mobile": picture.width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": picture.theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(page.as_uri())
    ready = "return document.documentElement.dataset.ready === 'all'"
    WebDriverWait(browser, 30).until(lambda driver: driver.execute_script(ready))
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    return base64.b64decode(shot["data"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("audit", type=Path, help="JSON of an audit")
    parser.add_argument("comparison", type=Path, help="JSON of a comparison")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder for the pictures")
    arguments = parser.parse_args()
    browser = open_browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.html"
            for picture in PICTURES:
                source: Path = getattr(arguments, picture.document)
                page.write_text(render(json.loads(source.read_text())), encoding="utf-8")
                data = photograph(browser, page, picture)
                if len(data) > LARGEST:
                    raise SystemExit(f"{picture.name}: {len(data)} bytes, more than {LARGEST}")
                (arguments.out / picture.name).write_bytes(data)
                print(f"{picture.name}: {len(data) // 1000} kB")
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
