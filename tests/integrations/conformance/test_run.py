"""What a function's answers are worth: each verdict, bounds, and the document of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spectralclip.integrations.conformance import ConformanceLayer, Outcome, load, report_sheet, run

LAYERS = load()
DENSE = [layer for layer in LAYERS if layer.kind == "dense"][:4]
ZERO = next(layer for layer in LAYERS if layer.name == "zero")


def times(factor: float) -> Callable[[nn.Module, tuple[int, ...]], float]:
    def estimate(module: nn.Module, in_shape: tuple[int, ...]) -> float:
        return factor * float(torch.linalg.matrix_norm(module.weight.detach(), 2))

    return estimate


def one(estimate: Callable[..., Any], layer: ConformanceLayer = DENSE[0]) -> Outcome:
    return run(estimate, [layer]).outcomes[0]


@pytest.mark.parametrize(
    ("factor", "verdict", "upper", "lower"),
    [
        (1.0, "right", True, True),
        (1.0009, "right", True, False),
        (1.01, "above", True, False),
        (0.99, "below", False, True),
        (0.0, "below", False, True),
        (-1.0, "wrong", False, False),
        (math.nan, "wrong", False, False),
        (math.inf, "wrong", False, False),
    ],
)
def test_numbers(factor: float, verdict: str, upper: bool, lower: bool) -> None:
    found = one(times(factor))
    assert found.verdict == verdict
    assert (found.meets("upper"), found.meets("lower")) == (upper, lower)
    assert found.meets("right") == (verdict == "right")


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((0.0, math.inf), "wrong"),
        ((0.9, 1.1), "right"),
        ((1.1, 1.2), "wrong"),
        ((0.8, 0.9), "wrong"),
        ((0.0, 1e9), "right"),
    ],
)
def test_intervals(ends: tuple[float, float], verdict: str) -> None:
    truth = DENSE[0].value
    assert one(lambda module, in_shape: (ends[0] * truth, ends[1] * truth)).verdict == verdict


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, nn.Parameter])
def test_two_numbers_of_any_kind_are_an_interval(kind: Any) -> None:
    truth = DENSE[0].value
    ends = [0.9 * truth, 1.1 * truth]
    found = one(lambda module, in_shape: kind(torch.tensor(ends) if kind is nn.Parameter else ends))
    assert (found.verdict, found.lower, found.upper) == ("right", *map(pytest.approx, ends))


@pytest.mark.parametrize(("answer", "verdict"), [(0.0, "right"), (1e-9, "above")])
def test_the_norm_zero(answer: float, verdict: str) -> None:
    assert one(lambda module, in_shape: answer, ZERO).verdict == verdict


@pytest.mark.parametrize("answer", [None, "1.0", True, torch.ones(3), 1j, [1.0], ("1.0", "2.0")])
def test_what_is_no_answer_is_raised(answer: Any) -> None:
    found = one(lambda module, in_shape: answer)
    assert found.verdict == "raised"
    assert "expected a number or the two ends of an interval, got " in found.error
    assert found.ratio is None


def test_errors_are_kept_and_the_run_goes_on() -> None:
    def picky(module: nn.Module, in_shape: tuple[int, ...]) -> float:
        if in_shape == DENSE[1].in_shape:
            raise NotImplementedError("not\nthis one")
        return times(1.0)(module, in_shape)

    told: list[str] = []
    report = run(picky, DENSE, tell=lambda outcome: told.append(outcome.name))
    assert [outcome.verdict for outcome in report.outcomes].count("raised") >= 1
    raised = next(outcome for outcome in report.outcomes if outcome.verdict == "raised")
    assert raised.error.startswith("NotImplementedError: not")
    assert "\n" not in raised.error
    assert told == [layer.name for layer in DENSE]
    assert report.failures("right") == [raised.name]


def test_the_same_seed_and_a_state_that_is_left_alone() -> None:
    drawn: list[float] = []

    def random(module: nn.Module, in_shape: tuple[int, ...]) -> float:
        drawn.append(float(torch.rand(())))
        return 1.0

    before = torch.random.get_rng_state()
    run(random, DENSE[:2], seed=3)
    assert drawn[0] == drawn[1]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_document_table_and_conclusion() -> None:
    report = run(times(1.2), [*DENSE, ZERO])  # of a kernel, the norms of its taps
    document = json.loads(report.to_json())
    assert document["counts"] == {"right": 0, "above": 4, "below": 0, "wrong": 0, "raised": 1}
    assert document["layers"][0]["truth"] == DENSE[0].value
    assert "an upper bound on 4 of 4 that it answers; a lower bound on 0 of 4" in report.conclusion
    sheet = report_sheet(report)
    assert [row[0] for row in sheet.rows] == ["dense", "repeated", "all"]
    assert "1.2 times the norm" in sheet.footer
    assert "1 x, as on zero: " in sheet.footer


def test_numbers_that_are_not_finite_are_written_as_text() -> None:
    document = json.loads(run(times(math.inf), DENSE[:1]).to_json())
    assert document["layers"][0]["upper"] == "inf"
