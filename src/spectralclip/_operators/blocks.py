"""Layers that are block diagonal, and their whole spectra.

Orthogonal changes of basis on both sides turn some layers into many small independent blocks:
a dense layer is one block, used once for each leading position; a convolution whose windows
do not overlap (1x1, or kernel = stride) is one block for each group, used in each window; a
circular convolution has one for each frequency; batch norm one number for each channel. The
layer's singular values are those of the blocks, each as often as the block is used.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from spectralclip._linalg import (
    alias_frequencies,
    decomposable,
    folded_frequencies,
    plane_wave,
    smaller_gram,
    symbols,
    tap_waves,
    wide,
)

if TYPE_CHECKING:  # maps know their blocks, and not the other way round
    from spectralclip._operators.maps import ConvMap, LinearMap


class BlockForm(ABC):
    """A layer as independent small blocks."""

    copies: Tensor  # how often each block is used, `(blocks,)`
    block_shape: tuple[int, int]  # rows and columns of a block
    application_work: float  # multiplications that one application of the layer takes

    @abstractmethod
    def blocks(self, index: slice | Tensor) -> Tensor:
        """Some of the blocks, `(blocks, rows, columns)`, real or complex."""

    @abstractmethod
    def right_rows(self, block: int, vector: Tensor, most: int) -> Tensor:
        """Flat input rows that a block's right singular vector stands for, at most some."""

    @property
    @final
    def value_count(self) -> int:
        """How many singular values the blocks have together; further ones are zero."""
        return int(self.copies.sum()) * min(self.block_shape)

    @property
    @final
    def work(self) -> float:
        """What decomposing all blocks takes, in multiplications of a fast product, roughly."""
        rows, columns = self.block_shape
        return 50.0 * self.copies.shape[0] * rows * columns * min(rows, columns)

    @final
    def values(self) -> Tensor:
        """The singular values of each block, descending: `(blocks, min(rows, columns))`.

        LAPACK takes one matrix at a time on one core: chunks of them are spread over threads.
        """
        count = self.copies.shape[0]
        workers = max(1, min(torch.get_num_threads(), count))
        chunk = max(1, math.ceil(count / (4 * workers)))
        slices = [slice(start, min(start + chunk, count)) for start in range(0, count, chunk)]
        if workers == 1 or len(slices) == 1:
            return torch.cat([_singular_values(self.blocks(part)) for part in slices])
        threads, limit = torch.get_num_threads(), torch.set_num_threads
        try:
            # One thread in each worker: LAPACK's own would only fight over the cores.
            with ThreadPoolExecutor(workers, initializer=limit, initargs=(1,)) as pool:
                found = pool.map(lambda part: _singular_values(self.blocks(part)), slices)
                return torch.cat(list(found))
        finally:
            limit(threads)

    @final
    def leading_rows(self, k: int) -> Tensor:
        """Flat input rows that span at least k leading right singular vectors."""
        values = self.values()
        rows: list[Tensor] = []
        found = 0
        decomposed: dict[int, Tensor] = {}
        for position in values.flatten().argsort(descending=True).tolist():
            block, rank = divmod(position, values.shape[1])
            if block not in decomposed:
                matrix = self.blocks(torch.tensor([block], device="cpu"))[0]
                # In float32, vectors of values below 1e-3 of the largest would be too inexact.
                exact = matrix.to(torch.promote_types(matrix.dtype, torch.float64))
                vectors = torch.linalg.svd(exact, full_matrices=False)[2]
                decomposed[block] = vectors.to(matrix.dtype)
            rows.append(self.right_rows(block, decomposed[block][rank].conj(), k))
            found += int(self.copies[block])
            if found >= k:
                break
        return torch.cat(rows)


def _singular_values(matrices: Tensor) -> Tensor:
    """Of each of many small matrices, descending.

    For flat or large matrices the eigenvalues of the smaller Gram matrix in float64 are much
    cheaper than an SVD, and good down to 1e-8 of the largest value.
    """
    low, high = sorted(matrices.shape[-2:])
    values: Tensor
    if low == 1:
        values = matrices.flatten(1).norm(dim=1, keepdim=True)
    elif (3 * low <= high or low > 256) and matrices.real.dtype != torch.float64:
        squares = torch.linalg.eigvalsh(smaller_gram(wide(matrices))).flip(-1)
        values = squares.clamp_min(0).sqrt().to(matrices.real.dtype)
    else:
        values = torch.linalg.svdvals(matrices)
    return values


