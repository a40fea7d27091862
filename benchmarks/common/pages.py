"""Parts of pages: tables, targets with what was measured, and rows picked for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.runs import ROOT

Row = dict[str, Any]
Summary = Callable[[list[float]], float]


def page_file(name: str) -> Path:
    """Where a benchmark's page is in the documentation."""
    return ROOT / "docs" / "benchmarks" / f"{name}.md"


def picture_file(name: str) -> Path:
    """Where a benchmark's picture is in the documentation."""
    return ROOT / "docs" / "images" / f"{name}.png"


def write(text: str, path: Path) -> None:
    """Write a page; its folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def pyplot() -> Any:
    """Matplotlib's interface for drawing to files."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save_picture(figure: Any, path: Path) -> None:
    """Write a picture, without frames at the top and the right of its axes."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot().close(figure)


# --- Rows ---------------------------------------------------------------------------------


def selected(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """The rows with the given entries."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def grouped(rows: Iterable[Row], key: str) -> dict[str, list[Row]]:
    """The rows by one of their entries, in the order in which its values come up."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


# --- Text ---------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value: float | None, digits: int) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def one_line(text: str, most: int) -> str:
    """A message that fits into a cell of a table."""
    return " ".join(text.replace("|", "/").split())[:most]


def between_marks(text: str, mark: str, part: str) -> str:
    """A page with a new part between its two marks."""
    marked = f"{mark}\n\n{part}\n{mark}"
    return re.sub(f"{mark}.*{mark}", lambda _: marked, text, count=1, flags=re.DOTALL)


# --- Targets ------------------------------------------------------------------------------


def at_most(label: str, target: float, values: list[float], summary: Summary = max) -> Row | None:
    """A target from above, with what was measured; none where nothing was."""
    return _figure(label, f"<= {target:g}", values, summary, lambda value: value <= target)


def at_least(label: str, target: float, values: list[float], summary: Summary = min) -> Row | None:
    """A target from below."""
    return _figure(label, f">= {target:g}", values, summary, lambda value: value >= target)


def _figure(
    label: str, target: str, values: list[float], summary: Summary, met: Callable[[float], bool]
) -> Row | None:
    if not values:
        return None
    measured = summary(values)
    finite = None if measured == float("inf") else measured
    return {"figure": label, "target": target, "measured": finite, "met": met(measured)}


def targets(figures: Iterable[Row], digits: int = 5) -> str:
    """The table of all targets."""
    body = [
        [
            row["figure"],
            row["target"],
            "-" if row["measured"] is None else f"{row['measured']:.{digits}g}",
            "yes" if row["met"] else "**no**",
        ]
        for row in figures
    ]
    return table(["figure", "target", "measured", "met"], body)
