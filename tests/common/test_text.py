"""Texts as they are shown: letters stay, and nothing talks to the terminal."""

from __future__ import annotations

from spectralclip._common import printable


def test_other_letters_stay() -> None:
    assert printable("größe σ 層 [bold]") == "größe σ 層 [bold]"
