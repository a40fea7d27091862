"""Deterministic upper bounds against NumPy's dense SVD in float64: never below, and close."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from cases import (
    CASES,
    Case,
    dense_singular_values,
    params,
    train_batch_norm,
)
from torch import Tensor, nn

import spectralclip as sc
from oracle import dense_matrix, dense_norm
from spectralclip import LinearOperator
from spectralclip._bounds import banded
from spectralclip._bounds import cholesky as certificates
from spectralclip._bounds.banded import BandedGram, bandwidth, coupling, shortened
from spectralclip._bounds.cholesky import certified_square, deterministic_upper, rounding
from spectralclip._operators.maps import ConvMap, TransposedMap

# The first guess lies 1e-4 above the norm; nothing else may add to it visibly.
TIGHT = 2e-4


def operator(layer: Any, in_shape: tuple[int, ...]) -> LinearOperator:
    return sc.as_operator(layer, in_shape, dtype=torch.float64)


def assert_certified(upper: float | None, norm: float, excess: float = TIGHT) -> None:
    assert upper is not None
    assert norm <= upper <= (1 + excess) * norm


def single_conv(layer: Any, in_shape: tuple[int, ...]) -> ConvMap:
    (map_,) = operator(layer, in_shape).maps
    assert isinstance(map_, ConvMap)
    return map_


# --- Cholesky -----------------------------------------------------------------------------


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


def composed() -> dict[str, tuple[Any, tuple[int, ...]]]:
    def padded(*args: Any, mode: str = "reflect", kind: Any = nn.Conv2d, **kwargs: Any) -> Any:
        return kind(*args, padding=1, padding_mode=mode, dtype=torch.float64, **kwargs)

    normed = [padded(3, 5, 3), nn.BatchNorm2d(5, dtype=torch.float64)]
    train_batch_norm(normed[1])
    return {
        "conv-bn": (normed, (3, 9, 8)),
        "two-convs": ([padded(2, 3, 3, stride=2), padded(3, 4, 3)], (2, 14, 9)),
        "three-convs": ([padded(2, 2, 3) for _ in range(3)], (2, 12, 7)),
        "conv-and-transposed": (
            [padded(2, 3, 3), nn.ConvTranspose2d(3, 2, 4, stride=2, dtype=torch.float64)],
            (2, 9, 7),
        ),
        "circular-composed": ([padded(2, 2, 3, mode="circular") for _ in range(2)], (2, 12, 6)),
        "groups": (padded(6, 9, 3, groups=3, mode="replicate"), (6, 8, 7)),
        "groups-in-a-chain": ([padded(4, 8, 3, groups=4), padded(8, 4, 3, groups=2)], (4, 7, 6)),
        "depthwise": (padded(5, 5, 3, groups=5), (5, 9, 6)),
        "conv1d": (padded(4, 3, 3, kind=nn.Conv1d), (4, 40)),
        "conv3d": (padded(2, 3, 3, kind=nn.Conv3d, stride=(2, 1, 1)), (2, 6, 4, 5)),
        "conv-and-linear-on-rows": (
            [padded(2, 3, 3), nn.Linear(6, 4, dtype=torch.float64)],
            (2, 9, 6),
        ),
    }


@pytest.mark.parametrize("name", composed())
def test_compositions_groups_and_other_dimensions(name: str) -> None:
    layer, shape = composed()[name]
    norm = dense_norm(layer, shape)
    op = operator(layer, shape)
    assert_certified(deterministic_upper(op, norm, 0.01), norm)
    assert_certified(deterministic_upper(op.adjoint(), norm, 0.01), norm)


def grams(layer: Any, shape: tuple[int, ...]) -> list[BandedGram]:
    op = operator(layer, shape)
    both = (op, op.adjoint())
    return [
        BandedGram(side.maps, axis, op.device)
        for side in both
        for axis in range(1, max(2, len(side.in_shape)))
    ]


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


def assembled(gram: BandedGram, group: int) -> Tensor:
    """The whole matrix; only its lower blocks can be asked for."""
    size, count = gram.size, gram.count
    whole = torch.zeros(count * size, count * size, dtype=torch.float64)
    for i in range(count):
        for j in range(i + 1):
            block = gram.block(i, j)[group] if i - j <= gram.bandwidth else torch.zeros(())
            whole[i * size : (i + 1) * size, j * size : (j + 1) * size] = block
    return whole.tril() + whole.tril(-1).T


@pytest.mark.parametrize("name", composed())
def test_the_blocks_make_up_the_gram_matrix(name: str) -> None:
    """Same eigenvalues: the blocks are a reordering of the matrix, and nothing is left out."""
    layer, shape = composed()[name]
    matrix = torch.as_tensor(operator(layer, shape).to_dense())
    for gram in grams(layer, shape):
        whole = [assembled(gram, group) for group in range(gram.groups)]
        values = torch.cat([torch.linalg.eigvalsh(part) for part in whole]).sort().values
        square = matrix.T @ matrix if len(values) == matrix.shape[1] else matrix @ matrix.T
        torch.testing.assert_close(values, torch.linalg.eigvalsh(square), rtol=0, atol=1e-12)


def test_positions_that_share_an_output_couple() -> None:
    for mode, stride, padding in itertools.product(
        ["zeros", "reflect", "circular"], [1, 2], [1, 4]
    ):
        layer = nn.Conv1d(1, 1, 3, stride=stride, padding=padding, padding_mode=mode)
        op = operator(layer, (1, 9))
        matrix = op.to_dense()
        assert torch.equal(coupling(op.maps, 1), matrix.abs().T @ matrix.abs() > 0)
        assert torch.equal(coupling(op.adjoint().maps, 1), matrix.abs() @ matrix.abs().T > 0)


def test_a_ring_is_folded() -> None:
    layer = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular", stride=1)
    gram = BandedGram(operator(layer, (1, 20, 4)).maps, 1, torch.device("cpu"))
    assert gram.bandwidth == 4


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


# --- A shorter image ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["reflect", "replicate", "zeros", "circular"])
@pytest.mark.parametrize(("stride", "kernel"), [(1, 3), (2, 3), (1, 5), (2, 5), (3, 2), (1, 2)])
@pytest.mark.parametrize("padding", [0, 1, 2, 5])
def test_a_shorter_image_has_the_same_blocks(
    monkeypatch: pytest.MonkeyPatch, mode: str, stride: int, kernel: int, padding: int
) -> None:
    layer = nn.Conv1d(
        2, 2, kernel, stride=stride, padding=padding, padding_mode=mode, dtype=torch.float64
    )
    conv = single_conv(layer, (2, 41))
    maps, device = [TransposedMap(conv)], torch.device("cpu")
    short = shortened(maps[0], 1, bandwidth(coupling(maps, 1)))
    if mode == "circular" and padding:
        assert short is None
        return
    assert short is not None
    quick = BandedGram(maps, 1, device)
    monkeypatch.setattr(banded, "shortened", lambda *arguments: None)
    whole = BandedGram(maps, 1, device)
    assert short.map_.source.shape[1] < whole.count
    assert (quick.count, quick.bandwidth) == (whole.count, whole.bandwidth)
    assert rounding(quick) == rounding(whole)
    for i in range(whole.count):
        for j in range(i + 1):
            if i - j <= whole.bandwidth:
                torch.testing.assert_close(quick.block(i, j), whole.block(i, j), rtol=0, atol=1e-14)
