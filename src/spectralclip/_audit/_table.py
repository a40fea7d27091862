"""Audits and comparisons as tables: for a terminal with rich, and as plain text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spectralclip._audit._layer import LayerAudit
from spectralclip._bounds import Interval
from spectralclip._lipschitz._result import NetworkBound

if TYPE_CHECKING:
    from rich.table import Table


class Column(NamedTuple):
    """A heading, and on which side of the column its numbers stand."""

    heading: str
    justify: str = "right"


class Sheet(NamedTuple):
    """A table before it is drawn."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    footer: str


LAYER_COLUMNS = (
    Column("layer", "left"),
    Column("what", "left"),
    Column("norm"),
    Column("rest x BN"),
    Column("torch sees"),
    Column("stable rank"),
)
CHANGE_COLUMNS = (
    Column("layer", "left"),
    Column("before"),
    Column("after"),
    Column("change"),
)


def layer_row(layer: LayerAudit) -> tuple[str, ...]:
    """One line of an audit."""
    apart = "" if layer.batch_norm is None else f"{layer.linear or 0:.3g} x {layer.batch_norm:.3g}"
    return (
        short_name(layer.name),
        _what(layer),
        interval_text(layer.norm),
        apart,
        "" if layer.reshaped_norm is None else f"{layer.reshaped_norm:.3g}",
        f"{layer.stable_rank:.3g}",
    )


def _what(layer: LayerAudit) -> str:
    if layer.role == "layer":
        return f"{layer.kind} {layer.geometry}"
    return "together, compensates" if layer.compensates else "together"


def short_name(name: str) -> str:
    """The name of a chain, in which later parts leave out what the first has: "block.conv+bn"."""
    first, *others = name.split("+")
    inside = f"{first.rpartition('.')[0]}."
    return "+".join([first, *(other.removeprefix(inside) for other in others)])


def interval_text(interval: Interval | None) -> str:
    """An interval by its ends, one number where they agree to four digits."""
    if interval is None:
        return "-"
    low, high = f"{interval.lower:.4g}", f"{interval.upper:.4g}"
    return low if low == high else f"{low} .. {high}"


def bound_text(bound: NetworkBound | None) -> str:
    """The network's Lipschitz interval in one line."""
    if bound is None:
        return "Lipschitz constant of the network: not asked for, or not to be had."
    upper = "no upper bound" if math.isinf(bound.upper) else f"at most {bound.upper:.4g}"
    more = f" (the layers apart: {bound.product:.4g})" if math.isfinite(bound.product) else ""
    line = f"Lipschitz constant of the network: at least {bound.lower:.4g}, {upper}{more}."
    places = [f"{one.where}: {one.reason}" for one in bound.unbounded]
    return "\n".join([line, *(f"  unbounded at {place}" for place in places)])


def rich_table(sheet: Sheet) -> Table:
    """The table, for a rich console.

    Raises:
        ImportError: `rich` is not installed.
    """
    try:
        from rich.table import Table
        from rich.text import Text
    except ImportError as error:
        raise ImportError(
            f'A table in colour needs the package "rich", which could not be imported ({error}): '
            'pip install "spectralclip[cli]", or print the object itself for plain text.',
            name="rich",
        ) from error
    # Names are text as it stands: square brackets are no markup.
    table = Table(title=Text(sheet.title), caption=Text(sheet.footer), caption_justify="left")
    for column in sheet.columns:
        left = column.justify == "left"
        table.add_column(
            column.heading, justify="left" if left else "right", no_wrap=not left, overflow="fold"
        )
    for row in sheet.rows:
        table.add_row(*map(Text, row))
    return table


def plain_table(sheet: Sheet) -> str:
    """The same as text, columns under each other."""
    lines = [[column.heading for column in sheet.columns], *map(list, sheet.rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    left = [column.justify == "left" for column in sheet.columns]
    body = [_line(cells, widths, left) for cells in lines]
    rule = "-" * max(map(len, body))
    return "\n".join([sheet.title, body[0], rule, *body[1:], rule, sheet.footer])


def _line(cells: Iterable[str], widths: Iterable[int], left: Iterable[bool]) -> str:
    padded = (
        cell.ljust(width) if side else cell.rjust(width)
        for cell, width, side in zip(cells, widths, left, strict=True)
    )
    return "  ".join(padded).rstrip()
