"""True norms, by code that the library has no part in: what methods are judged by.

The study, the benchmarks and the tests take them from here. A layer is copied and evaluated by its
own `forward`; its transpose comes from autograd. LAPACK finds the largest singular value where the
matrix is small, and SciPy's ARPACK elsewhere.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn

Shape = tuple[int, ...]
Modules = nn.Module | Sequence[nn.Module]

# Matrices up to this size are decomposed as a whole, in less time than ARPACK takes.
DENSE_SIDE, DENSE_ENTRIES = 400, 2**22
BASIS = 32  # vectors that ARPACK keeps
KEPT_ROWS = 4  # graphs for up to so many rows at a time are kept: they are used again and again


class PlainMap:
    """Affine modules that follow each other, as the linear map `x -> f(x) - f(0)`.

    Vectors are rows, flat or in their shape. The modules are copied, as in evaluation.

    Attributes:
        shape: Of the matrix.
        side: The smaller of the two.
        on_outputs: Whether it is that of the outputs.
    """

    def __init__(
        self, modules: Modules, in_shape: Shape, dtype: torch.dtype = torch.float64
    ) -> None:
        self._modules, self._in_shape, self._dtype = _copied(modules, dtype), in_shape, dtype
        tensors = [t for part in self._modules for t in (*part.parameters(), *part.buffers())]
        self._device = tensors[0].device if tensors else torch.device("cpu")
        self._graphs: dict[int, tuple[Tensor, Tensor]] = {}
        self._offset = self._graph(1)[1].detach()
        self._out_shape = self._offset.shape[1:]
        self.shape = self._offset.numel(), math.prod(in_shape)
        self.side, self.on_outputs = min(self.shape), self.shape[0] < self.shape[1]

    def is_finite(self) -> bool:
        """Whether all weights and statistics are finite."""
        tensors = [t for part in self._modules for t in (*part.parameters(), *part.buffers())]
        return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)

    def matvec(self, rows: Tensor) -> Tensor:
        """From inputs to outputs."""
        with torch.no_grad():
            rows = rows.to(self._device, self._dtype).reshape(-1, *self._in_shape)
            return (self._forward(rows) - self._offset).flatten(1)

    def rmatvec(self, rows: Tensor) -> Tensor:
        """From outputs to inputs."""
        rows = rows.to(self._device, self._dtype).reshape(-1, *self._out_shape)
        # The map is affine: its backward is the same everywhere.
        inputs, outputs = self._graph(len(rows))
        return torch.autograd.grad(outputs, inputs, rows, retain_graph=True)[0].flatten(1)

    def away(self, rows: Tensor) -> Tensor:
        """From the smaller side to the larger one."""
        return self.rmatvec(rows) if self.on_outputs else self.matvec(rows)

    def gram(self, rows: Tensor) -> Tensor:
        """From the smaller side to the larger one, and back."""
        there = self.away(rows)
        return self.matvec(there) if self.on_outputs else self.rmatvec(there)

    def matrix(self) -> Tensor:
        """The matrix or its transpose, a row for each unit vector of the smaller side."""
        return self.away(torch.eye(self.side, dtype=self._dtype))

    def gram_operator(self) -> LinearOperator:
        """`gram` for SciPy, on columns."""
        precision = torch.empty(0, dtype=self._dtype).numpy().dtype

        def gram(columns: NDArray[Any]) -> NDArray[Any]:
            rows = torch.from_numpy(np.ascontiguousarray(columns.reshape(self.side, -1).T))
            return np.asarray(self.gram(rows).T.cpu().numpy()).reshape(columns.shape)

        return LinearOperator((self.side, self.side), matvec=gram, matmat=gram, dtype=precision)

    def _forward(self, x: Tensor) -> Tensor:
        for module in self._modules:
            x = module(x)
        return x

    def _graph(self, rows: int) -> tuple[Tensor, Tensor]:
        """Zeros, and what becomes of them, with the graph between the two."""
        if rows in self._graphs:
            return self._graphs[rows]
        with torch.enable_grad():
            zeros = torch.zeros(rows, *self._in_shape, dtype=self._dtype, device=self._device)
            zeros.requires_grad_()
            graph = zeros, self._forward(zeros)
        if rows <= KEPT_ROWS:
            self._graphs[rows] = graph
        return graph


@dataclass(frozen=True)
class TrueNorm:
    """A norm, and what is left of `M^T M v - norm^2 v` for a unit vector v, over norm^2."""

    value: float
    residual: float


def true_norm(
    modules: Modules,
    in_shape: Shape,
    *,
    tol: float = 1e-6,
    dtype: torch.dtype = torch.float64,
    seeds: Sequence[int] = (0,),
) -> TrueNorm:
    """The norm of affine modules that follow each other; NaN where a weight is not finite.

    Where the matrix is not small, ARPACK finds the leading vector, and the norm is this vector's
    Rayleigh quotient in float64: from below, within half of the residual, and of the order of its
    square where no other value is near.

    Args:
        modules: The modules, which are left as they are.
        in_shape: Shape of one input.
        tol: For the residual.
        dtype: In which the vector is searched for; float32 takes half of the time.
        seeds: For the starts; the largest norm that is found from them counts.
    """
    precise = PlainMap(modules, in_shape)
    if not precise.is_finite():
        return TrueNorm(math.nan, math.nan)
    if precise.side <= DENSE_SIDE and math.prod(precise.shape) <= DENSE_ENTRIES:
        return TrueNorm(float(torch.linalg.matrix_norm(precise.matrix(), 2)), 0.0)
    search = precise if dtype == torch.float64 else PlainMap(modules, in_shape, dtype)
    found = [_from_start(precise, search, tol, seed) for seed in seeds]
    return max(found, key=lambda norm: norm.value)


def _from_start(precise: PlainMap, search: PlainMap, tol: float, seed: int) -> TrueNorm:
    operator = search.gram_operator()
    start = np.random.default_rng(seed).standard_normal(search.side).astype(operator.dtype)
    if not (operator @ start).any():  # of a random vector: ARPACK gives up on a map that is zero
        return TrueNorm(0.0, 0.0)
    basis = min(BASIS, search.side - 1)
    _, vectors = eigsh(operator, k=1, which="LA", v0=start, ncv=basis, tol=tol)
    vector = torch.from_numpy(np.ascontiguousarray(vectors[:, 0])).double()
    vector = vector / torch.linalg.vector_norm(vector)
    square = float(torch.linalg.vector_norm(precise.away(vector))) ** 2
    rest = torch.linalg.vector_norm(precise.gram(vector)[0].cpu() - square * vector)
    return TrueNorm(math.sqrt(square), float(rest) / square)


def _copied(modules: Modules, dtype: torch.dtype) -> list[nn.Module]:
    """Copies for evaluation. One deep copy of all keeps shared weights shared."""
    copies = copy.deepcopy([modules] if isinstance(modules, nn.Module) else list(modules))
    for module in copies:
        for part in module.modules():
            part.training = False  # `eval()` would let parametrizations go on
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        if device.type == "mps":  # has no float64
            module.cpu()
        module.to(dtype).requires_grad_(False)
    return copies
