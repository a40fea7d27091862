"""Convolutions from arrays: against torch's own layers, in both layouts, and padding of Keras."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from oracle import dense_matrix
from spectralclip import kernel_norm, kernel_operator, norm_bounds, singular_values, svds

MODULES = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
CASES: list[tuple[int, dict[str, Any]]] = [
    (axes, {"padding": padding, "padding_mode": mode, **more})
    for axes in (1, 2, 3)
    for padding, mode, more in (
        (0, "zeros", {}),
        (1, "zeros", {"stride": 2, "groups": 2}),
        ("valid", "zeros", {"dilation": 2}),
        ("same", "reflect", {}),
        ("same", "zeros", {"dilation": 2, "groups": 2}),
        (1, "circular", {"stride": 2}),
        (2, "replicate", {"stride": 3}),
    )
]
SIDES = (6, 5, 5)


def random_kernel(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape)


@pytest.mark.parametrize("layout", ["OIHW", "HWIO"])
@pytest.mark.parametrize(("axes", "options"), CASES)
def test_is_the_layer_of_torch(axes: int, options: dict[str, Any], layout: str) -> None:
    torch.manual_seed(0)
    conv = MODULES[axes](4, 6, 3, bias=False, **options).double()
    kernel, in_shape = conv.weight.detach().numpy(), (4, *SIDES[:axes])
    if layout == "HWIO":
        kernel = np.moveaxis(kernel, (0, 1), (-1, -2))
    op = kernel_operator(kernel, in_shape, layout=layout, **options)
    np.testing.assert_allclose(op.to_dense().numpy(), dense_matrix(conv, in_shape), atol=1e-12)
    x = torch.randn(2, *in_shape, dtype=torch.float64)
    torch.testing.assert_close(op.function(x), conv(x))


@pytest.mark.parametrize("side", [6, 7, 8, 9])
@pytest.mark.parametrize(("size", "stride"), [(3, 2), (4, 2), (2, 3), (1, 2), (5, 3)])
def test_same_padding_under_a_stride_is_that_of_keras(side: int, size: int, stride: int) -> None:
    # As TensorFlow documents it: so many outputs, and the odd one of the zeros at the end.
    outputs = math.ceil(side / stride)
    total = max((outputs - 1) * stride + size - side, 0)
    kernel = random_kernel(size, 2, 3)
    op = kernel_operator(kernel, (2, side), stride=stride, padding="same", layout="HWIO")
    x = torch.randn(1, 2, side, dtype=torch.float64)
    weight = torch.from_numpy(kernel).permute(2, 1, 0)
    padded = F.pad(x, (total // 2, total - total // 2))
    assert op.out_shape == (3, outputs)
    torch.testing.assert_close(op.matvec(x), F.conv1d(padded, weight, stride=stride))


def test_pairs_of_padding() -> None:
    kernel = random_kernel(3, 2, 3, 3)
    op = kernel_operator(kernel, (2, 5, 6), padding=((0, 1), (2, 0)))
    padded = nn.Sequential(nn.ZeroPad2d((2, 0, 0, 1)), nn.Conv2d(2, 3, 3, bias=False).double())
    padded[1].weight.data = torch.from_numpy(kernel)
    np.testing.assert_allclose(op.to_dense().numpy(), dense_matrix(padded, (2, 5, 6)), atol=1e-12)


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({"stride": np.int64(2), "groups": np.int64(2)}, {"stride": 2, "groups": 2}),
        (
            {"padding": np.int64(1), "dilation": np.array([1, 2])},
            {"padding": 1, "dilation": (1, 2)},
        ),
        ({"padding": np.array([1, 0])}, {"padding": (1, 0)}),
        ({"padding": np.array([[1, 2], [0, 1]])}, {"padding": ((1, 2), (0, 1))}),
    ],
)
def test_sizes_may_be_those_of_numpy(options: dict[str, Any], plain: dict[str, Any]) -> None:
    kernel = random_kernel(6, 4 // plain.get("groups", 1), 3, 3)
    found, expected = (kernel_operator(kernel, (4, 8, 8), **one) for one in (options, plain))
    assert torch.equal(found.to_dense(), expected.to_dense())


def test_a_matrix_is_a_kernel_without_axes() -> None:
    matrix = random_kernel(5, 8)
    truth = np.linalg.svd(matrix, compute_uv=False)
    for kernel, layout in ((matrix, "OIHW"), (matrix.T, "HWIO")):
        values = singular_values(kernel_operator(kernel, 8, layout=layout))
        np.testing.assert_allclose(values.numpy(), truth)


@pytest.mark.parametrize("options", [{"padding": 1}, {"padding": 1, "padding_mode": "circular"}])
def test_spectrum_and_bounds_take_it(options: dict[str, Any]) -> None:
    kernel = random_kernel(4, 4, 3, 3).astype(np.float32)
    op = kernel_operator(kernel, (4, 9, 9), **options)
    truth = np.linalg.svd(op.to_dense().numpy(), compute_uv=False)
    np.testing.assert_allclose(svds(op, k=2).S.numpy(), truth[:2], rtol=1e-3)
    np.testing.assert_allclose(singular_values(op).numpy(), truth, atol=1e-9)
    for deterministic in (False, True):
        interval = norm_bounds(op, deterministic=deterministic)
        assert truth[0] in interval
        assert interval.width <= 0.0101


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-120, 1e-70, 1e120, 1e200, 1e300])
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_extreme_scales(scale: float, mode: str) -> None:
    kernel = random_kernel(4, 4, 3, 3)
    options: dict[str, Any] = {"padding": 1, "padding_mode": mode}
    plain = kernel_operator(kernel, (4, 9, 9), **options).to_dense().numpy()
    truth = scale * np.linalg.norm(plain, 2)
    op = kernel_operator(scale * kernel, (4, 9, 9), **options)
    assert kernel_norm(scale * kernel, (4, 9, 9), **options) == pytest.approx(
        truth, rel=1e-6, abs=0
    )
    for deterministic in (False, True):
        assert truth in norm_bounds(op, deterministic=deterministic)


GOOD: dict[str, Any] = {"kernel": random_kernel(6, 4, 3, 3), "in_shape": (4, 8, 8)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layout": "HWOI"}, 'layout must be "OIHW"'),
        ({"layout": "HWIO"}, r"kernel of shape \(3, 3, 6, 4\).*takes 3 channels, in_shape has 4"),
        ({"in_shape": (4, 8)}, "must have 3 entries, channels first"),
        ({"in_shape": (5, 8, 8)}, "takes 4 channels, in_shape has 5.*layout"),
        ({"in_shape": (8, 8, 2)}, "takes 4 channels, in_shape has 8.*channels first"),
        ({"in_shape": (4, 2, 8)}, r"reaches over 3 pixels, more than the 2 of in_shape"),
        ({"stride": 0}, "stride must be an integer of at least 1"),
        ({"dilation": (1, 2, 3)}, "dilation must be an integer of at least 1, or 2 of them"),
        ({"stride": 1.5}, "stride must be an integer or 2 of them, got 1.5"),
        ({"padding": -1}, "padding must be an integer of at least 0"),
        ({"padding": "full"}, 'padding must be numbers, "same" or "valid"'),
        ({"padding": None}, "padding must be an integer or 2 of them, got None"),
        ({"padding": 1.5}, "padding must be an integer or 2 of them, got 1.5"),
        ({"padding": ((1, 1), 1)}, r"a pair \(low, high\) for each of 2 axes"),
        ({"padding": ((1, 1.5), (1, 1))}, "padding must be an integer"),
        ({"padding": ((1, 1),)}, r"a pair \(low, high\) for each of 2 axes"),
        ({"padding": 8, "padding_mode": "reflect"}, "more than the 7 that a side of 8 has"),
        ({"padding": 9, "padding_mode": "circular"}, "more than the 8 that a side of 8 has"),
        ({"padding_mode": "wrap"}, "padding_mode must be one of zeros, circular"),
        ({"groups": 4}, "groups must be a positive divisor of the 6 output channels"),
        ({"groups": 0}, "groups must be a positive divisor"),
        ({"kernel": random_kernel(6)}, "two axes of channels and up to three in space"),
        ({"kernel": np.full((6, 4, 3, 3), np.nan)}, "NaN or infinite"),
        ({"kernel": random_kernel(6, 4), "in_shape": 4, "stride": 2}, "no axis to slide along"),
    ],
)
def test_bad_arguments(change: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        kernel_operator(**(GOOD | change))
