"""Documents that are no audits are refused."""

from __future__ import annotations

from typing import Any

import pytest
import report_documents as documents

from spectralclip.report import render

pytest.importorskip("jinja2", reason="the report needs jinja2")
pytest.importorskip("vl_convert", reason="the report needs vl-convert-python")


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
