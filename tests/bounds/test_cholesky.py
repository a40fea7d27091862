"""Deterministic upper bounds against NumPy's dense SVD in float64: never below, and close."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from bounds_cases import assembled, composed, grams, operator
from cases import CASES, Case, dense_singular_values, params
from torch import Tensor, nn

import spectralclip as sc
from oracle import dense_matrix, dense_norm
from spectralclip._bounds import cholesky as certificates
from spectralclip._bounds.banded import BandedGram
from spectralclip._bounds.cholesky import certified_square, deterministic_upper, rounding

# The first guess lies 1e-4 above the norm; nothing else may add to it visibly.
TIGHT = 2e-4


def assert_certified(upper: float | None, norm: float, excess: float = TIGHT) -> None:
    assert upper is not None
    assert norm <= upper <= (1 + excess) * norm


def in_float64(case: Case) -> Any:
    layer = case.make()
    for part in layer if isinstance(layer, (list, tuple)) else [layer]:
        if isinstance(part, nn.Module):
            part.double()
    return layer


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", params(CASES))
def test_every_kind_of_layer_is_certified(case: Case) -> None:
    op = operator(in_float64(case), case.in_shape)
    norm = float(dense_singular_values(case)[0])
    found = deterministic_upper(op, 0.9999 * norm, 0.01)
    if norm == 0:
        assert found == 0.0
        return
    # The dense SVD rounds too.
    assert_certified(found, norm * (1 - 1e-12))


GRID = list(
    itertools.product(["reflect", "replicate", "zeros", "circular"], [1, 2], [2, 3, 5], [1, 2])
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("mode", "stride", "kernel", "dilation"), GRID)
def test_convolutions_of_every_geometry(mode: str, stride: int, kernel: int, dilation: int) -> None:
    padding = dilation * (kernel - 1) // 2
    for channels in ((1, 1), (3, 2), (2, 4)):
        layer = nn.Conv2d(
            *channels,
            kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            padding_mode=mode,
            dtype=torch.float64,
        )
        shape = (channels[0], 11, 10)
        norm = dense_norm(layer, shape)
        assert_certified(deterministic_upper(operator(layer, shape), norm, 0.01), norm)


@pytest.mark.parametrize("name", composed())
def test_compositions_groups_and_other_dimensions(name: str) -> None:
    layer, shape = composed()[name]
    norm = dense_norm(layer, shape)
    op = operator(layer, shape)
    assert_certified(deterministic_upper(op, norm, 0.01), norm)
    assert_certified(deterministic_upper(op.adjoint(), norm, 0.01), norm)


@pytest.mark.parametrize("name", composed())
def test_a_value_below_the_norm_is_refused(name: str) -> None:
    layer, shape = composed()[name]
    norm = dense_norm(layer, shape)
    for gram in grams(layer, shape):
        assert certified_square(gram, (0.999 * norm) ** 2) is None
        assert certified_square(gram, ((1 - 1e-6) * norm) ** 2) is None
        bound = certified_square(gram, ((1 + 1e-6) * norm) ** 2)
        assert bound is not None
        assert norm**2 < bound < ((1 + 2e-6) * norm) ** 2


def test_rounding_is_allowed_for() -> None:
    """What forming the blocks loses against extended precision is below the bound, and small."""
    layer = nn.Conv1d(8, 6, 5, padding=2, padding_mode="replicate", dtype=torch.float64)
    gram = BandedGram(operator(layer, (8, 12)).maps, 1, torch.device("cpu"))
    exact = dense_matrix(layer.requires_grad_(False), (8, 12)).astype(np.longdouble)
    exact = exact.reshape(-1, 8, 12).transpose(0, 2, 1).reshape(-1, 96)
    lost = np.linalg.norm((assembled(gram, 0).numpy() - exact.T @ exact).astype(float), 2)
    norm = float(np.linalg.norm(exact.astype(float), 2))
    assert 0 < lost < rounding(gram) < 1e-10 * norm**2
    square = (1.01 * norm) ** 2
    bound = certified_square(gram, square)
    assert bound is not None
    assert square + rounding(gram) < bound < square * (1 + 1e-9)


def test_a_wrong_factor_proves_nothing_false(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is taken for the factor, the residual pays for it."""
    layer = nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect", dtype=torch.float64)
    norm = dense_norm(layer, (2, 7, 8))
    honest = torch.linalg.cholesky_ex

    def shifted(matrix: Tensor) -> tuple[Tensor, Tensor]:
        return honest(matrix + 2 * norm**2 * torch.eye(matrix.shape[-1], dtype=matrix.dtype))

    monkeypatch.setattr(torch.linalg, "cholesky_ex", shifted)
    for gram in grams(layer, (2, 7, 8)):
        bound = certified_square(gram, (0.9 * norm) ** 2)
        assert bound is None or bound >= norm**2


def test_a_low_guess_is_raised() -> None:
    layer = nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect", dtype=torch.float64)
    norm = dense_norm(layer, (3, 9, 9))
    for lower in (0.0, 0.3 * norm, 0.99 * norm):
        assert_certified(deterministic_upper(operator(layer, (3, 9, 9)), lower, 0.01), norm)
    assert certificates._certified(grams(layer, (3, 9, 9))[0], (0.999 * norm) ** 2, 1e-3)


def test_a_small_tolerance_gives_a_sharper_bound() -> None:
    layer = nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect", dtype=torch.float64)
    norm = dense_norm(layer, (3, 9, 9))
    found = deterministic_upper(operator(layer, (3, 9, 9)), norm, 1e-5)
    assert_certified(found, norm, 1.2e-5)


@pytest.mark.parametrize("scale", [1e-180, 1e-30, 1e30, 1e150])
def test_extreme_weights(scale: float) -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect", dtype=torch.float64)
    norm = dense_norm(layer, (2, 6, 7))
    with torch.no_grad():
        layer.weight.mul_(scale)
    found = deterministic_upper(operator(layer, (2, 6, 7)), norm * scale, 0.01)
    assert_certified(found, norm * scale)


def test_stages_that_cancel() -> None:
    first, second = (nn.Linear(4, 4, bias=False, dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        first.weight.copy_(torch.diag(torch.tensor([1.0, 1.0, 0.0, 0.0])))
        second.weight.copy_(torch.diag(torch.tensor([0.0, 0.0, 1.0, 1.0])))
    found = deterministic_upper(operator([first, second], (4,)), 0.0, 0.01)
    assert found is not None
    assert 0 <= found < 1e-5


def test_float32_is_refused() -> None:
    op = sc.as_operator(nn.Conv2d(2, 2, 3), (2, 6, 6))
    with pytest.raises(ValueError, match="needs float64"):
        deterministic_upper(op, 1.0, 0.01)


def test_what_is_too_large_is_declined_at_once() -> None:
    layer = nn.Conv2d(512, 512, 3, padding=1, padding_mode="reflect", dtype=torch.float64)
    assert deterministic_upper(operator(layer, (512, 28, 28)), 1.0, 0.01) is None
