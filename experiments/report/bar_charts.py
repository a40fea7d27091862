"""Small Vega-Lite charts for the opening of the page: a bar for each method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BLUE, ORANGE = "var(--series-1)", "var(--series-2)"


def bars(
    values: Mapping[str, Mapping[str, float]],
    title: str,
    *,
    form: str = ".1f",
    log: bool = False,
    level: float | None = None,
) -> dict[str, Any]:
    """Bars with their numbers, those of one name beside each other.

    Args:
        values: By name and kind; there are one or two kinds.
        title: Of the axis.
        form: Of the numbers.
        log: For a logarithmic axis.
        level: A value to mark by a dashed line.
    """
    rows = [
        {"name": name, "kind": kind, "value": value}
        for name, kinds in values.items()
        for kind, value in kinds.items()
    ]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    scale = {"type": "log", "nice": False} if log else {"zero": True}
    shared = {
        "y": {"field": "name", "type": "nominal", "sort": list(values), "title": None},
        "x": {"field": "value", "type": "quantitative", "title": title, "scale": scale},
    }
    color = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {"domain": kinds, "range": [BLUE, ORANGE][: len(kinds)]},
        "legend": {"orient": "top"} if len(kinds) > 1 else None,
    }
    if len(kinds) > 1:
        shared["yOffset"] = {"field": "kind", "sort": kinds}
    # A bar on a logarithmic axis has no end at zero: points stand there instead.
    mark: dict[str, Any] = {"type": "point", "filled": True, "size": 60} if log else {"type": "bar"}
    number = {"field": "value", "type": "quantitative", "format": form}
    layers: list[dict[str, Any]] = [
        {"mark": mark, "encoding": {**shared, "color": color}},
        {
            "mark": {"type": "text", "align": "left", "dx": 6, "fontSize": 10},
            "encoding": {**shared, "text": number},
        },
    ]
    if level is not None:
        rule = {"type": "rule", "strokeDash": [4, 3], "color": "gray"}
        layers.insert(0, {"mark": rule, "encoding": {"x": {"datum": level}}})
    height = {"step": 13 if len(kinds) > 1 else 19}
    return {"data": {"values": rows}, "width": 230, "height": height, "layer": layers}
