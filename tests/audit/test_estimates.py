"""What methods take for norms, beside certified intervals, in Python and on the command line."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_cases import NETS
from torch import nn
from training_cases import assert_identical
from untouched import assert_same, surroundings

from oracle import dense_norm
from spectralclip import audit
from spectralclip._audit import examine
from spectralclip._audit.estimates import EstimatedLayer, compare_estimates, estimates_sheet
from spectralclip._audit.table import plain_table


def exact(module: nn.Module, in_shape: Any, *, generator: Any = None) -> float:
    return dense_norm([module], in_shape)


def convolutions_alone(module: nn.Module, in_shape: Any, *, generator: Any = None) -> float:
    if not isinstance(module, nn.Conv2d):
        raise ValueError("it takes convolutions")
    return exact(module, in_shape)


ESTIMATORS: dict[str, Any] = {
    "exact": exact,
    "half": lambda module, in_shape, generator: exact(module, in_shape) / 2,
    "twice": lambda module, in_shape, generator: 2 * exact(module, in_shape),
    "conv": convolutions_alone,
    "none": lambda module, in_shape, generator: None,
    "not-implemented": lambda module, in_shape, generator: NotImplemented,
    "drawn": lambda module, in_shape, generator: float(
        torch.rand((), generator=generator) + 0 * torch.rand(())
    ),
}


def network() -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(75, 4),
    )
    nn.init.uniform_(model[1].weight, 0.5, 2)
    return model


EXAMPLE = torch.ones(2, 2, 5, 5)


def compared(
    model: nn.Module, example: torch.Tensor, estimators: dict[str, Any], seed: int = 0
) -> list[EstimatedLayer]:
    found = audit(model, example, lipschitz=False)
    return compare_estimates(model, example, estimators, found, seed=seed)


def test_estimates_stand_beside_intervals_that_hold_the_norm() -> None:
    model = network()
    rows = compared(model, EXAMPLE, ESTIMATORS)
    assert [row.name for row in rows] == ["0", "1", "4"]
    assert [row.kind for row in rows] == ["Conv2d", "BatchNorm2d", "Linear"]
    for row in rows:
        norm = dense_norm([model[int(row.name)]], row.in_shape)
        assert row.norm is not None
        assert row.norm.lower * (1 - 1e-5) <= norm <= row.norm.upper * (1 + 1e-5)
        assert row.estimates["half"] == norm / 2
        assert (row.side("half"), row.side("twice")) == ("-", "+")
        assert row.refusals["none"] == row.refusals["not-implemented"] == "it has no estimate"
        assert ("conv" in row.estimates) == (row.kind == "Conv2d")
    assert rows[2].refusals["conv"] == "it takes convolutions"


def test_the_side_is_that_of_the_interval() -> None:
    (row, *_) = compared(network(), EXAMPLE, {"exact": exact})
    assert row.norm is not None
    inside = {"a": row.norm.lower * (1 - 0.9e-3), "b": row.norm.upper * (1 + 0.9e-3)}
    chosen = EstimatedLayer("0", "Conv2d", (2, 5, 5), row.norm, inside)
    assert (chosen.side("a"), chosen.side("b"), chosen.side("c")) == ("", "", "")
    off = {"a": row.norm.lower * (1 - 1.1e-3), "b": row.norm.upper * (1 + 1.1e-3)}
    chosen = EstimatedLayer("0", "Conv2d", (2, 5, 5), row.norm, off)
    assert (chosen.side("a"), chosen.side("b")) == ("-", "+")
    assert EstimatedLayer("0", "Conv2d", (2, 5, 5), None, inside).side("a") == ""


def test_an_audit_gives_its_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    found = audit(model, EXAMPLE, lipschitz=False)

    def fails(*args: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(examine.Request, "bounded", fails)
    rows = compare_estimates(model, EXAMPLE, ESTIMATORS, found)
    assert [row.norm for row in rows] == [found[row.name].norm for row in rows]


def test_a_layer_at_two_sizes_is_taken_where_its_norm_is_largest() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(self.conv(x)[..., ::3, ::3])

    model = Twice()
    nn.init.ones_(model.conv.weight)
    (row,) = compared(model, torch.ones(1, 1, 9, 9), {"exact": exact})
    assert row.in_shape == (1, 9, 9)
    assert row.estimates["exact"] == dense_norm([model.conv], (1, 9, 9))


def test_model_and_random_numbers_are_left_as_they_were() -> None:
    model = network()
    before, state = surroundings(), copy.deepcopy(model.state_dict())
    first = compared(model, EXAMPLE, ESTIMATORS, seed=1)
    assert_same(before, surroundings())
    assert_identical(state, model.state_dict())
    assert model.training
    again = compared(model, EXAMPLE, ESTIMATORS, seed=1)
    assert [row.estimates for row in first] == [row.estimates for row in again]
    other = compared(model, EXAMPLE, ESTIMATORS, seed=2)
    assert first[0].estimates["drawn"] != other[0].estimates["drawn"]


def test_a_layer_without_an_interval_keeps_its_estimates() -> None:
    model = network()
    with torch.no_grad():
        model[4].weight.fill_(float("nan"))
    rows = compared(model, EXAMPLE, {"one": lambda module, in_shape, generator: 1.0})
    assert rows[2].norm is None and rows[2].estimates == {"one": 1.0}
    assert rows[0].norm is not None


def test_the_table_marks_what_is_off_and_names_who_is_silent() -> None:
    rows = compared(network(), EXAMPLE, ESTIMATORS)
    sheet = estimates_sheet(rows)
    headings = [column.heading for column in sheet.columns[3:]]
    assert headings == ["conv", "drawn", "exact", "half", "twice"]
    lines = plain_table(sheet).splitlines()
    conv = next(line for line in lines if line.startswith("0 "))
    half, twice = rows[0].estimates["half"], rows[0].estimates["twice"]
    assert f"{half:.4g}-" in conv and f"{twice:.4g}+" in conv
    assert "For no layer here: none, not-implemented." in lines[-1]


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "estimated_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return "estimated_nets.py:Net"


def test_the_command_line_prints_them(
    nets: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("typer")
    from spectralclip import cli
    from spectralclip.cli import _app

    monkeypatch.setattr(_app, "estimators", lambda: ESTIMATORS)
    args = ["audit", nets, "--input", "3,6,6", "--no-lipschitz"]
    assert cli.main(args) == 0
    assert "estimates" not in capsys.readouterr().out
    assert cli.main([*args, "--compare-estimates", "--json", "a.json"]) == 0
    output = capsys.readouterr().out
    _, table = output.split("estimates of the largest singular value")
    names = [line.split()[0] for line in table.splitlines() if line and line[0].isalpha()]
    assert names[:4] == ["layer", "conv", "bn", "fc"]
    assert Path("a.json").exists()


def test_a_table_does_not_go_into_json(nets: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("typer")
    from spectralclip import cli

    args = ["audit", nets, "--input", "3,6,6", "--compare-estimates", "--json", "-"]
    assert cli.main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--compare-estimates prints a table: give --json a file" in captured.err
