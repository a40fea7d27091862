"""The command line: `spectralclip audit | clip | compare | conformance | demo`."""

from spectralclip.cli._app import app, main

__all__ = ["app", "main"]
