"""`--fail-above` as a gate: what could not be certified does not pass, whoever wants it to."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("typer")

from spectralclip import cli
from spectralclip._audit import Audit, audit
from spectralclip.cli._limits import FailOn, above, uncertified, verdict

# A folder of models that have something odd about them.
ODD = """
import sys

import torch
from torch import nn


def dense():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def nan():
    model = dense()
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    return model


def pair():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[1].weight[0, 0] = float("inf")
    return model


def only_norms():
    return nn.Sequential(nn.LayerNorm(4), nn.PReLU())


def with_norms():
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.PReLU(), nn.Linear(4, 4))


def without_parameters():
    return nn.Sequential(nn.ReLU())


class Square(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) ** 2


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.linear(self.first(x).relu(), self.second.weight)


class Large(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.1, 1, 5000))

    def forward(self, x):
        return x * self.scale + x.roll(1, -1) / 2


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mask", torch.full((4,), -float("inf")))

    def forward(self, x):
        return self.fc(x)


def leaves():
    sys.exit(0)


class Leaving(nn.Linear):
    def __init__(self, after=0, how="exit"):
        super().__init__(4, 4)
        self.left, self.how = after, how

    def forward(self, x):
        type(self).calls += 1
        if type(self).calls > self.left:
            if self.how == "exit":
                sys.exit(0)
            raise GeneratorExit("gone")
        return super().forward(x)

    calls = 0


def colourful():
    name = "\\x1b[2J\\nlayer\\x9b"
    model = nn.ModuleDict({name: nn.Linear(4, 4), "\\x07norm": nn.LayerNorm(4)})
    model.forward = lambda x: model["\\x07norm"](model[name](x))
    return model
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in repr(module):
            del sys.modules[name]


def gate(model: str, *args: object, shape: object = 4, limit: object = 1e9) -> int:
    given = ("audit", f"odd.py:{model}", "--input", shape, "--fail-above", limit, *args)
    return cli.main(list(map(str, given)))


def on(*what: str) -> list[str]:
    return [part for one in what for part in ("--fail-on", one)]


def complaints(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix("not certified: ") for line in lines if line.startswith("not ")]


# What could not be certified


@pytest.mark.parametrize(
    ("what", "names"),
    [
        (("layers",), ["2"]),
        (("chains",), ["2"]),
        (("network",), ["the network"]),
        (("network", "layers"), ["2", "the network"]),
    ],
)
def test_a_nan_does_not_pass(
    capsys: pytest.CaptureFixture[str], what: tuple[str, ...], names: list[str]
) -> None:
    assert gate("nan", *on(*what)) == 1
    told = complaints(capsys)
    assert [line.partition(":")[0] for line in told] == names
    assert all("NaN or infinite values" in line for line in told)
    assert gate("dense", *on(*what)) == 0


def test_the_reports_are_written_all_the_same(folder: Path) -> None:
    assert gate("nan", "--json", "a.json") == 1
    found = json.loads((folder / "a.json").read_text())
    assert found["skipped"]["2"].startswith("not certified: ")
    assert found["lipschitz"] is None


def test_a_chain_that_has_no_bound_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate("pair", *on("chains")) == 1
    assert [line.partition(":")[0] for line in complaints(capsys)] == ["0+1"]
    assert gate("pair", *on("layers")) == 1
    assert [line.partition(":")[0] for line in complaints(capsys)] == ["1"]


def test_a_network_whose_bound_failed_does_not_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **options: object) -> None:
        raise RuntimeError("lost\nits way")

    monkeypatch.setattr(sys.modules["spectralclip._audit.audit"], "network_bound", fails)
    assert gate("dense", *on("network")) == 1
    assert complaints(capsys) == ["the network: lost its way"]
    assert gate("dense", *on("layers")) == 0


def test_a_network_without_a_bound_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate("Square", *on("network")) == 1
    (line,) = complaints(capsys)
    assert line.startswith("the network: it has no upper bound: the model itself: ")
    assert gate("Square", *on("layers")) == 0


def test_layers_that_are_certified_by_chance_only_do_not_pass_as_certain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = ("--no-lipschitz", "-k", 1)
    assert gate("Large", *args, shape=5000) == 0
    assert gate("Large", *args, "--deterministic", shape=5000) == 1
    (line,) = complaints(capsys)
    assert line.startswith("the model itself: Large() is a 5000 x 5000 matrix with no exact form")


def test_weights_that_are_out_of_reach_do_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate("Functional", "--no-lipschitz") == 1
    assert complaints(capsys) == [
        "second: is not called: its parameters (weight) are used functionally"
    ]


def test_what_is_no_affine_layer_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate("with_norms", "--no-lipschitz") == 0
    assert "--fail-on network covers them: 1, 2.\n" in capsys.readouterr().err
    assert gate("with_norms", *on("network", "layers")) == 0
    assert "covers them" not in capsys.readouterr().err


def test_a_gate_that_has_seen_nothing_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate("only_norms", "--no-lipschitz") == 1
    assert complaints(capsys) == ["no affine layer was found, so that nothing was looked at."]
    assert gate("without_parameters", "--no-lipschitz") == 0


