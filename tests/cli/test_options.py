"""The options of the command line: their help, and how they are completed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_cases import Command

pytest.importorskip("typer")

from spectralclip import __version__
from spectralclip.cli._options import complete_model

pytestmark = pytest.mark.usefixtures("folder")


def test_version_and_help(spectralclip: Command) -> None:
    assert spectralclip("--version") == 0
    assert spectralclip.output == f"spectralclip {__version__}\n"
    assert spectralclip() == 0
    for command in ("audit", "clip", "compare", "demo"):
        assert re.search(rf"^  {command} ", spectralclip.output, re.MULTILINE)
    for command in ("audit", "clip", "compare", "demo"):
        assert spectralclip(command, "--help") == 0
        assert f"    spectralclip {command} " in spectralclip.output
        assert "Exit codes: 0 fine; 1 " in spectralclip.output


def test_models_are_completed() -> None:
    Path("net.pt2").touch()
    assert complete_model("") == ["timm:", "transformers:", "nets.py:", "net.pt2"]
    assert complete_model("t") == ["timm:", "transformers:"]
