"""Where users find a class."""

from __future__ import annotations


def publish(*classes: type) -> None:
    """Have errors, tracebacks and pickles name classes by where users find them."""
    for cls in classes:
        cls.__module__ = "spectralclip"
