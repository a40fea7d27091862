"""The report's text: what is in it, what cannot be, and how numbers are written."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report_documents as documents

pytest.importorskip("jinja2", reason="the report needs jinja2")
pytest.importorskip("vl_convert", reason="the report needs vl-convert-python")

from report_page import Page

from spectralclip.report import _render, render, render_fragment


def test_page_loads_nothing(document: dict[str, Any]) -> None:
    page = Page(render(document))
    loading = {"src", "srcset", "data", "poster", "action", "background", "formaction"}
    for tag, attributes in page.elements:
        assert tag not in ("link", "base", "object", "embed", "iframe", "img", "frame")
        assert not loading & set(attributes), (tag, attributes)
        assert attributes.get("href", "#").startswith("#")
    assert not re.search(r"url\(|@import", page.blocks["style0"])
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv"))
    assert "default-src 'none'" in policy and "http" not in policy


def test_policy_lets_only_these_scripts_run(document: dict[str, Any]) -> None:
    page = Page(render(document))
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv"))
    names = [name for name in page.blocks if name.startswith("script")]
    assert len(names) == 2 and "unsafe-inline" not in policy.split("script-src")[1]
    for name in names:
        digest = base64.b64encode(hashlib.sha256(page.blocks[name].encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


@pytest.mark.parametrize(
    "make", [lambda: documents.audit(1000), lambda: documents.comparison(1000)]
)
def test_size(make: Any) -> None:
    assert len(render(make()).encode()) < 2_000_000


def test_texts_stay_texts() -> None:
    page = Page(render(documents.nasty()))
    assert all(tag != "img" and "onerror" not in a for tag, a in page.elements)
    assert documents.NASTY in page.text.replace(" ", "") or documents.NASTY in page.text
    # The template does not evaluate what comes from the document either.
    assert "49" not in page.text.split("This run")[1]
    names = [row["name"] for row in json.loads(page.unpacked("data"))["rows"]]
    assert all(name.endswith(documents.NASTY) for name in names)


def test_title_is_escaped() -> None:
    page = Page(render(documents.audit(3), title="a < b </title><b>"))
    assert "a < b </title><b>" in page.text
    assert ("b", {}) not in page.elements


def test_without_the_network() -> None:
    document = documents.audit(6) | {"lipschitz": None}
    text = Page(render(document)).text
    assert "not computed" in text and "How the bound grows" not in text


def test_least_document() -> None:
    text = Page(render({"format": "spectralclip.audit", "version": 2})).text
    assert "0 by over 1 %, of 0 layers and chains that stand for themselves" in text


def test_fragment_holds_the_whole_page() -> None:
    document = documents.nasty()
    fragment = Page(render_fragment(document))
    ((tag, attributes),) = fragment.elements
    assert tag == "iframe" and not fragment.text
    assert attributes["srcdoc"] == render(document)
    assert "allow-same-origin" not in attributes["sandbox"]


def test_same_document_same_page() -> None:
    assert render(documents.audit(9)) == render(documents.audit(9))


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ImportError, match=r"vl-convert-python.*spectralclip\[report\]"):
        _render.charting_library.__wrapped__()  # past the cache, which other tests have filled
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"jinja2.*spectralclip\[report\]"):
        render(documents.audit(3))


def test_escaped_fragment_survives_a_round_trip() -> None:
    fragment = render_fragment(documents.audit(3))
    quoted = re.search(r'srcdoc="([^"]*)"', fragment)
    assert quoted and html.unescape(quoted[1]).startswith("<!doctype html>")


# --- The charting library, which is kept ------------------------------------------------------


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The snippets that are bundled, in an environment where nothing is kept yet."""
    snippets: list[str] = []

    def bundle(snippet: str) -> str:
        snippets.append(snippet)
        return "the library"

    monkeypatch.setattr("vl_convert.javascript_bundle", bundle)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return snippets


def library() -> str:
    """As another process gets it."""
    return gzip.decompress(base64.b64decode(_render.charting_library.__wrapped__())).decode()


def test_charting_library_is_built_once(built: list[str], tmp_path: Path) -> None:
    assert [library(), library()] == ["the library"] * 2
    assert built == [_render.SNIPPET]
    assert len(list(tmp_path.iterdir())) == 1


def test_charting_library_of_another_version_is_another(
    built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library()
    monkeypatch.setattr(_render.metadata, "version", lambda package: "99.0")
    library()
    assert len(built) == 2


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"", lambda data: b"no"])
def test_damaged_charting_library_is_built_anew(
    built: list[str], tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    library()
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert library() == "the library" and len(built) == 2
    assert library() == "the library" and len(built) == 2


def test_charting_library_that_cannot_be_kept_is_built_each_time(
    built: list[str], tmp_path: Path
) -> None:
    library()
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.mkdir()  # a folder, which no file replaces
    assert [library(), library()] == ["the library"] * 2
    assert list(tmp_path.iterdir()) == [file]