@final
class RepeatedBlocks(BlockForm):
    """A map whose weight is one matrix a group, each used at every position."""

    def __init__(self, map_: LinearMap, groups: int, positions: int) -> None:
        assert map_.weight is not None
        self._map = map_
        weight = decomposable(map_.weight)
        self._matrices = weight.reshape(groups, weight.shape[0] // groups, -1)
        self.copies = torch.full((groups,), positions, device="cpu")
        self.block_shape = (self._matrices.shape[1], self._matrices.shape[2])
        self.application_work = float(map_.weight.numel() * positions)

    def blocks(self, index: slice | Tensor) -> Tensor:
        return self._matrices[index]

    def right_rows(self, block: int, vector: Tensor, most: int) -> Tensor:
        """The transposed map, with the vector as its weight, applied to a one at each position."""
        weight, target = self._map.weight, self._map.target
        assert weight is not None
        channel, count = block * self.block_shape[0], min(int(self.copies[block]), most)
        only = torch.zeros_like(weight)
        only[channel] = vector.to(weight).reshape(weight[0].shape)
        ones = weight.new_zeros(count, target.shape[0], target.size // target.shape[0])
        places = torch.arange(count, device=weight.device)
        if self._map.channel_axis:
            ones = ones.reshape(count, -1, target.shape[-1])
            ones[places, places, channel] = 1.0
        else:
            ones[places, channel, places] = 1.0
        rows = target.to_rows(ones.reshape(count, *target.shape))
        return self._map.with_weight(only).adjoint(rows)


@final
class CircularBlocks(BlockForm):
    """A circular convolution: one complex matrix for each group and frequency."""

    def __init__(self, map_: ConvMap) -> None:
        geometry = map_.geometry
        self._map, self._layout = map_, map_.source
        self._sides = map_.source.shape[1:]
        groups = geometry.groups
        c_out, c_in = map_.weight.shape[0] // groups, map_.weight.shape[1]
        weight = decomposable(map_.weight)
        self._weights = weight.reshape(groups, c_out, *weight.shape[1:])
        self._frequencies, counts = folded_frequencies(self._sides, geometry.stride)
        self.copies = counts.repeat(groups)
        self.block_shape = (c_out, c_in * math.prod(geometry.stride))
        self.application_work = map_.work

    def blocks(self, index: slice | Tensor) -> Tensor:
        chosen = torch.arange(self.copies.shape[0], device="cpu")[index]
        count = self._frequencies.shape[0]
        parts = []
        for group in chosen.div(count, rounding_mode="floor").unique().tolist():
            members = chosen[chosen.div(count, rounding_mode="floor") == group] % count
            parts.append(self._symbols(group, members))
        return torch.cat(parts)

    def _symbols(self, group: int, members: Tensor) -> Tensor:
        geometry, weight = self._map.geometry, self._weights[group]
        kernel, chosen = tuple(weight.shape[2:]), self._frequencies[members]
        steps = geometry.stride, geometry.dilation, geometry.before
        waves = tap_waves(kernel, self._sides, chosen, *steps)
        dtype = torch.complex64 if weight.dtype == torch.float32 else torch.complex128
        return symbols(weight, waves.to(weight.device, dtype))[0]

    def right_rows(self, block: int, vector: Tensor, most: int) -> Tensor:
        """The real and the imaginary part of the plane wave; for a real one, both are parallel."""
        group, member = divmod(block, self._frequencies.shape[0])
        stride = self._map.geometry.stride
        waves = alias_frequencies(self._frequencies[member : member + 1], self._sides, stride)[0]
        amplitudes = vector.reshape(waves.shape[0], -1)
        zeros = (0,) * len(self._sides)
        image = plane_wave(waves, amplitudes, self._sides, self._sides, zeros)
        channels = image.shape[0]
        tensor = self._weights.new_zeros(2, *self._layout.shape)
        own = slice(group * channels, (group + 1) * channels)
        tensor[0, own], tensor[1, own] = image.real, image.imag
        return self._layout.to_rows(tensor)