def test_only_what_is_asked_for_counts() -> None:
    """A layer that has no bound alone, in a chain that has one; and the other way round."""
    found = audit(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.zeros(1, 3))
    assert [row.name for row in found.layers] == ["0", "1", "0+1"]

    def without(*names: str) -> Audit:
        rows = tuple(row for row in found.layers if row.name not in names)
        skipped = dict.fromkeys(names, "not certified: why")
        return dataclasses.replace(found, layers=rows, skipped=skipped)

    assert uncertified(without("1"), [FailOn.chains]) == []
    assert uncertified(without("1"), [FailOn.layers]) == ["1: why"]
    assert uncertified(without("0+1"), [FailOn.chains]) == ["0+1: why"]
    assert uncertified(without("0+1"), [FailOn.layers]) == []
    assert uncertified(without("0", "1", "0+1"), [FailOn.chains]) == ["0+1: why"]
    # A module may have a plus in its name, and is not excused by it.
    assert uncertified(without("a+b"), [FailOn.layers]) == ["a+b: why"]
    assert verdict(without("a+b"), 1e9, [FailOn.network])[0] == []
    many = without(*map(str, range(2, 10)))
    assert verdict(many, 1e9, [FailOn.layers])[0][-1] == "not certified: 3 more."


def test_a_norm_that_is_no_number_is_not_within() -> None:
    found = audit(nn.Linear(3, 3), torch.zeros(1, 3), lipschitz=False)
    (row,) = found.layers
    norm = dataclasses.replace(row.norm, upper=float("nan"))
    odd = dataclasses.replace(found, layers=(dataclasses.replace(row, norm=norm),))
    assert above(odd, 1e9, [FailOn.layers])[0].startswith("the model itself (")


@pytest.mark.parametrize("limit", ["nan", "-1", "inf", "-inf"])
def test_a_limit_is_a_norm(capsys: pytest.CaptureFixture[str], limit: str) -> None:
    assert gate("dense", limit=limit) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: --fail-above: expected a finite")


# Code that wants to leave


@pytest.mark.parametrize("how", ["exit", "other"])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_model_that_ends_the_program_does_not_pass(
    capsys: pytest.CaptureFixture[str], after: int, how: str
) -> None:
    """At the first call, with which it is tried, or later in the audit."""
    assert gate("Leaving", "--set", f"after={after}", "--set", f"how={how}") == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith("error: ") and "odd.py" in printed.err


def test_a_factory_that_ends_the_program_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate("leaves") == 2
    assert "raised SystemExit: 0 (line " in capsys.readouterr().err


# Weights that are no numbers


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(
    capsys: pytest.CaptureFixture[str], folder: Path, value: float
) -> None:
    state = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).state_dict()
    state["2.weight"][1, 1] = value
    torch.save(state, "bad.pt")
    commands = (
        ("audit", "odd.py:dense", "--json", "a.json"),
        ("clip", "odd.py:dense", "-o", "out.pt"),
    )
    for command in commands:
        assert cli.main([*command, "--input", "4", "--weights", "bad.pt"]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err == (
            "error: weights bad.pt: NaN or infinite values in 1 of the model's tensors: 2.weight. "
            "Norms are not defined then: restore finite weights.\n"
        )
    assert {path.name for path in folder.iterdir()} == {"odd.py", "bad.pt"}


def test_masks_may_be_infinite(capsys: pytest.CaptureFixture[str]) -> None:
    linear = nn.Linear(4, 4)
    state = {f"fc.{name}": value for name, value in linear.state_dict().items()}
    torch.save({**state, "mask": torch.full((4,), -float("inf"))}, "weights.pt")
    assert gate("Masked", "--weights", "weights.pt", "--no-lipschitz") == 0
    torch.save({**state, "mask": torch.full((4,), float("nan"))}, "weights.pt")
    assert gate("Masked", "--weights", "weights.pt", "--no-lipschitz") == 2
    assert "tensors: mask." in capsys.readouterr().err


# What is printed


def test_names_do_not_talk_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate("colourful", "--no-lipschitz", limit=0) == 1
    printed = capsys.readouterr()
    assert (printed.out + printed.err).replace("\n", "").isprintable()
    assert "\n\\x1b[2J\\nlayer\\x9b  " in printed.out
    assert "left out: \\x07norm: " in printed.out
    assert "above 0: \\x1b[2J\\nlayer\\x9b (" in printed.err
    assert "covers them: \\x07norm." in printed.err


def test_two_names_of_one_file_are_found_out(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "a").touch()
    (folder / "b").symlink_to("a")
    (folder / "here").symlink_to(".")
    for html, text in (("a", "b"), ("b", "a"), ("new", "here/new")):
        assert gate("dense", "--html", html, "--json", text) == 2
        assert "are the same file" in capsys.readouterr().err
    assert (folder / "a").read_text() == ""


def test_help_lists_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for code in ("0 fine", "1 not all", "2 bad input", "130 stopped", "141 nobody", "143 term"):
        assert code in text
    assert "reports have been written" in text and "has written nothing" not in text


class Routed(nn.Module):
    """Goes by one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.first if bool(x.sum() >= 0) else self.second
        routed: torch.Tensor = chosen(x)
        return routed


def test_a_network_that_decides_by_its_input_is_not_certified() -> None:
    found = audit(Routed(), torch.ones(1, 4))
    assert found.lipschitz is not None and found.lipschitz.upper < 100
    assert above(found, 100.0, [FailOn.network]) == []
    (why,) = uncertified(found, [FailOn.network])
    assert "decides by its input" in why
    assert "for the way that the examples take" in str(found)
