"""Convolutions of any geometry, drawn at random, against their dense matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import dense_of
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

import spectralclip as sc

# A layer that torch itself refuses is drawn again, and the largest take a moment.
EXAMPLES = settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
SAME_EVEN = "ignore:Using padding='same' with even kernel:UserWarning"

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d}
MODES = ["zeros", "reflect", "replicate", "circular"]


@st.composite
def geometries(draw: st.DrawFn, axes: int) -> tuple[dict[str, Any], list[int]]:
    """Kernel, stride, dilation and input size, for each axis on its own."""

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=axes, max_size=axes))

    size = each(1, 7 if axes == 2 else 14)
    options: dict[str, Any] = {
        "kernel_size": tuple(each(1, 5 if axes == 1 else 4)),
        "stride": tuple(each(1, 3)),
        "dilation": tuple(each(1, 3)),
        "groups": draw(st.integers(1, 2)),
        "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from([torch.float32, torch.float64])),
    }
    return options, size


@st.composite
def convolutions(draw: st.DrawFn, axes: int) -> tuple[nn.Module, tuple[int, ...]]:
    options, size = draw(geometries(axes))
    options["padding_mode"] = draw(st.sampled_from(MODES))
    if draw(st.integers(0, 3)) == 0:
        options["padding"] = draw(st.sampled_from(["same", "valid"]))
        if options["padding"] == "same":
            options["stride"] = (1,) * axes
    else:
        padding = draw(st.lists(st.integers(0, 3), min_size=axes, max_size=axes))
        options["padding"] = tuple(padding)
    return build(draw, CONVOLUTIONS[axes], options, size)


@st.composite
def transposed_convolutions(draw: st.DrawFn, axes: int) -> tuple[nn.Module, tuple[int, ...]]:
    options, size = draw(geometries(axes))
    padding = draw(st.lists(st.integers(0, 3), min_size=axes, max_size=axes))
    options["padding"] = tuple(padding)
    # torch allows up to the larger of stride and dilation, exclusive.
    options["output_padding"] = tuple(
        draw(st.integers(0, max(stride, dilation) - 1))
        for stride, dilation in zip(options["stride"], options["dilation"], strict=True)
    )
    return build(draw, TRANSPOSED[axes], options, size)


def build(
    draw: st.DrawFn, kind: type[nn.Module], options: dict[str, Any], size: list[int]
) -> tuple[nn.Module, tuple[int, ...]]:
    groups = options["groups"]
    inputs = groups * draw(st.integers(1, 2))
    outputs = groups * draw(st.integers(1, 3))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw(st.integers(0, 1000)))
        layer = kind(inputs, outputs, **options)
    in_shape = (inputs, *size)
    try:
        with torch.no_grad():
            output = layer(torch.zeros(1, *in_shape, dtype=options["dtype"]))
    except (RuntimeError, ValueError):
        assume(False)
    assume(output.numel() > 0)
    return layer, in_shape


def check(layer: Any, in_shape: tuple[int, ...]) -> None:
    """The matrix in both directions, both ways of applying it, and the whole spectrum."""
    rounding = 1e-12 if layer.weight.dtype == torch.float64 else 5e-6
    explicit = sc.as_operator(layer, in_shape)
    generic = sc.as_operator(layer, in_shape, explicit=False)
    values = sc.singular_values(layer, in_shape)

    matrix = dense_of(layer.double(), in_shape)
    expected = np.linalg.svd(matrix, compute_uv=False)
    scale = max(expected[0], 1e-30)
    for op in (explicit, generic):
        assert op.shape == matrix.shape
        m, n = op.shape
        # Each direction on its own: `to_dense` takes the shorter one.
        columns = op.matvec(torch.eye(n, dtype=op.dtype).reshape(n, *op.in_shape))
        rows = op.rmatvec(torch.eye(m, dtype=op.dtype).reshape(m, *op.out_shape))
        for got in (op.to_dense(), columns.reshape(n, m).T, rows.reshape(m, n)):
            np.testing.assert_allclose(got.double().numpy(), matrix, rtol=0, atol=rounding * scale)
        gram = op.gram(torch.eye(n, dtype=op.dtype).reshape(n, *op.in_shape)).reshape(n, n)
        np.testing.assert_allclose(
            gram.double().numpy(), matrix.T @ matrix, rtol=0, atol=rounding * scale**2
        )
    np.testing.assert_allclose(values.double().numpy(), expected, rtol=0, atol=rounding * scale)


def check_leading(layer: Any, in_shape: tuple[int, ...]) -> None:
    """The leading values, by iteration and as the library chooses."""
    norm = sc.spectral_norm(layer, in_shape)
    most = min(sc.as_operator(layer, in_shape).shape)
    found = [sc.svds(layer, in_shape, k, solver=sc.Lanczos()) for k in range(1, min(3, most) + 1)]
    expected = np.linalg.svd(dense_of(layer.double(), in_shape), compute_uv=False)
    assert float(norm) == pytest.approx(expected[0], rel=1e-3)
    for k, spectrum in enumerate(found, 1):
        assert spectrum.converged
        np.testing.assert_allclose(
            spectrum.S.double().numpy(), expected[:k], rtol=0, atol=1e-3 * expected[0] + 1e-30
        )


@pytest.mark.slow
@pytest.mark.filterwarnings(SAME_EVEN)
@EXAMPLES
@given(convolutions(1))
def test_conv1d(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check(*drawn)


@pytest.mark.slow
@pytest.mark.filterwarnings(SAME_EVEN)
@EXAMPLES
@given(convolutions(1))
def test_conv1d_leading_values(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check_leading(*drawn)


@pytest.mark.filterwarnings(SAME_EVEN)
@EXAMPLES
@given(convolutions(2))
def test_conv2d(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check(*drawn)


@pytest.mark.filterwarnings(SAME_EVEN)
@EXAMPLES
@given(convolutions(2))
def test_conv2d_leading_values(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check_leading(*drawn)


@pytest.mark.slow
@EXAMPLES
@given(transposed_convolutions(1))
def test_transposed1d(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check(*drawn)


@pytest.mark.slow
@EXAMPLES
@given(transposed_convolutions(1))
def test_transposed1d_leading_values(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check_leading(*drawn)


@EXAMPLES
@given(transposed_convolutions(2))
def test_transposed2d(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check(*drawn)


@pytest.mark.slow
@EXAMPLES
@given(transposed_convolutions(2))
def test_transposed2d_leading_values(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    check_leading(*drawn)
