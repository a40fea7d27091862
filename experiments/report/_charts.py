"""Charts as SVG: Vega-Lite specifications, drawn without a browser.

Colours are the CSS variables of the report's own style sheet. Inside the HTML page they follow the
theme; a file that stands alone gets the light theme's colours and a white ground.
"""

from __future__ import annotations

import functools
import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from spectralclip.report._render import missing

CONFIG: dict[str, Any] = {
    "background": None,
    "font": "Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line-strong)",
        "tickColor": "var(--line-strong)",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelLimit": 220,
    },
    "header": {"labelColor": "var(--text)", "titleColor": "var(--text)", "labelLimit": 220},
    "legend": {
        "orient": "top",
        "titleColor": "var(--muted)",
        "labelColor": "var(--text)",
        "titleFontWeight": "normal",
        "labelLimit": 240,
    },
    "title": {"color": "var(--text)", "fontSize": 12},
}


@functools.cache
def style() -> str:
    """The style sheet of the library's reports."""
    return (
        resources.files("spectralclip.report")
        .joinpath("page", "style.css")
        .read_text(encoding="utf-8")
    )


def draw(spec: Mapping[str, Any]) -> str:
    """The chart as SVG, its colours still variables.

    Raises:
        ImportError: vl-convert-python is not installed.
        ValueError: The specification is not one of Vega-Lite.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise missing("vl-convert-python", error) from error
    full = {**spec, "config": {**CONFIG, **spec.get("config", {})}}
    return str(vl_convert.vegalite_to_svg(json.dumps(full)))


def on_white(svg: str) -> str:
    """The drawing as a file of its own, in the light theme's colours."""
    colors = _light()
    plain = re.sub(r"var\(--([\w-]+)\)", lambda found: colors.get(found[1], "#000000"), svg)
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return re.sub(r"(<svg\b[^>]*>)", lambda found: found[1] + ground, plain, count=1)


def inline(svg: str, name: str, alt: str) -> str:
    """The drawing as a part of a page that has others.

    Names inside it get the chart's own in front: ids have to be unique in a page.
    """
    own = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    own = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", own)
    own = re.sub(r'\bhref="#([^"]+)"', rf'href="#{name}-\1"', own)
    label = f'<svg role="img" aria-label="{html.escape(alt, quote=True)}"'
    return re.sub(r"<svg\b", lambda _: label, own, count=1)


@functools.cache
def _light() -> dict[str, str]:
    """The variables of the style sheet's first rule, which is the light theme."""
    first = style().partition("}")[0]
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-fA-F]{3,8})", first))
