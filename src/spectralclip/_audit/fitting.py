"""A table of rich that leaves out columns, rather than squeeze them, where there is little room."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from rich.table import Table
from rich.text import Text

from spectralclip._audit.table import Sheet, as_lines, fitted
from spectralclip._common import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@final
class FittingTable(Table):
    """The whole sheet as a table; on a narrow console what fits, or else a line for each row."""

    def __init__(self, sheet: Sheet) -> None:
        # Names are text as it stands: square brackets are no markup.
        title, footer = Text(printable(sheet.title)), Text(sheet.footer)
        super().__init__(title=title, caption=footer, caption_justify="left")
        for column in sheet.columns:
            left = column.justify == "left"
            self.add_column(
                Text(printable(column.heading)),
                justify="left" if left else "right",
                no_wrap=not left,
                overflow="fold",
            )
        for row in sheet.rows:
            self.add_row(*(Text(printable(cell)) for cell in row))
        self._whole = sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sheet = fitted(self._whole, options.max_width)
        if sheet is None:
            yield Text(as_lines(self._whole), overflow="fold")
        else:
            drawn = self if sheet is self._whole else FittingTable(sheet)
            yield from Table.__rich_console__(drawn, console, options)
