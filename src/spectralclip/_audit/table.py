"""Audits and comparisons as tables: for a terminal with rich, and as plain text."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from spectralclip._audit.layer import Change, LayerAudit
from spectralclip._audit.scores import Scores
from spectralclip._bounds import Interval
from spectralclip._common import ITSELF, missing_package, printable, shown_name, shown_reason
from spectralclip._lipschitz import NetworkBound

if TYPE_CHECKING:
    from rich.table import Table

_FOLDED = 10  # characters in a line of a column of words, at least
_BORDERS = 3  # characters between two columns


class Column(NamedTuple):
    """A heading, and on which side of the column its numbers stand.

    Where there is little room, columns that are `dispensable` go: the largest number first.
    """

    heading: str
    justify: str = "right"
    dispensable: int = 0


class Sheet(NamedTuple):
    """A table before it is drawn."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    footer: str


LAYER_COLUMNS = (
    Column("layer", "left"),
    Column("what", "left", 1),
    Column("norm"),
    Column("rest x BN", dispensable=2),
    Column("torch sees", dispensable=3),
    Column("stable rank", dispensable=4),
)
HELD_COLUMNS = (Column("held at"), Column("pressure"))
CHANGE_COLUMNS = (
    Column("layer", "left"),
    Column("before"),
    Column("after"),
    Column("change", dispensable=1),
)


def layer_row(layer: LayerAudit, *, held: bool = False) -> tuple[str, ...]:
    apart = "" if layer.batch_norm is None else f"{layer.linear or 0:.3g} x {layer.batch_norm:.3g}"
    return (
        row_name(layer.name),
        _what(layer),
        interval_text(layer.norm),
        apart,
        "" if layer.reshaped_norm is None else f"{layer.reshaped_norm:.3g}",
        f"{layer.stable_rank:.3g}",
        *((_known(layer.max_norm), _known(layer.pressure)) if held else ()),
    )


def _known(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def change_row(row: Change) -> tuple[str, ...]:
    change = "" if row.change is None else f"{row.change:+.1%}"
    return row_name(row.name), interval_text(row.before), interval_text(row.after), change


def _what(layer: LayerAudit) -> str:
    if layer.role == "layer":
        return f"{layer.kind} {layer.geometry}"
    return "together, compensates" if layer.compensates else "together"


def row_name(name: str) -> str:
    """A layer's name, as calls take it; a model that is a layer itself has none."""
    return name or ITSELF


def interval_text(interval: Interval | None) -> str:
    """An interval by its ends, one number where they agree to four digits."""
    if interval is None:
        return "-"
    low, high = f"{at_least_zero(interval.lower):.4g}", f"{interval.upper:.4g}"
    return low if low == high else f"{low} .. {high}"


def at_least_zero(lower: float) -> float:
    """The lower end of a norm as a reader expects it: rounding may leave a zero with a sign."""
    return max(0.0, lower)


def bound_text(bound: NetworkBound | None, *, failed: bool = False) -> str:
    """The network's Lipschitz interval in one line, and a line for each place without a bound."""
    if bound is None:
        return f"Lipschitz constant of the network: not {'to be had' if failed else 'asked for'}."
    upper = "no upper bound" if math.isinf(bound.upper) else f"at most {bound.upper:.4g}"
    more = f" (the layers apart: {bound.product:.4g})" if math.isfinite(bound.product) else ""
    lower = f"{at_least_zero(bound.lower):.4g}"
    line = f"Lipschitz constant of the network: at least {lower}, {upper}{more}."
    places = [f"{shown_name(one.where)}: {shown_reason(one.reason)}" for one in bound.unbounded]
    ways = [f"  for the way that the examples take at {shown_name(w)}" for w in bound.decisions]
    return "\n".join([line, *(f"  unbounded at {place}" for place in places), *ways])


def scores_text(scores: Scores | None) -> list[str]:
    """A line on what becomes of differences between inputs, if it is known."""
    if scores is None:
        return []
    gain = "" if scores.gain is None else f", {scores.gain:.3g} of that of the inputs"
    inputs = "the example inputs" if scores.over == "example" else "standard normal inputs"
    return [f"Spread of the outputs over {inputs}: {scores.spread:.3g}{gain}."]


def rich_table(sheet: Sheet) -> Table:
    try:
        for module in ("rich.table", "rich.text"):
            importlib.import_module(module)
        from spectralclip._audit.fitting import FittingTable
    except ImportError as error:
        otherwise = ", or print the object itself for plain text."
        raise missing_package("A table in colour", "rich", "cli", error, otherwise) from error
    return FittingTable(sheet)


def fitted(sheet: Sheet, width: int) -> Sheet | None:
    """The sheet with the columns for which there is room; None if there is too little.

    Numbers are never cut short, and names are folded only so far that they can be read.
    """
    chosen = list(range(len(sheet.columns)))
    while _least_width(sheet, chosen) > width:
        dispensable = [index for index in chosen if sheet.columns[index].dispensable]
        if not dispensable:
            return None
        chosen.remove(max(dispensable, key=lambda index: sheet.columns[index].dispensable))
    gone = [column.heading for at, column in enumerate(sheet.columns) if at not in chosen]
    if not gone:
        return sheet
    return Sheet(
        sheet.title,
        [sheet.columns[index] for index in chosen],
        [[row[index] for index in chosen] for row in sheet.rows],
        "\n".join([sheet.footer, f"No room for: {', '.join(gone)}."]),
    )


def _least_width(sheet: Sheet, chosen: Sequence[int]) -> int:
    """Of a table of the chosen columns, borders included."""
    width = 1
    for index in chosen:
        column = sheet.columns[index]
        longest = max(map(len, (column.heading, *(printable(row[index]) for row in sheet.rows))))
        width += _BORDERS + (min(longest, _FOLDED) if column.justify == "left" else longest)
    return width


def as_lines(sheet: Sheet) -> str:
    """The necessary columns of each row in one line, for the narrowest of terminals."""
    lines = []
    for name, *cells in sheet.rows:
        pairs = zip(sheet.columns[1:], cells, strict=True)
        numbers = [f"{col.heading} {cell}" for col, cell in pairs if cell and not col.dispensable]
        lines.append(printable(f"{name}: {', '.join(numbers)}"))
    return "\n".join([printable(sheet.title), *lines, sheet.footer])


def plain_table(sheet: Sheet) -> str:
    """The same as text, columns under each other."""
    headings = [column.heading for column in sheet.columns]
    lines = [[printable(cell) for cell in row] for row in (headings, *sheet.rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    signs = ["<" if column.justify == "left" else ">" for column in sheet.columns]
    formats = [f"{{:{sign}{width}}}" for sign, width in zip(signs, widths, strict=True)]
    body = ["  ".join(formats).format(*cells).rstrip() for cells in lines]
    rule = "-" * max(map(len, body))
    return "\n".join([printable(sheet.title), body[0], rule, *body[1:], rule, sheet.footer])
