"""The rows of the table."""

from __future__ import annotations

import json

import pytest
import report_documents as documents
from report_page import Page

from spectralclip.report import render

pytest.importorskip("jinja2", reason="the report needs jinja2")
pytest.importorskip("vl_convert", reason="the report needs vl-convert-python")


def test_every_row_is_there() -> None:
    document = documents.audit(200)
    rows = json.loads(Page(render(document)).unpacked("data"))["rows"]
    assert [row["name"] for row in rows] == [layer["name"] for layer in document["layers"]]
    for row, layer in zip(rows, document["layers"], strict=True):
        assert row["sides"][0]["hi"] == pytest.approx(layer["norm"]["upper"], rel=1e-5)
        assert row["sides"][0]["values"] == pytest.approx(layer["singular_values"], rel=1e-5)
