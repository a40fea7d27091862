"""The tables of an audit: in little room, with odd names, and with numbers at the edge."""

from __future__ import annotations

import dataclasses
import io
import math

import pytest
import torch
from audit_cases import audited
from torch import nn

from spectralclip._audit import Audit, audit
from spectralclip._audit.table import Column, Sheet, bound_text, plain_table, rich_table
from spectralclip._common import printable
from spectralclip._lipschitz.result import NetworkBound, Unbounded

pytest.importorskip("rich")


def printed(sheet: Sheet | Audit, width: int) -> str:
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    console.print(sheet.table() if isinstance(sheet, Audit) else rich_table(sheet))
    return console.export_text()


SHEET = Sheet(
    "title",
    (Column("layer", "left"), Column("what", "left", 1), Column("norm"), Column("rank", "", 2)),
    [("block.conv+bn", "together", "3.956 .. 3.977", "12"), ("fc", "Linear 4 -> 4", "1", "")],
    "the end",
)


@pytest.mark.parametrize("width", [12, 20, 30, 40, 60, 200])
def test_name_and_norm_are_there_in_any_width(width: int) -> None:
    text = printed(SHEET, width)
    assert max(map(len, text.splitlines())) <= width
    joined = "".join(text.split())
    # Folded names go on in the next line of their column: what is left of it is the first part.
    assert "block.conv" in joined and "fc" in joined
    assert "norm" in joined and "3.956" in joined and "3.977" in joined
    if width >= 40:
        assert "3.956 .. 3.977" in text
    assert ("Linear" in joined) == (width > 40)
    assert ("rank" in joined.split("Noroom")[0]) == (width > 40)


def test_what_has_no_room_is_named() -> None:
    assert "No room for" not in printed(SHEET, 60)
    assert "No room for: rank." in printed(SHEET, 46)
    assert "No room for: what, rank." in " ".join(printed(SHEET, 40).split())


def test_every_layer_is_there_in_a_narrow_terminal() -> None:
    _, found = audited("resnet")
    text = "".join(printed(found, 20).split())
    for layer in found.layers:
        assert f"{layer.name.partition('+')[0]}" in text
        assert f"{layer.norm.upper:.4g}" in text


@pytest.mark.parametrize("bad", ["\x1b[2J", "\n", "\r", "\x7f", "\x9b", "\u202e", "\ud800", "\0"])
def test_control_characters_are_spelled_out(bad: str) -> None:
    spelled = bad[0].encode("unicode_escape").decode() + bad[1:]
    assert printable(f"a{bad}b") == f"a{spelled}b"
    sheet = SHEET._replace(title=f"t{bad}", rows=[(f"n{bad}", f"w{bad}", "1", "2")])
    for text in (plain_table(sheet), printed(sheet, 200), printed(sheet, 16)):
        assert text.replace("\n", "").isprintable()
        assert f"t{spelled}" in text and f"n{spelled}" in text


def test_the_model_itself_has_no_name() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.fc = nn.Parameter(torch.ones(3)), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) + self.shift

    text = str(audit(Own(), torch.zeros(1, 3), lipschitz=False))
    assert "left out: the model itself: its own parameters" in text
    assert "\nthe model itself  Linear" in str(audit(nn.Linear(3, 3), torch.zeros(1, 3)))
    bound = NetworkBound(1.0, math.inf, 0.0, math.inf, (Unbounded("", "pow", "it\nis steep"),))
    assert bound_text(bound).endswith("\n  unbounded at the model itself: it is steep")


def test_zero_has_no_sign() -> None:
    assert "at least 0, at most 2" in bound_text(NetworkBound(-0.0, 2.0, 0.0, math.inf))
    found = audit(nn.Linear(3, 3), torch.zeros(1, 3), lipschitz=False)
    norm = dataclasses.replace(found.layers[0].norm, lower=-0.0, upper=0.0)
    zero = dataclasses.replace(found.layers[0], norm=norm)
    assert "-0" not in str(dataclasses.replace(found, layers=(zero,)))
