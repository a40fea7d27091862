"""Symbols of convolutions: the ways to build them agree."""

from __future__ import annotations

import pytest
import torch

from spectralclip._linalg.fourier import (
    folded_frequencies,
    grid_kernel,
    grid_symbols,
    symbols,
    tap_waves,
)


@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (2, 3)])
def test_symbols_tap_by_tap_and_by_fft_agree(stride: tuple[int, int]) -> None:
    """The same singular values, each frequency as often as it stands for another one."""
    sides, weight = (8, 6), torch.randn(3, 2, 3, 2, dtype=torch.float64)
    frequencies, counts = folded_frequencies(sides, stride)
    waves = tap_waves((3, 2), sides, frequencies, stride, (1, 1), (1, 0))
    chosen = torch.linalg.svdvals(symbols(weight, waves)[0]).repeat_interleave(counts, 0)
    padded = torch.nn.functional.pad(weight, (0, 4, 0, 5))
    blocks = grid_symbols(padded, stride)
    torch.testing.assert_close(grid_kernel(blocks, sides, stride), padded)
    width = sides[1] // stride[1]
    twice = torch.ones(blocks.shape[1], dtype=torch.long)
    twice[1 : (width + 1) // 2] = 2
    every = torch.linalg.svdvals(blocks).repeat_interleave(twice, 1).flatten(0, 1)
    torch.testing.assert_close(chosen.flatten().sort().values, every.flatten().sort().values)
