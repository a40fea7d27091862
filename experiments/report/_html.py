"""The page as one HTML file, without scripts; it loads nothing."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from experiments.experiment import Chart, Table, VerdictKind
from experiments.report import _charts
from experiments.report._markdown import METHOD, claim_row
from experiments.report._page import HEADER, Judged, Page, Part
from spectralclip.report._render import missing

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

CLASSES: dict[VerdictKind, str] = {
    "reproduced": "good",
    "contradicted": "bad",
    "not at this scale": "open",
    "not run": "open",
}


def render(page: Page, drawings: Mapping[str, str]) -> str:
    """The whole page, from its doctype on.

    Args:
        page: What it says.
        drawings: Its charts as SVG, by name.
    """
    try:
        import jinja2
    except ImportError as error:
        raise missing("jinja2", error) from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        title=page.title,
        style=_charts.style(),
        lead=_inline(page.lead),
        method=_inline(METHOD),
        counts=page.counts(),
        verdicts=_table(page.verdicts()),
        findings=[
            {"text": _inline(one.text), **_block(one.chart, drawings)} for one in page.findings()
        ],
        header=HEADER,
        parts=[_part(part, drawings) for part in page.parts],
        runs=_table(page.runs()),
    )
    return str(text)


def _claim(judged: Judged) -> dict[str, Any]:
    cells = [_inline(cell) for cell in claim_row(judged)]
    return {"cells": cells, "kind": CLASSES[judged.verdict.kind]}


def _part(part: Part, drawings: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": part.experiment.name,
        "title": part.experiment.title,
        "where": part.experiment.where,
        "claims": [_claim(judged) for judged in part.judged],
        "blocks": [_block(block, drawings) for block in part.section.blocks],
    }


def _block(block: str | Table | Chart, drawings: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(block, Table):
        return {"kind": "table", **_table(block)}
    if isinstance(block, Chart):
        drawing = _charts.inline(drawings[block.name], block.name, block.alt)
        return {"kind": "chart", "svg": drawing, "caption": _inline(block.caption)}
    return {"kind": "text", "text": _markdown().render(block)}


def _table(table: Table) -> dict[str, Any]:
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    # A heading stands where the numbers below it do.
    numbers = [any(row[place]["is_number"] for row in rows) for place in range(len(table.header))]
    titles = map(_inline, table.header)
    return {
        "header": [{"text": t, "is_number": n} for t, n in zip(titles, numbers, strict=True)],
        "rows": rows,
        "caption": _inline(table.caption),
    }


def _cell(text: str) -> dict[str, Any]:
    is_number = re.match(r"[-+×<>≤≥ ]*\d|–$", text) is not None
    return {"text": _inline(text), "is_number": is_number}


def _inline(text: str) -> str:
    """A line of Markdown as HTML; whatever looks like markup in it is shown as text."""
    return str(_markdown().renderInline(" ".join(text.split())))


@functools.cache
def _markdown() -> MarkdownIt:
    try:
        from markdown_it import MarkdownIt
    except ImportError as error:
        raise missing("markdown-it-py", error) from error
    return MarkdownIt("commonmark", {"html": False}).enable("table")
