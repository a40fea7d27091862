"""The true norms of layers: what the study measures every method by.

Nothing of our own solvers is used. A layer is copied in float64 and evaluated by its own `forward`;
what comes out is a map whose largest singular value LAPACK finds where its matrix is small, and
SciPy's ARPACK elsewhere. A batch norm with its running statistics is a diagonal matrix.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, svds
from torch import Tensor, nn

from spectralclip import FoundLayer, find_layers

Measure = Literal["layers", "compositions", "none"]
Shape = tuple[int, ...]
BatchNorm = nn.modules.batchnorm._BatchNorm

# Matrices up to this size are decomposed as a whole, in less time than ARPACK takes.
DENSE_SIDE, DENSE_ENTRIES = 256, 2**22
# SciPy hands the square of it to ARPACK, for the residual of an eigenvalue sigma^2 over the value;
# sigma is then within half of that. Layers that have been clipped have so many values close to the
# bound that a vector of the largest one alone would not be found in reasonable time.
TOLERANCE = 1e-3


def layers_to_measure(model: nn.Module, example: Tensor, measure: Measure) -> dict[str, FoundLayer]:
    """The layers whose norms are taken, by name; to be asked before a method is attached.

    Args:
        model: The plain model.
        example: A batch of its inputs.
        measure: "layers" for dense layers and convolutions; "compositions" for these, the batch
            norms, and each convolution together with its following batch norm; "none" for nothing.
    """
    if measure == "none":
        return {}
    single = find_layers(model, example, compose=False)
    if measure == "layers":
        return {n: layer for n, layer in single.items() if not _is_batch_norm(layer.modules)}
    composed = find_layers(model, example, compose=True)
    return single | {n: layer for n, layer in composed.items() if len(layer.modules) > 1}


def true_norms(model: nn.Module, layers: Mapping[str, FoundLayer]) -> dict[str, float]:
    """The spectral norm of each layer as it is in the model now, to 1e-6 of it.

    Args:
        model: The model, which is left as it is. Layers are looked up in it by their names, so
            that those found once serve copies of the model, and after a method has been attached.
        layers: By name, as `find_layers` or `layers_to_measure` give them.

    Returns:
        The norm by name, the largest over the shapes of a layer's inputs; NaN where weights are
        not finite.

    Example:
        >>> import torch
        >>> from experiments.measuring.norms import layers_to_measure, true_norms
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3, padding=1, bias=False))
        >>> _ = torch.nn.init.ones_(model[0].weight)
        >>> layers = layers_to_measure(model, torch.zeros(1, 1, 2, 2), "layers")
        >>> round(true_norms(model, layers)["0"], 6)  # each pixel sees all four
        4.0
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    return {
        name: true_norm([modules[part] for part in name.split("+")], layer.in_shapes)
        for name, layer in layers.items()
    }


def true_norm(modules: Sequence[nn.Module], in_shapes: Sequence[Shape]) -> float:
    """The largest norm, over shapes of the input, of affine modules that follow each other."""
    parts = _in_double(modules)
    tensors = [t for part in parts for t in (*part.parameters(), *part.buffers())]
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        return math.nan
    if _is_batch_norm(parts):
        return _diagonal_norm(parts[0])
    return max(_norm(_Map(parts, tuple(shape))) for shape in in_shapes)


def _is_batch_norm(modules: Sequence[nn.Module]) -> bool:
    return len(modules) == 1 and isinstance(modules[0], BatchNorm)


def _in_double(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Copies for evaluation in float64. One deep copy of all keeps shared weights shared."""
    copies = copy.deepcopy(list(modules))
    for module in copies:
        for part in module.modules():
            part.training = False  # `eval()` would let parametrizations go on
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        if device.type == "mps":  # has no float64
            module.cpu()
        module.to(torch.float64).requires_grad_(False)
    return copies


def _diagonal_norm(norm: nn.Module) -> float:
    """Of a batch norm: the largest factor `|gamma| / sqrt(running variance + eps)`."""
    assert isinstance(norm, BatchNorm) and norm.running_var is not None
    factors = (norm.running_var + norm.eps).rsqrt()
    return float((factors if norm.weight is None else factors * norm.weight.abs()).max())


class _Map:
    """Affine modules as the linear map `x -> f(x) - f(0)` on inputs of one shape.

    Its transpose comes from autograd, whose graph is made once: the map is the same everywhere.
    """

    def __init__(self, parts: Sequence[nn.Module], in_shape: Shape) -> None:
        self._parts, self.in_shape = parts, in_shape
        tensors = [t for part in parts for t in (*part.parameters(), *part.buffers())]
        self._device = tensors[0].device if tensors else torch.device("cpu")
        self.out_shape = tuple(self._origin[1].shape[1:])
        self.shape = math.prod(self.out_shape), math.prod(in_shape)

    @cached_property
    def _origin(self) -> tuple[Tensor, Tensor]:
        """Zero, and its image with a graph between them."""
        return self._graph(1)

    def _graph(self, count: int) -> tuple[Tensor, Tensor]:
        x = torch.zeros(count, *self.in_shape, dtype=torch.float64, device=self._device)
        with torch.enable_grad():
            x.requires_grad_()
            return x, self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        for part in self._parts:
            x = part(x)
        return x

    def matvec(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        image = self._image(self._tensor(x.reshape(1, *self.in_shape)))
        return np.asarray(image.reshape(-1).cpu().numpy())

    def rmatvec(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        zero, offset = self._origin
        weights = self._tensor(y.reshape(1, *self.out_shape))
        (back,) = torch.autograd.grad(offset, zero, weights, retain_graph=True)
        return np.asarray(back.reshape(-1).cpu().numpy())

    def matrix(self) -> NDArray[np.float64]:
        """The matrix, or its transpose where that takes fewer vectors."""
        rows, columns = self.shape
        side = torch.eye(min(rows, columns), dtype=torch.float64, device=self._device)
        if columns <= rows:
            images = self._image(side.reshape(columns, *self.in_shape))
        else:
            zeros, outputs = self._graph(rows)
            (images,) = torch.autograd.grad(outputs, zeros, side.reshape(rows, *self.out_shape))
        return np.asarray(images.reshape(len(side), -1).cpu().numpy())

    @torch.no_grad()
    def _image(self, x: Tensor) -> Tensor:
        return self._forward(x) - self._origin[1]

    def _tensor(self, values: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)


def _norm(operator: _Map) -> float:
    """The largest singular value."""
    side, entries = min(operator.shape), math.prod(operator.shape)
    if side <= DENSE_SIDE and entries <= DENSE_ENTRIES:
        return float(np.linalg.svd(operator.matrix(), compute_uv=False)[0])
    start = np.random.default_rng(0).standard_normal(side)
    wide = operator.shape[0] < operator.shape[1]
    image = operator.rmatvec(start) if wide else operator.matvec(start)
    if not image.any():  # of a random vector: the map is zero, on which ARPACK gives up
        return 0.0
    linear = LinearOperator(
        operator.shape, matvec=operator.matvec, rmatvec=operator.rmatvec, dtype=np.float64
    )
    values = svds(
        linear,
        k=1,
        tol=TOLERANCE,
        v0=start,
        return_singular_vectors=False,
        solver="arpack",
    )
    return float(values[0])
