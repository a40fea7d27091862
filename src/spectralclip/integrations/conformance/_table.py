"""A report as a table, with a few lines on what went wrong."""

from __future__ import annotations

import math
from collections import Counter

from spectralclip._audit import Column, Sheet
from spectralclip.integrations.conformance._run import VERDICTS, Outcome, Report

COLUMNS = (
    Column("layers", "left"),
    Column("of"),
    *(Column(verdict) for verdict in VERDICTS),
    Column("over the norm", dispensable=1),
    Column("seconds", dispensable=2),
)
MOST = 5  # reasons and layers that are named


def report_sheet(report: Report) -> Sheet:
    """One row for each kind of layers, and one for all."""
    kinds = list(dict.fromkeys(one.kind for one in report.outcomes))
    rows = [_row(kind, [one for one in report.outcomes if one.kind == kind]) for kind in kinds]
    if len(kinds) > 1:
        rows.append(_row("all", report.outcomes))
    lines = [report.conclusion, *_worst(report), *_reasons(report)]
    title = f"conformance, right within {report.tol:g}"
    return Sheet(title, COLUMNS, rows, "\n".join(lines))


def _row(name: str, outcomes: tuple[Outcome, ...] | list[Outcome]) -> tuple[str, ...]:
    counts = Counter(one.verdict for one in outcomes)
    ratios = sorted(one.ratio for one in outcomes if one.ratio is not None)
    spread = f"{ratios[0]:.4g} .. {ratios[-1]:.4g}" if ratios else ""
    return (
        name,
        str(len(outcomes)),
        *(str(counts[verdict] or "") for verdict in VERDICTS),
        spread,
        f"{sum(one.seconds for one in outcomes):.2f}",
    )


def _worst(report: Report) -> list[str]:
    """The layers on which it is farthest off."""
    off = [one for one in report.outcomes if one.verdict in ("above", "below")]
    off.sort(key=_distance, reverse=True)
    shown = ", ".join(f"{one.name} ({one.ratio:.4g} times the norm)" for one in off[:MOST])
    return [f"Farthest off: {shown}."] if off else []


def _distance(outcome: Outcome) -> float:
    ratio = outcome.ratio
    return math.inf if not ratio else abs(math.log(ratio))


def _reasons(report: Report) -> list[str]:
    """What was raised or wrong, the most frequent first, each with a layer."""
    failed = [one for one in report.outcomes if one.verdict in ("wrong", "raised")]
    counts = Counter(one.error for one in failed)
    lines = []
    for reason, count in counts.most_common(MOST):
        first = next(one.name for one in failed if one.error == reason)
        short = reason if len(reason) <= 120 else f"{reason[:117]}..."
        lines.append(f"{count} x, as on {first}: {short}")
    rest = len(counts) - MOST
    return [*lines, f"and {rest} more reasons."] if rest > 0 else lines
