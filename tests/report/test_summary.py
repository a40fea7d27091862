"""What the top of the page says."""

from __future__ import annotations

import pytest
import report_documents as documents
from report_page import Page

from spectralclip.report import render
from spectralclip.report._rows import units

pytest.importorskip("jinja2", reason="the report needs jinja2")
pytest.importorskip("vl_convert", reason="the report needs vl-convert-python")


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
