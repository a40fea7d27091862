"""The command line: `spectralclip audit | clip | compare | demo`."""

from spectralclip.cli._app import app, main

__all__ = ["app", "main"]
