"""True norms of layers while they train, cheap enough to be read after every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oracle.circulant import is_circulant, symbols
from oracle.krylov import PlainOperator, true_norm

Shape = tuple[int, ...]

BLOCK = 4  # vectors at a time
LEAST_STEPS = 3  # before which a warm start is not believed
MOST_STEPS = 40
RESIDUAL = 7e-4  # of M^T M, relative: the norm's error is of the order of its square
# Where many values are nearly equal, as in a clipped layer, vectors take long to settle among
# them, and the largest value does not: it is believed once a step no longer raises it.
GAIN = 1e-5
STEPS_AT_REST = 7
NOISE = 0.1  # beside the vectors of the last reading, so that what was hidden is found


class TrackedNorms:
    """Reads sigma_1 of layers, each reading from where the last one ended.

    Dense layers, 1x1 and circular convolutions by the eigenvalues of Gram matrices in float64.
    Others by block Lanczos on the layer's own forward and backward, in float32; the norm is the
    Rayleigh quotient in float64 of the vector found, whose error is of the order of the residual
    squared. It shares neither code nor vectors with what it judges.

    Args:
        layers: By name, objects with the `modules` of a layer and the `in_shapes` of its uses.
        seed: For the starts.
    """

    def __init__(self, layers: Mapping[str, Any], seed: int = 0) -> None:
        self._uses = [
            (name, layer.modules, tuple(shape))
            for name, layer in layers.items()
            for shape in layer.in_shapes
        ]
        self._starts: dict[tuple[str, Shape], Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def norms(self) -> dict[str, float]:
        """By layer, the largest over its input shapes; NaN where weights are not finite."""
        found: dict[str, float] = {}
        for name, modules, shape in self._uses:
            norm = self._norm((name, shape), modules, shape)
            found[name] = max(norm, found.get(name, 0.0)) if math.isfinite(norm) else math.nan
        return found

    def largest(self) -> tuple[float, str]:
        """The largest norm and its layer; infinity where weights are not finite."""
        norms = {n: norm if math.isfinite(norm) else math.inf for n, norm in self.norms().items()}
        name = max(norms, key=lambda name: norms[name])
        return norms[name], name

    def disagreement(self) -> float:
        """With ARPACK from random vectors: the largest relative difference, over the layers now."""
        norms, others = self.norms(), dict[str, float]()
        for name, modules, shape in self._uses:
            other = true_norm(modules, shape, search=torch.float32, tol=2e-5, starts=2)
            others[name] = max(other.value, others.get(name, 0.0))
        return max(abs(norms[name] / other - 1) for name, other in others.items())

    def _norm(self, key: tuple[str, Shape], modules: tuple[nn.Module, ...], shape: Shape) -> float:
        if not all(bool(p.isfinite().all()) for module in modules for p in module.parameters()):
            return math.nan
        if len(modules) == 1 and (blocks := _blocks(modules[0], shape)) is not None:
            wide = blocks.shape[-2] < blocks.shape[-1]
            gram = blocks @ blocks.mH if wide else blocks.mH @ blocks
            return math.sqrt(float(torch.linalg.eigvalsh(gram).max()))
        plain = PlainOperator(modules, shape, torch.float32)
        start = torch.randn(BLOCK, plain.side, generator=self._generator) / plain.side**0.5
        if key in self._starts:
            start = self._starts[key] + NOISE * start
        self._starts[key] = _leading(plain.gram, start)
        top = self._starts[key][:1].double()
        return float(PlainOperator(modules, shape).away(top).norm() / top.norm())


def _blocks(module: nn.Module, shape: Shape) -> Tensor | None:
    """Small matrices in float64, of which the largest norm is the layer's, where there are any."""
    if isinstance(module, nn.Linear):
        return module.weight.detach().double()
    if not isinstance(module, nn.Conv2d) or module.groups > 1:
        return None
    if module.kernel_size == (1, 1) and module.padding == (0, 0):
        return module.weight.detach().double().flatten(1)
    if not is_circulant(module, shape[1:]):
        return None
    grid = [side // step for side, step in zip(shape[1:], module.stride, strict=True)]
    half = symbols(module, shape[1:]).unflatten(0, grid)[: grid[0] // 2 + 1]
    blocks: Tensor = half.flatten(0, 2)  # the rest is its conjugate
    return blocks


@torch.no_grad()
def _leading(gram: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """The leading Ritz vectors, as rows, from a Krylov space that grows by blocks."""
    most = min(MOST_STEPS * BLOCK, start.shape[1] // BLOCK * BLOCK)
    basis, images = start.new_empty(most, start.shape[1]), start.new_empty(most, start.shape[1])
    projected, before = start.new_zeros(most, most), 1.0
    block = torch.linalg.qr(start.T).Q.T
    for size in range(BLOCK, most + 1, BLOCK):
        new = slice(size - BLOCK, size)
        basis[new], images[new] = block, gram(block)
        projected[:size, new] = basis[:size] @ images[new].T
        projected[new, :size] = projected[:size, new].T
        values, vectors = torch.linalg.eigh(projected[:size, :size])
        top = vectors[:, -1]
        residual = torch.linalg.vector_norm(top @ images[:size] - values[-1] * (top @ basis[:size]))
        steps, gained, before = size // BLOCK, float(values[-1]) / before - 1, float(values[-1])
        if steps >= LEAST_STEPS and residual <= RESIDUAL * before:
            break
        if steps >= STEPS_AT_REST and gained <= GAIN:
            break
        block = images[new]
        for _ in range(2):  # once is not enough in float32
            block = block - (block @ basis[:size].T) @ basis[:size]
            block = torch.linalg.qr(block.T).Q.T
    leading: Tensor = vectors[:, -BLOCK:].flip(1).T @ basis[:size]
    return leading
