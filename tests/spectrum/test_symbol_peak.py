"""The search for the largest symbol, against the norms at all frequencies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from large_layers import Recorder, renewed
from torch import Tensor, nn

import spectralclip as sc
from oracle import symbol_norms
from spectralclip._spectrum.symbol_peak import Torus, enough_points, symbol_degrees, symbol_peak


def torus_of(conv: Any, sides: tuple[int, ...]) -> Torus:
    reach = [2 * d * k for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    map_ = sc.as_operator(conv, (conv.in_channels, *reach), dtype=torch.float64).convolution
    assert map_ is not None
    return Torus(map_, sides, conv.stride, conv.dilation)


@contextmanager
def counted_symbols(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    looked = [0]
    own = Torus.symbols_at

    def counting(self: Torus, group: int, frequencies: Tensor) -> Tensor:
        looked[0] += len(frequencies)
        return own(self, group, frequencies)

    with monkeypatch.context() as patch:
        patch.setattr(Torus, "symbols_at", counting)
        yield looked


SEARCHED: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Conv1d(1, 1, 3), (501,)),
    (nn.Conv1d(2, 3, 9), (4096,)),
    (nn.Conv2d(1, 1, 3), (256, 256)),
    (nn.Conv2d(3, 3, 3), (100, 131)),
    (nn.Conv2d(2, 4, (5, 1)), (200, 90)),
    (nn.Conv2d(2, 2, 3, dilation=(2, 3)), (128, 150)),
    (nn.Conv2d(6, 6, 3, groups=6), (128, 128)),
    (nn.Conv2d(4, 2, 3, groups=2), (7, 300)),
    (nn.Conv3d(1, 2, 3), (40, 50, 60)),
]


@pytest.mark.parametrize(("conv", "sides"), SEARCHED, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("smooth", [False, True])
def test_the_search_finds_the_largest_of_all_frequencies(
    conv: Any, sides: tuple[int, ...], smooth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv = renewed(conv)
    if smooth:  # all taps positive: one broad peak, at the corner of the first cell
        conv.weight.data.abs_()
    norms = symbol_norms(conv, sides)
    with counted_symbols(monkeypatch) as looked:
        peak = symbol_peak(torus_of(conv, sides))
    assert peak.value == pytest.approx(norms.max(), rel=1e-9)
    assert peak.upper == peak.value
    at = tuple(f % n for f, n in zip(peak.frequency, sides, strict=True))
    assert norms[at] == pytest.approx(norms.max(), rel=1e-9)
    assert looked[0] < conv.groups * norms.size


@pytest.mark.parametrize("excess", [0.05, 1e-3, 1e-6])
def test_an_early_end_is_within_what_it_may_leave_open(excess: float) -> None:
    for _ in range(8):
        conv = nn.Conv2d(1, 2, 3)
        largest = symbol_norms(conv, (300, 300)).max()
        peak = symbol_peak(torus_of(conv, (300, 300)), excess)
        assert peak.value <= largest * (1 + 1e-9) and largest <= peak.upper * (1 + 1e-9)
        assert peak.upper <= (1 + excess) * peak.value * (1 + 1e-12)


@pytest.mark.parametrize("rtol", [0.5, 0.1, 1e-3])
def test_between_the_frequencies_of_any_torus(rtol: float) -> None:
    """Single frequencies of a coarse torus say nothing of those between them."""
    for kernel in [(3,), (9,), (2, 5), (7, 3), (1, 4)]:
        conv = (nn.Conv1d if len(kernel) == 1 else nn.Conv2d)(1, 2, kernel)  # type: ignore[arg-type]
        supremum = symbol_norms(conv, (512,) * len(kernel)).max()
        interval = sc.norm_bounds_all_sizes(conv, tol=rtol)
        assert interval.lower <= supremum * (1 + 1e-3) and supremum <= interval.upper
        assert interval.width <= rtol


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(3, 2, 1), (5, 2, 3), (7, 3, 2), (4, 4, 6)]
)
def test_the_search_under_a_stride(kernel: int, stride: int, dilation: int) -> None:
    """Against the dense matrix of the circular layer, on tori with and without coarse cells."""
    for windows in (5, 48):
        side = windows * stride
        conv = nn.Conv1d(2, 2, kernel, stride, dilation=dilation, dtype=torch.float64)
        matrix = np.zeros((windows, 2, side, 2))
        for window in range(windows):
            for tap in range(kernel):
                place = (window * stride + tap * dilation) % side
                matrix[window, :, place, :] += conv.weight.detach().numpy()[:, :, tap]
        expected = np.linalg.norm(matrix.reshape(2 * windows, 2 * side), 2)
        assert symbol_peak(torus_of(conv, (side,))).value == pytest.approx(expected, rel=1e-9)


def test_few_frequencies_of_a_large_torus_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = nn.Conv2d(1, 1, 3)
    with counted_symbols(monkeypatch) as looked, Recorder() as recorder:
        symbol_peak(torus_of(conv, (4096, 4096)))
    assert looked[0] < 10_000
    assert recorder.largest < 1_000_000


def test_a_flat_symbol_ends_the_search_early_or_is_looked_at_everywhere() -> None:
    conv = nn.Conv2d(1, 1, 3)
    with torch.no_grad():
        conv.weight.zero_()[0, 0, 1, 1] = 2.0
    assert symbol_peak(torus_of(conv, (64, 64))).value == pytest.approx(2.0, rel=1e-12)
    peak = symbol_peak(torus_of(conv, (4096, 4096)), 1e-3)
    assert 2 * (1 - 1e-12) <= peak.upper <= 2.002 and peak.value <= 2 * (1 + 1e-12)
    with torch.no_grad():
        conv.weight.zero_()
    assert symbol_peak(torus_of(conv, (512, 512)))[:2] == (0.0, 0.0)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_leading_wave_is_nearly_a_singular_vector(stride: int, transposed: bool) -> None:
    conv = nn.Conv2d(3, 4, 5, stride, padding=1, dtype=torch.float64)
    side = 128
    op = sc.as_operator(conv, (3, side, side))
    map_ = op.convolution
    assert map_ is not None
    torus = Torus(map_, (1024, 1024), map_.geometry.stride, map_.geometry.dilation)
    peak = symbol_peak(torus)
    space = map_.target.shape[1:] if transposed else (side, side)
    wave = torus.leading_mode(peak, space, outputs=transposed)
    window = [torch.sin(math.pi * torch.arange(1, n + 1) / (n + 1)) for n in space]
    wave = wave * window[0][:, None] * window[1]
    image = op.rmatvec(wave) if transposed else op.matvec(wave)
    assert 0.99 * peak.value < float(image.norm() / wave.norm()) <= peak.value


def test_the_grid_of_frequencies_misses_no_more_than_it_says() -> None:
    for kernel, excess in [(3, 0.01), (5, 0.05), (9, 1e-3)]:
        conv = nn.Conv1d(1, 1, kernel)
        map_ = torus_of(conv, (64,))
        (points,) = enough_points(map_.degrees, excess)
        supremum = symbol_norms(conv, (64 * points,)).max()
        assert supremum <= (1 + excess) * symbol_norms(conv, (points,)).max()
    assert symbol_degrees(
        sc.as_operator(nn.Conv1d(1, 1, 7, 2, dilation=4), (1, 64)).convolution
    ) == (12,)  # type: ignore[arg-type]
