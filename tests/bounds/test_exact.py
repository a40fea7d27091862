"""Tori that hold a layer: their norms bound its norm, and they are no larger than needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import CASES, Case, dense_singular_values, modules, params, with_weight
from drawn_convolutions import (
    CONVOLUTIONS,
    EXAMPLES,
    SAME_EVEN,
    TRANSPOSED,
    convolutions,
    transposed_convolutions,
)
from hypothesis import given
from torch import nn

import spectralclip as sc
from oracle import dense_norm
from spectralclip._bounds.exact import embedding_sides, embedding_torus
from spectralclip._spectrum.symbol_peak import Torus, symbol_peak


def zero_padded(layer: Any, in_shape: tuple[int, ...]) -> Any:
    """The convolution that a layer is, where it has zero padding."""
    conv = sc.as_operator(layer, in_shape, dtype=torch.float64).convolution
    return conv if conv is not None and conv.geometry.mode == "zeros" else None


def torus_norm(conv: Any) -> float:
    torus = embedding_torus(conv)
    assert torus is not None
    return symbol_peak(torus).value


# One list for what is easily got wrong: reach under dilation, uneven paddings, strides, groups.
BESIDE = (
    nn.modules.batchnorm._BatchNorm,
    nn.Sequential,
    nn.Identity,
    nn.modules.dropout._DropoutNd,
)
NOT_EXPLICIT = {
    *("conv2d-hooked", "transposed2d-dilation-over-stride"),
    "transposed2d-output-padding-over-stride",
}


def is_zero_padded(case: Case) -> bool:
    """Whether a layer is one convolution with zero padding, beside batch norms."""
    found = [module for module in modules(case.make()) if not isinstance(module, BESIDE)]
    kinds = (*CONVOLUTIONS.values(), *TRANSPOSED.values(), nn.Conv3d, nn.ConvTranspose3d)
    return len(found) == 1 and type(found[0]) in kinds and found[0].padding_mode == "zeros"


ZERO_PADDED = [
    c
    for c in CASES
    if c.name.startswith(("conv", "transposed", "bn-", "medium-conv", "zero-conv"))
    and not ("warns" in c.tags or c.name in NOT_EXPLICIT)
    and is_zero_padded(c)
]


def test_there_are_many_zero_padded_cases() -> None:
    names = {case.name for case in ZERO_PADDED}
    assert len(names) > 40
    assert {"conv2d-same-dilated", "conv3d", "transposed2d-groups", "bn-transposed"} <= names


@pytest.mark.parametrize("case", params(ZERO_PADDED))
def test_the_torus_bounds_the_layer(case: Case) -> None:
    bound = torus_norm(zero_padded(case.make(), case.in_shape))
    assert bound >= dense_singular_values(case)[0] * (1 - 1e-12)


def check_embedding(layer: Any, in_shape: tuple[int, ...]) -> None:
    conv = zero_padded(layer, in_shape)
    if conv is not None:
        assert torus_norm(conv) >= dense_norm(layer, in_shape) * (1 - 1e-12)


@pytest.mark.filterwarnings(SAME_EVEN)
@EXAMPLES
@given(convolutions(1))
def test_any_torus_1d(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check_embedding(*drawn)


@pytest.mark.filterwarnings(SAME_EVEN)
@EXAMPLES
@given(convolutions(2))
def test_any_torus_2d(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check_embedding(*drawn)


@EXAMPLES
@given(transposed_convolutions(2))
def test_any_torus_transposed(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check_embedding(*drawn)


@pytest.mark.filterwarnings(SAME_EVEN)
@pytest.mark.parametrize("kernel", [2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_the_torus_norm_is_that_of_a_circular_layer(kernel: int, dilation: int) -> None:
    options: Any = {"padding": "same", "dilation": dilation}
    layer = nn.Conv1d(2, 3, kernel, **options)
    conv = zero_padded(layer, (2, 9))
    reach = dilation * (kernel - 1)
    assert embedding_sides(conv) == (9 + reach - reach // 2,)
    circular = nn.Conv1d(2, 3, kernel, padding_mode="circular", **options)
    circular.load_state_dict(layer.state_dict())
    expected = dense_norm(circular, (2, *embedding_sides(conv)))
    assert torus_norm(conv) == pytest.approx(expected, rel=1e-9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("n", "kernel", "stride", "dilation", "padding"),
    [
        *((2, 3, 1, 1, 1), (3, 3, 1, 1, 1), (6, 3, 1, 1, 1), (3, 5, 1, 1, 2), (5, 5, 1, 1, 2)),
        *((3, 3, 1, 2, 2), (6, 3, 2, 2, 2), (4, 3, 1, 1, 2), (6, 5, 2, 1, 2), (7, 3, 2, 1, 1)),
    ],
)
def test_the_torus_has_no_pixel_to_spare(
    n: int, kernel: int, stride: int, dilation: int, padding: int
) -> None:
    """With one channel a side too short shows; many channels would hide it."""
    too_low = 0
    layer = nn.Conv1d(1, 1, kernel, stride, padding, dilation, dtype=torch.float64)
    for _ in range(100):
        conv = zero_padded(with_weight(layer, torch.randn(1, 1, kernel)), (1, n))
        (side,) = embedding_sides(conv)
        truth = dense_norm(layer, (1, n))
        assert torus_norm(conv) >= truth * (1 - 1e-12)
        shorter = Torus(conv, (side - stride,), (stride,), (dilation,))
        too_low += symbol_peak(shorter).value < truth * (1 - 1e-3)
    assert too_low > 0


def test_padding_of_half_the_kernel_is_wrong_under_dilation() -> None:
    # Taps a torus apart: there they read the same pixel, and cancel.
    layer = with_weight(
        nn.Conv1d(1, 1, 3, padding=6, dilation=6), torch.tensor([[[1.0, 0.0, -1.0]]])
    )
    conv = zero_padded(layer, (1, 11))
    assert embedding_sides(conv) == (17,)
    truth = dense_norm(layer, (1, 11))
    half_kernel = symbol_peak(Torus(conv, (11 + 3 // 2,), (1,), (6,))).value
    assert half_kernel < 0.1 * truth
    assert torus_norm(conv) >= truth


def test_padding_beyond_the_kernel_does_not_enlarge_the_torus() -> None:
    conv = zero_padded(nn.Conv2d(1, 1, 2, padding=3), (1, 4, 5))
    assert embedding_sides(conv) == (5, 6)
