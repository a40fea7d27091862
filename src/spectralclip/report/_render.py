"""`render` and `render_fragment`: the template, filled in."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import html
import json
import zlib
from collections.abc import Mapping
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectralclip._common import keep, kept_in, missing_package
from spectralclip.report import _numbers
from spectralclip.report._view import view_of

if TYPE_CHECKING:
    from jinja2 import Environment

# One after the other inside one function, so that none of their names reach the page.
SCRIPTS = ("elements.js", "table.js", "charts.js", "detail.js", "main.js")


def render(document: Mapping[str, Any], *, title: str | None = None) -> str:
    """The page of an audit, or of a comparison of two, as one self-contained HTML text.

    The page loads nothing: styles, scripts, the charting library and the data are all inside.
    Whatever comes from the document is shown as text, whatever characters are in it.

    Args:
        document: What `Audit.to_json` or `AuditComparison.to_json` write, parsed: a dict whose
            "format" is "spectralclip.audit" or "spectralclip.comparison".
        title: The page's heading; the model's name where it is left out.

    Returns:
        The page, from its doctype on. Write it as UTF-8.

    Raises:
        ValueError: The document is of another format or version.
        ImportError: jinja2 or vl-convert-python are not installed.

    Example:
        >>> from spectralclip.report import render
        >>> audit = {"format": "spectralclip.audit", "version": 2, "model": "Net", "layers": []}
        >>> page = render(audit, title="My network")
        >>> page.startswith("<!doctype html>"), "My network" in page
        (True, True)
    """
    view = view_of(document, title)
    script, theme = _script(), _text("theme.js")
    template = _environment().get_template("page.html")
    return template.render(
        view=view,
        data=packed(json.dumps(view["data"], ensure_ascii=False, allow_nan=False)),
        library=charting_library(),
        style=_text("style.css"),
        script=script,
        script_hash=_digest(script),
        theme_script=theme,
        theme_hash=_digest(theme),
    )


def render_fragment(document: Mapping[str, Any], *, height: int = 760) -> str:
    """The same page inside an `iframe`, for notebooks: neither can disturb the other.

    Args:
        document: As for `render`.
        height: Height of the frame in pixels.

    Returns:
        An `iframe` element that carries the whole page.

    Raises:
        ValueError: The document is of another format or version.
        ImportError: jinja2 or vl-convert-python are not installed.

    Example:
        >>> from spectralclip.report import render_fragment
        >>> audit = {"format": "spectralclip.audit", "version": 2, "model": "Net", "layers": []}
        >>> render_fragment(audit).startswith("<iframe")
        True
    """
    # Without "allow-same-origin" the frame's scripts cannot reach the notebook around it.
    return (
        f'<iframe title="spectralclip report" sandbox="allow-scripts allow-modals" '
        f'style="width: 100%; height: {int(height)}px; border: 0; border-radius: 8px" '
        f'srcdoc="{html.escape(render(document), quote=True)}"></iframe>'
    )


def _environment() -> Environment:
    try:
        import jinja2
    except ImportError as error:
        raise missing("jinja2", error) from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("number", "at_most", "at_least", "interval", "factor", "count", "shape"):
        environment.filters[name] = getattr(_numbers, name)
    return environment


def _script() -> str:
    parts = "\n".join(_text(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


def _text(name: str) -> str:
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """What a content security policy wants to see, to run this script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


# vega-embed brings Vega, Vega-Lite and the tooltips along as its attributes.
SNIPPET = "window.vegaEmbed = vegaEmbed;"


@functools.cache
def charting_library() -> str:
    """Vega-Embed, Vega-Lite and Vega as one script, packed.

    To build it takes two seconds, half of the time of a small audit: it is kept in a file for other
    processes, by the version that has built it.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise missing("vl-convert-python", error) from error
    built_by = f"{metadata.version('vl-convert-python')} {SNIPPET}".encode()
    file = kept_in(f"charts-{hashlib.sha256(built_by).hexdigest()[:16]}.js.gz")
    zipped = _whole(file)
    if zipped is None:
        zipped = _zipped(vl_convert.javascript_bundle(SNIPPET))
        keep(file, zipped)
    return base64.b64encode(zipped).decode("ascii")


def _whole(file: Path) -> bytes | None:
    """A file of gzip, if it is there and not damaged."""
    try:
        zipped = file.read_bytes()
        return zipped if gzip.decompress(zipped) else None  # compares a checksum
    except (OSError, EOFError, zlib.error):
        return None


def packed(text: str) -> str:
    """`text` as gzip in base64: a third of the size, and nothing in it is markup."""
    return base64.b64encode(_zipped(text)).decode("ascii")


def _zipped(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


def missing(package: str, error: ImportError) -> ImportError:
    return missing_package("The HTML report", package, "report", error)
