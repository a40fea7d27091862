"""From an audit's document to a page that stands on its own.

`render` takes the document of one audit, or of a comparison of two, as a dict of plain values,
and returns one HTML page: it loads nothing from anywhere, works from a file and prints.
`render_fragment` wraps that page for a notebook.
"""

from spectralclip.report._document import AUDIT, COMPARISON, VERSION, require_document
from spectralclip.report._render import render, render_fragment

__all__ = ["AUDIT", "COMPARISON", "VERSION", "render", "render_fragment", "require_document"]
