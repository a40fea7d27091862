"""True norms of layers while they train, by code that the library has no part in."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.clip_layers import true_norm

if TYPE_CHECKING:
    from spectralclip import FoundLayer

Shape = tuple[int, ...]
Apply = Callable[[Tensor], Tensor]

LEAST_STEPS = 8  # before which a warm start is not believed
MOST_STEPS = 150
RESIDUAL = 7e-4  # of M^T M, relative: the norm's error is of the order of its square
CARRIED = 6  # Ritz vectors that the next reading starts from
NOISE = 0.1  # beside them, so that what was hidden is found


class Oracle:
    """Reads sigma_1 of layers, each reading from where the last one ended.

    Dense layers and 1x1 convolutions by the eigenvalues of a Gram matrix in float64. Others by
    Lanczos on the layer's own forward and backward, in float32; the norm is the Rayleigh quotient
    in float64 of the vector found, whose error is of the order of the residual squared. It shares
    neither code nor vectors with what it judges.
    """

    def __init__(self, layers: Mapping[str, FoundLayer], seed: int = 0) -> None:
        self._uses = [
            (name, layer.modules, shape)
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
        norms, worst = self.norms(), 0.0
        for name, modules, shape in self._uses:
            whole = _frozen(modules)
            other = true_norm(whole[0] if len(whole) == 1 else whole, shape)
            worst = max(worst, abs(norms[name] / other - 1))
        return worst

    def _norm(self, key: tuple[str, Shape], modules: tuple[nn.Module, ...], shape: Shape) -> float:
        if not all(bool(p.isfinite().all()) for module in modules for p in module.parameters()):
            return math.nan
        if len(modules) == 1 and (matrix := _matrix(modules[0])) is not None:
            gram = matrix @ matrix.T if matrix.shape[0] < matrix.shape[1] else matrix.T @ matrix
            return math.sqrt(float(torch.linalg.eigvalsh(gram)[-1]))
        plain = _Plain(_frozen(modules), shape, torch.float32)
        start = self._noise(plain.side)
        if key in self._starts:
            start = self._starts[key] + NOISE * start
        basis, ritz = _krylov(plain.gram, start)
        self._starts[key] = (ritz[:, :CARRIED].sum(1) @ basis) / CARRIED**0.5
        top = (ritz[:, 0] @ basis).double()
        image = _Plain(_frozen(modules), shape, torch.float64).away(top)
        return float(image.norm() / top.norm())

    def _noise(self, size: int) -> Tensor:
        vector = torch.randn(size, generator=self._generator)
        return nn.functional.normalize(vector, dim=0)


def _frozen(modules: tuple[nn.Module, ...]) -> nn.Sequential:
    """A copy as in evaluation, without gradients in the weights."""
    copied = nn.Sequential(*copy.deepcopy(modules))
    return copied.eval().requires_grad_(False)


def _matrix(module: nn.Module) -> Tensor | None:
    """The matrix that has the layer's norm, where there is a small one."""
    if isinstance(module, nn.Linear):
        return module.weight.detach().double()
    if not isinstance(module, nn.Conv2d):
        return None
    is_pointwise = module.kernel_size == (1, 1) and module.padding == (0, 0)
    return module.weight.detach().double().flatten(1) if is_pointwise else None


class _Plain:
    """A layer on flat vectors of its smaller side, by its forward and backward alone."""

    def __init__(self, layer: nn.Module, shape: Shape, dtype: torch.dtype) -> None:
        self._layer, self._shape = layer.to(dtype), shape
        self._zero = torch.zeros(1, *shape, dtype=dtype, requires_grad=True)
        # The layer is affine: its backward is the same everywhere, and its graph is kept.
        with torch.enable_grad():
            self._offset = self._layer(self._zero)
        outputs = self._offset.numel()
        self._on_outputs = outputs < self._zero.numel()
        self.side = min(outputs, self._zero.numel())

    def away(self, vector: Tensor) -> Tensor:
        """To the larger side."""
        return self._transposed(vector) if self._on_outputs else self._direct(vector)

    def gram(self, vector: Tensor) -> Tensor:
        """There and back."""
        if self._on_outputs:
            return self._direct(self._transposed(vector))
        return self._transposed(self._direct(vector))

    @torch.no_grad()
    def _direct(self, x: Tensor) -> Tensor:
        image: Tensor = self._layer(x.reshape(1, *self._shape)) - self._offset
        return image.flatten()

    def _transposed(self, y: Tensor) -> Tensor:
        y = y.reshape(self._offset.shape)
        return torch.autograd.grad(self._offset, self._zero, y, retain_graph=True)[0].flatten()


@torch.no_grad()
def _krylov(gram: Apply, start: Tensor) -> tuple[Tensor, Tensor]:
    """An orthonormal basis, as rows, and its Ritz vectors, as columns, the largest first."""
    basis = start.new_empty(min(MOST_STEPS, start.numel()), start.numel())
    diagonal: list[float] = []
    beside: list[float] = []
    vector = start / start.norm()
    while True:
        steps = len(diagonal) + 1
        basis[steps - 1] = vector
        image = gram(vector)
        diagonal.append(float(image @ vector))
        for _ in range(2):  # once is not enough in float32
            image = image - (basis[:steps] @ image) @ basis[:steps]
        beside.append(float(image.norm()))
        done = steps == len(basis) or beside[-1] <= 1e-6 * max(diagonal)
        if done or (steps >= LEAST_STEPS and steps % 2 == 0):
            tridiagonal = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
            values, columns = np.linalg.eigh(tridiagonal)
            if done or beside[-1] * abs(columns[-1, -1]) <= RESIDUAL * values[-1]:
                ritz = torch.from_numpy(columns[:, ::-1].copy()).to(start.dtype)
                return basis[:steps], ritz
        vector = image / beside[-1]
