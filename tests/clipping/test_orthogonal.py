"""Orthogonal weights for one map, compared with the dense matrix of a layer that holds them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from oracle import dense_matrix
from spectralclip import as_operator
from spectralclip._clipping.orthogonal import OrthogonalStart, orthogonal_start, semi_orthogonal


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def started(layer: Any, in_shape: tuple[int, ...]) -> tuple[OrthogonalStart, float, np.ndarray]:
    """A layer's start, what it says of the smallest value, and all singular values it has then."""
    (map_,) = as_operator(layer, in_shape).maps
    start = orthogonal_start(map_, generator())
    with torch.no_grad():
        layer.weight.copy_(start.weight)
    values = np.linalg.svd(dense_matrix(layer, in_shape), compute_uv=False)
    return start, start.smallest(map_), values


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 6, 6), (1, 3, 8), (3, 8, 3), (4, 1, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matrices_have_orthonormal_rows_or_columns(shape: Any, dtype: torch.dtype) -> None:
    drawn = semi_orthogonal(shape, dtype, generator())
    assert drawn.shape == shape and drawn.dtype == dtype
    values = torch.linalg.svdvals(drawn)
    torch.testing.assert_close(values, torch.ones_like(values))


def test_matrices_are_uniformly_distributed() -> None:
    """The factor Q as LAPACK gives it is not: its first entry never changes its sign."""
    drawn = semi_orthogonal((4000, 3, 3), torch.float64, generator())
    assert float(drawn.mean(0).abs().max()) < 0.05
    torch.testing.assert_close(
        drawn.square().mean(0), torch.full((3, 3), 1 / 3).double(), atol=0.03, rtol=0
    )
    dets = torch.linalg.det(drawn)
    assert 0.4 < float((dets > 0).double().mean()) < 0.6


KEEPING = [
    *itertools.product(["zeros", "circular", "reflect", "replicate"], [(3, 3), (2, 5), (5, 2)]),
]


@pytest.mark.parametrize(("mode", "channels"), KEEPING)
@pytest.mark.parametrize("options", [{}, {"dilation": 2}, {"kernel_size": (1, 5)}])
def test_padding_that_keeps_the_size_is_exact(
    mode: str, channels: tuple[int, int], options: dict[str, Any]
) -> None:
    kernel = {"kernel_size": 3, **options}
    layer = nn.Conv2d(*channels, **kernel, padding="same", padding_mode=mode)
    start, smallest, values = started(layer, (channels[0], 6, 5))
    np.testing.assert_allclose(values, 1.0, rtol=1e-5)
    assert smallest == 1.0 and start.how == "single tap"
    centre = tuple(size // 2 for size in layer.kernel_size)
    rest = layer.weight.detach().clone()
    rest[(..., *centre)] = 0
    assert not rest.any()


STRIDED = [
    # Kernel 3, stride 2: a block of two by two taps, whether few or many channels go out.
    (nn.Conv2d, (3, 4, 3), {"stride": 2, "padding": 1}, (3, 8, 6)),
    (nn.Conv2d, (2, 12, 3), {"stride": 2, "padding": 1}, (2, 8, 6)),
    (nn.Conv2d, (3, 4, 3), {"stride": 2, "padding": 1, "padding_mode": "circular"}, (3, 8, 6)),
    (nn.Conv2d, (3, 4, 3), {"stride": 2, "padding": 1, "padding_mode": "reflect"}, (3, 8, 6)),
    (nn.Conv2d, (3, 4, 3), {"stride": 2, "padding": 1, "padding_mode": "replicate"}, (3, 8, 6)),
    (nn.Conv2d, (2, 2, 7), {"stride": 2, "padding": 3}, (2, 8, 8)),
    # An odd side: the last window has room for one tap, so one tap it is.
    (nn.Conv2d, (4, 4, 3), {"stride": 2, "padding": 1}, (4, 7, 7)),
    (nn.Conv2d, (4, 8, 3), {"stride": 2, "padding": 1, "groups": 2}, (4, 8, 8)),
    (nn.Conv2d, (2, 3, 3), {"stride": (1, 3), "padding": 1}, (2, 6, 9)),
    (nn.Conv1d, (2, 3, 4), {"stride": 3, "padding": 1}, (2, 14)),
    (
        *(nn.Conv1d, (2, 5, 3)),
        {"stride": 2, "dilation": 3, "padding": 3, "padding_mode": "circular"},
        (2, 12),
    ),
    (nn.Conv3d, (1, 9, 3), {"stride": 2, "padding": 1}, (1, 4, 4, 4)),
    (nn.Conv2d, (2, 4, 2), {"stride": 3}, (2, 9, 9)),  # the kernel does not reach all positions
    (nn.Conv2d, (3, 7, 5), {}, (3, 5, 5)),  # a single window is a dense layer
    (nn.ConvTranspose2d, (4, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}, (4, 4, 4)),
    (nn.ConvTranspose2d, (3, 2, 4), {"stride": 4}, (3, 3, 2)),
    (nn.ConvTranspose1d, (3, 3, 3), {}, (3, 7)),
]


@pytest.mark.parametrize(("kind", "sizes", "options", "in_shape"), STRIDED)
def test_strides_and_transposes_are_exact_where_shapes_allow_it(
    kind: Any, sizes: tuple[int, ...], options: dict[str, Any], in_shape: tuple[int, ...]
) -> None:
    _, smallest, values = started(kind(*sizes, **options), in_shape)
    np.testing.assert_allclose(values, 1.0, rtol=1e-5)
    assert smallest == 1.0


SHORT = [
    # Without padding the border is not read, and three channels cannot keep four apart.
    (nn.Conv2d(3, 4, 3), (3, 8, 8), 0.0),
    (nn.Conv2d(3, 2, 2, padding=1), (3, 6, 6), 0.0),  # more windows than positions
    (nn.Conv2d(3, 5, 1, stride=2), (3, 6, 6), 0.0),  # three quarters of the positions are skipped
    # Two positions are read three times instead of once: sqrt(1 / 3) on each axis.
    (nn.Conv2d(2, 3, 3, padding=3, padding_mode="replicate"), (2, 6, 6), 1 / 3),
    # Windows at the border see a part of their matrix.
    (nn.ConvTranspose3d(2, 3, 2, stride=2, padding=1), (2, 3, 3, 4), None),
]


@pytest.mark.parametrize(("layer", "in_shape", "share"), SHORT)
def test_what_the_border_costs_is_known(layer: nn.Module, in_shape: Any, share: Any) -> None:
    _, smallest, values = started(layer, in_shape)
    assert values[-1] == pytest.approx(smallest, rel=1e-4, abs=1e-6)
    if share is not None:
        assert values[-1] == pytest.approx(share * values[0], rel=1e-4, abs=1e-6)


def test_the_smallest_value_at_another_size_is_known() -> None:
    layer = nn.Conv2d(2, 3, 3, stride=2, padding=1)
    start, smallest, _ = started(layer, (2, 8, 8))
    other = (2, 7, 8)
    found = start.smallest(as_operator(layer, other).maps[0])
    values = np.linalg.svd(dense_matrix(layer, other), compute_uv=False)
    assert smallest == 1.0 and found < 0.99
    assert found == pytest.approx(values[-1], rel=1e-4)


def test_kernels_of_hundreds_of_taps() -> None:
    layer = nn.Conv1d(1, 24, 200, stride=20)
    start, smallest, values = started(layer, (1, 500))
    assert smallest == 0.0 and start.taps == (slice(90, 110),)
    np.testing.assert_allclose(values[: 16 * 20], 1.0, rtol=1e-5)
