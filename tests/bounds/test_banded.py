"""Gram matrices as bands of blocks: the same matrix, and the same blocks from a shorter image."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from bounds_cases import assembled, composed, grams, operator
from torch import nn

from spectralclip._bounds import banded
from spectralclip._bounds.banded import BandedGram, bandwidth, coupling, shortened
from spectralclip._bounds.cholesky import rounding
from spectralclip._operators.maps import ConvMap, TransposedMap


def single_conv(layer: Any, in_shape: tuple[int, ...]) -> ConvMap:
    (map_,) = operator(layer, in_shape).maps
    assert isinstance(map_, ConvMap)
    return map_


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
