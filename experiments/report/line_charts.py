"""Vega-Lite charts of the figures: lines over an axis, in panels side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Axis = dict[str, Any]

PANEL = {"width": 210, "height": 190}
# A method looks the same wherever it is drawn.
METHOD_COLORS = {
    "none": "#9a9a9a",
    "miyato": "#dd8452",
    "gouk": "#c44e52",
    "senderovich": "#4c86c6",
    "delattre": "#9467bd",
    "fast_clip": "#12a5b8",
    "fast_clip_printed": "#b59a1f",
    "spectral_clip": "#3f9b57",
}


def number(field: str, title: str, *, log: bool = False, whole: bool = False) -> Axis:
    """An axis of numbers: logarithmic, or with ticks at whole numbers alone, if so wanted."""
    # Rounded to powers of ten, a logarithmic axis would be mostly empty.
    scale: Axis = {"type": "log", "nice": False} if log else {"zero": False}
    axis: Axis = {"tickCount": 5} | ({"tickMinStep": 1, "format": "d"} if whole else {})
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def name(field: str, title: str | None, order: Sequence[str]) -> Axis:
    """An axis, or a legend, of names in a given order."""
    return {"field": field, "type": "nominal", "title": title, "sort": list(order)}


def lines(
    rows: Sequence[Row],
    x: Axis,
    y: Axis,
    color: Axis,
    *,
    panels: Axis | None = None,
    columns: int = 4,
    level: float | None = None,
    colors: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Means over seeds as lines with points, and what all seeds span as bands.

    Args:
        rows: The data, a row for each point of each seed.
        x: The horizontal axis.
        y: The vertical one.
        color: What tells the lines apart.
        panels: What tells the panels apart, for more than one.
        columns: Panels in a row.
        level: A height to mark by a dashed line across.
        colors: Of the lines, in their order.
    """
    # Means are taken here, so that a tooltip shows what is drawn.
    kept = [channel["field"] for channel in (x, color, panels) if channel is not None]
    mean = {
        "aggregate": [
            {"op": "mean", "field": y["field"], "as": "mean"},
            {"op": "min", "field": y["field"], "as": "least"},
            {"op": "max", "field": y["field"], "as": "most"},
        ],
        "groupby": kept,
    }
    across = {**y, "field": "mean"}
    palette = {
        **color,
        "scale": {
            "domain": color["sort"],
            **({"range": list(colors)} if colors else {"scheme": "tableau10"}),
        },
        # Not as faint as the bands, and names in full.
        "legend": {"symbolOpacity": 1, "labelLimit": 0},
    }
    tips = [{"field": field} for field in kept]
    tips.append({"field": "mean", "format": ".4g", "title": y["title"]})
    bands: Axis = {"x": x, "y": {**y, "field": "least"}, "y2": {"field": "most"}, "color": palette}
    drawn = {"x": x, "y": across, "color": palette, "tooltip": tips}
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "area", "opacity": 0.15}, "encoding": bands},
        {"mark": {"type": "line", "strokeWidth": 1.5}, "encoding": drawn},
        {"mark": {"type": "point", "filled": True, "size": 28}, "encoding": drawn},
    ]
    if level is not None:
        rule = {"type": "rule", "strokeDash": [4, 3], "color": "gray"}
        layers.insert(0, {"mark": rule, "encoding": {"y": {"datum": level}}})
    data = {"values": [dict(row) for row in rows]}
    if panels is None:
        return {"data": data, "transform": [mean], **PANEL, "width": 420, "layer": layers}
    return {
        "data": data,
        "transform": [mean],
        "facet": {**panels, "header": {"labelFontWeight": "bold"}},
        "columns": columns,
        "spec": {**PANEL, "layer": layers},
    }
