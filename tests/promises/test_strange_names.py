"""Names with characters that a terminal, a page or a file would obey, hide or choke on."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("typer")
pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")

from spectralclip import cli
from spectralclip._audit import Audit, audit
from spectralclip._common.text import LONGEST, shown_reason

STRANGE = {
    "NUL": "\x00",
    "escape": "\x1b[2J",
    "CSI": "\x9b31m",
    "bell": "\x07",
    "newline": "\n",
    "carriage return": "\r",
    "right to left": "\u202e",
    "isolate": "\u2067",
    "no width": "\u200b",
    "byte order": "\ufeff",
    "line separator": "\u2028",
    "half a pair": "\ud800",
    "other half": "\udfff",
    "private": "\ue000",
    "no character": "\uffff",
    "tag": "\U000e0041",
    "delete": "\x7f",
}


def model() -> nn.Module:
    """Layers, chains, and modules without a norm, of strange names."""
    whole = nn.Sequential()
    for character in STRANGE.values():
        whole.add_module(f"fc{character}", nn.Linear(4, 4))
        whole.add_module(f"relu{character}", nn.ReLU())
    for character in STRANGE.values():
        whole.add_module(f"cube{character}", _Cube(nn.LayerNorm(4)))
    return whole


class _Cube(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) ** 3


def harmful(text: str, allowed: str = "\n") -> set[str]:
    """The characters of a text that cannot be printed."""
    return {one for one in text if not one.isprintable() and one not in allowed}


def data_in(page: str) -> str:
    """The data that a page carries, unpacked."""
    packed = re.findall(r'<script[^>]*id="data"[^>]*>([^<]*)<', page)
    return gzip.decompress(base64.b64decode(packed[0])).decode("utf-8")


@pytest.fixture(scope="module")
def strange() -> Audit:
    found = audit(model(), torch.zeros(1, 4), k=1)
    names = {row.name for row in found.layers} | set(found.skipped)
    assert all(f"fc{one}" in names and f"cube{one}.norm" in names for one in STRANGE.values())
    assert found.lipschitz is not None and len(found.lipschitz.unbounded) >= len(STRANGE)
    return found


def test_no_strange_character_is_written(strange: Audit, tmp_path: Path) -> None:
    title = "".join(STRANGE.values())
    for result in (strange, strange.compare(strange)):
        text = result.to_json(tmp_path / "a.json")
        assert not harmful(text)
        assert text == (tmp_path / "a.json").read_text("utf-8")
        page = result.to_html(tmp_path / "a.html", title=title)
        assert page == (tmp_path / "a.html").read_text("utf-8")
        data = data_in(page)
        for shown in (page, data):
            assert not harmful(shown) & set(title)
        for character in STRANGE.values():
            spelled = character.encode("unicode_escape").decode("ascii")
            assert f"cube{spelled}" in page
            assert f"fc{json.dumps(spelled)[1:-1]}" in data
    # What is written by its number is read as what it was.
    assert Audit.from_json(strange.to_json()) == strange


def test_no_strange_character_reaches_a_terminal(strange: Audit) -> None:
    rich = pytest.importorskip("rich.console")
    for result in (strange, strange.compare(strange)):
        assert not harmful(str(result))
        for width in (20, 40, 200):
            console = rich.Console(width=width, force_terminal=False)
            with console.capture() as captured:
                console.print(result.table())
            assert not harmful(captured.get())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in repr(module):
            del sys.modules[name]


def test_no_strange_character_of_a_file_leaves_a_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of files, keys of checkpoints, settings and what a model's code says."""
    saves = pytest.importorskip("safetensors.torch")
    strange = "\x1b[2J\u202e"
    source = (
        "from torch import nn\n"
        "def net(**kwargs):\n"
        "    return nn.Sequential(nn.Linear(4, 4))\n"
        f"def fails():\n    raise ValueError({strange!r})\n"
    )
    Path(f"net{strange}.py").write_text(source)
    state = {f"0.weight{strange}\x00": torch.ones(2), "0.weight": torch.ones(4, 4)}
    saves.save_file(state, f"w{strange}.safetensors")
    torch.save(state | {"more\ud800": torch.ones(1)}, "w.pt")
    net = f"net{strange}.py:net"
    given = ("--input", "4")
    commands: list[tuple[str, ...]] = [
        ("audit", net, *given, "--json", f"a{strange}.json", "--html", f"a{strange}.html"),
        ("audit", net, *given, "--json", "-"),
        ("audit", net, *given, "--compare-estimates"),
        ("audit", net, *given, "--weights", f"w{strange}.safetensors"),
        ("audit", net, *given, "--weights", "w.pt"),
        ("audit", net, *given, "--weights", "w.pt", "--allow-partial"),
        ("audit", net, *given, "--weights", f"gone{strange}.pt"),
        ("audit", f"net{strange}.py:fails", *given),
        ("audit", f"net{strange}.py:gone{strange}", *given),
        ("audit", net, "--input", f"4{strange}"),
        ("audit", net, *given, "--set", f"x{strange}"),
        ("audit", net, *given, "--device", f"cpu{strange}"),
        (f"audit{strange}",),
        ("compare", f"a{strange}.json", f"a{strange}.json"),
        ("compare", f"b{strange}.json", f"a{strange}.json"),
    ]
    codes = []
    for command in commands:
        codes.append(cli.main(list(command)))
        output, errors = capsys.readouterr()
        assert not harmful(output) and not harmful(errors), command
    assert codes == [0, 0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 2, 2, 0, 2]
    assert not harmful(Path(f"a{strange}.json").read_text("utf-8"))


def test_messages_are_cut_short() -> None:
    assert shown_reason("a\n b") == "a b"
    assert shown_reason("word " * 1000) == f"{('word ' * 1000)[:LONGEST]} ..."
