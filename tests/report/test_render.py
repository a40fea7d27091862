"""The report's text: what is in it, what cannot be, and how numbers are written."""

from __future__ import annotations

import base64
import copy
import gzip
import hashlib
import html
import json
import math
import re
import sys
from html.parser import HTMLParser
from typing import Any

import pytest
import report_documents as documents

pytest.importorskip("jinja2", reason="the report needs jinja2")
pytest.importorskip("vl_convert", reason="the report needs vl-convert-python")

from spectralclip.report import _numbers, _render, render, render_fragment
from spectralclip.report._rows import units
from spectralclip.report._view import view_of


class Page(HTMLParser):
    """What a browser would make of a page: elements with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.blocks: dict[str, str] = {}
        self.styles: list[str] = []
        self.words: list[str] = []
        self._within: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        if tag in ("script", "style"):
            self._within = attributes.get("id") or f"{tag}{len(self.blocks)}"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._within = None

    def handle_data(self, data: str) -> None:
        if self._within is None:
            self.words.append(data)
        else:
            self.blocks[self._within] = self.blocks.get(self._within, "") + data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def unpacked(self, name: str) -> str:
        return gzip.decompress(base64.b64decode(self.blocks[name])).decode()


@pytest.fixture(scope="module", params=["audit", "comparison", "nasty", "holes"])
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    made: dict[str, Any] = getattr(documents, request.param)()
    return made


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


def test_every_row_is_there() -> None:
    document = documents.audit(200)
    rows = json.loads(Page(render(document)).unpacked("data"))["rows"]
    assert [row["name"] for row in rows] == [layer["name"] for layer in document["layers"]]
    for row, layer in zip(rows, document["layers"], strict=True):
        assert row["sides"][0]["hi"] == pytest.approx(layer["norm"]["upper"], rel=1e-5)
        assert row["sides"][0]["values"] == pytest.approx(layer["singular_values"], rel=1e-5)


def test_summary_of_an_audit() -> None:
    document = documents.audit(30)
    document["lipschitz"] |= {"lower": 2.0, "upper": 118.44, "product": 2368.8, "failure": 9e-6}
    document["layers"][4]["norm"]["upper"] = 42e6  # of a batch norm, which its chain stands for
    document["layers"][5]["norm"]["upper"] = 41e6
    text = Page(render(document)).text
    assert "2.00 to 119" in text  # rounded up: it is an upper bound
    assert "Upper / lower 59.2" in text
    assert "Product of layers 2369 20.0 times the bound above" in text
    assert "Largest norm 4.1e+07 block1.conv+block1.bn" in text
    assert "Chance that the bound fails 9.0e-06" in text
    assert "not affine pool head.act" in text


def test_only_what_stands_for_itself_is_counted() -> None:
    parts = [["a"], ["b"], ["a", "b"], ["c"], ["a", "b", "d"], []]
    assert units([{"parts": each} for each in parts]) == [False, False, False, True, True, True]
    document = documents.audit(30)
    chains = [row for row in document["layers"] if row["role"] == "chain"]
    above = sum(row["norm"]["lower"] > 1.01 for row in chains)
    assert f"Surely above 1 {above} by over 1 %, of 10 layers" in Page(render(document)).text


def test_unbounded_places_are_named() -> None:
    text = Page(render(documents.holes())).text
    assert "2.50 to not bounded" in text
    assert "What could not be bounded (the model itself) softmax attention" in text


def test_without_the_network() -> None:
    document = documents.audit(6) | {"lipschitz": None}
    text = Page(render(document)).text
    assert "not computed" in text and "How the bound grows" not in text


def test_least_document() -> None:
    text = Page(render({"format": "spectralclip.audit", "version": 2})).text
    assert "0 by over 1 %, of 0 layers and chains that stand for themselves" in text


def test_comparison_matches_rows_by_name() -> None:
    document = copy.deepcopy(documents.comparison(12))
    del document["after"]["layers"][0], document["before"]["layers"][1]
    document["after"]["layers"][1]["norm"] = document["before"]["layers"][1]["norm"]
    view = view_of(document)
    rows = {row["name"]: row for row in view["data"]["rows"]}
    assert rows["block0.conv"]["cells"][2:] == ["–", "removed"]
    assert rows["block0.bn"]["cells"][1] == "–" and rows["block0.bn"]["cells"][3] == "added"
    assert rows["block0.conv+block0.bn"]["cells"][3] == "same"
    before, after = (document[side]["layers"] for side in ("before", "after"))
    change = after[2]["norm"]["upper"] / before[2]["norm"]["upper"]
    assert before[2]["name"] == after[2]["name"] == "block1.conv"
    assert rows["block1.conv"]["keys"][3] == pytest.approx(change, rel=1e-5)


def test_fragment_holds_the_whole_page() -> None:
    document = documents.nasty()
    fragment = Page(render_fragment(document))
    ((tag, attributes),) = fragment.elements
    assert tag == "iframe" and not fragment.text
    assert attributes["srcdoc"] == render(document)
    assert "allow-same-origin" not in attributes["sandbox"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "has the format None, expected 'spectralclip.audit' or"),
        ({"format": "spectralclip.audit", "version": 1}, "version 1 .*: audit the model again"),
        ({"format": "other", "version": 2}, "has the format 'other', expected"),
    ],
)
def test_other_documents_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render(wrong)


def test_comparison_of_other_documents_is_refused() -> None:
    document = documents.comparison(3) | {"after": {"format": "other"}}
    with pytest.raises(ValueError, match="has the format 'other'"):
        render(document)


def test_same_document_same_page() -> None:
    assert render(documents.audit(9)) == render(documents.audit(9))


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ImportError, match=r"vl-convert-python.*spectralclip\[report\]"):
        _render.charting_library.__wrapped__()  # past the cache, which other tests have filled
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"jinja2.*spectralclip\[report\]"):
        render(documents.audit(3))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.00"),
        (0.99999, "1.00"),
        (12.34, "12.3"),
        (0.0123, "0.0123"),
        (999.96, "1000"),
        (1234.4, "1234"),
        (9999.9, "1.0e+04"),
        (41234567.0, "4.1e+07"),
        (0.00012, "1.2e-04"),
        (0.0, "0"),
        (1e308, "1.0e+308"),
        (5e-324, "4.9e-324"),
        (math.inf, "–"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert _numbers.number(value) == text


@pytest.mark.parametrize("exponent", range(-30, 31, 3))
def test_bounds_are_rounded_outwards(exponent: int) -> None:
    for index in range(1, 200):
        value = 1.0137 * index * 10.0**exponent
        assert float(_numbers.at_most(value)) >= value * (1 - 1.01e-6)
        assert float(_numbers.at_least(value)) <= value * (1 + 1.01e-6)
        assert float(_numbers.at_most(value)) == pytest.approx(value, rel=0.11)


def test_intervals() -> None:
    assert _numbers.interval(1.0, 1.0) == "1.00"
    assert _numbers.interval(1.2083, 1.2157) == "1.20 – 1.22"
    assert _numbers.interval(2.5, None) == "2.50 – not bounded"


def test_counts() -> None:
    assert [_numbers.count(n) for n in (0, 9999, 36864, 11_173_962, None)] == [
        "0",
        "9999",
        "36.9 k",
        "11.2 M",
        "–",
    ]


def test_escaped_fragment_survives_a_round_trip() -> None:
    fragment = render_fragment(documents.audit(3))
    quoted = re.search(r'srcdoc="([^"]*)"', fragment)
    assert quoted and html.unescape(quoted[1]).startswith("<!doctype html>")
