"""The documentation's site: it builds without a warning, and is read without a network."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from docs_blocks import ROOT

NEEDED = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        # Not --quiet: it hides warnings from --strict too.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        # The theme advertises its successor on the error stream.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


class Found(HTMLParser):
    """What a page loads, what it links to, and the places in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if "src" in given:
            self.loads.append(given["src"])
        if "href" in given and tag == "link":
            self.loads.append(given["href"])
        if "href" in given and tag == "a":
            self.links.append(given["href"])


def test_each_page_is_there(site: Path) -> None:
    sources = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert len(sources) > 30
    assert [path for path in sources if not (site / path).with_suffix(".html").is_file()] == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for address in Found(page).loads:
            assert not urlsplit(address).netloc, f"{page.name} loads {address}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text("utf-8"))


def test_links_lead_somewhere(site: Path) -> None:
    pages = {page.resolve(): Found(page) for page in site.rglob("*.html")}
    for page, found in pages.items():
        if page.name == "404.html":
            continue
        for address in (*found.loads, *found.links):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert target.exists(), f"{page.name}: {address}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].places, f"{page.name}: {address}"


def test_the_reference_shows_signatures_and_examples(site: Path) -> None:
    text = (site / "api" / "bounds.html").read_text(encoding="utf-8")
    assert 'id="spectralclip.norm_bounds"' in text
    assert "tol" in text and "Raises:" in text
    assert "Examples:" in text and "&gt;&gt;&gt;" in text and "<blockquote>" not in text


def test_search_works_from_a_disk(site: Path) -> None:
    pytest.importorskip("selenium", reason="selenium is not installed")
    from report_browser import CHROMIUM, DRIVER, open_browser
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromedriver are not installed")
    browser = open_browser()
    try:
        browser.get((site / "index.html").as_uri())
        browser.find_element(By.CSS_SELECTOR, "input[name=query]").send_keys("deterministic")
        results = ".md-search-result__item a"
        WebDriverWait(browser, 20).until(lambda page: page.find_elements(By.CSS_SELECTOR, results))
        found = [link.text for link in browser.find_elements(By.CSS_SELECTOR, results)]
        assert any("Deterministic" in text for text in found), found
        assert browser.get_log("browser") == []
    finally:
        browser.quit()
