"""The page as Markdown, with its charts as files beside it."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.experiment import Chart, Table
from experiments.judging.verdicts import RULE
from experiments.report._page import HEADER, Judged, Page, Part

CHARTS = "charts"
METHOD = f"Claims that compare methods share one rule, the *rule for comparisons*: {RULE}"


def render(page: Page) -> str:
    """The whole page."""
    head = [
        f"# {page.title}",
        page.lead,
        "## In short",
        page.counts(),
        _table(page.verdicts()),
        *(text for finding in page.findings() for text in (finding.text, *_chart(finding.chart))),
        "## Claims",
        METHOD,
        *(text for part in page.parts if part.judged for text in _claims(part)),
    ]
    parts = [text for part in page.parts for text in _part(part)]
    tail = ["## What was run", _table(page.runs())]
    return "\n\n".join([*head, *parts, *tail]) + "\n"


def claim_row(judged: Judged) -> list[str]:
    """A claim's row of the table at the top; Markdown."""
    scale = f" ({judged.scale})" if judged.scale else ""
    claim, verdict = judged.claim, judged.verdict
    return [f"**{verdict.kind}**{scale}", claim.text, claim.where, verdict.reason, claim.rule]


def _claims(part: Part) -> list[str]:
    table = Table(HEADER, [claim_row(one) for one in part.judged])
    return [f"### {part.experiment.title} ({part.experiment.where})", _table(table)]


def _chart(chart: Chart) -> list[str]:
    return [f"![{_line(chart.alt)}]({CHARTS}/{chart.name}.svg)", _line(chart.caption)]


def _part(part: Part) -> list[str]:
    texts = [f"## {part.experiment.title}", f"*{part.experiment.where}.*"]
    for block in part.section.blocks:
        if isinstance(block, Table):
            texts.append(_table(block))
        elif isinstance(block, Chart):
            texts += _chart(block)
        else:
            texts.append(block)
    return texts


def _table(table: Table) -> str:
    rule = ["---"] * len(table.header)
    lines = [_row(table.header), f"|{'|'.join(rule)}|", *map(_row, table.rows)]
    text = "\n".join(lines)
    return f"{text}\n\n{_line(table.caption)}" if table.caption else text


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_line(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _line(text: str) -> str:
    return " ".join(text.split())
