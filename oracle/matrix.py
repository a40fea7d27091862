"""The dense matrix of a layer, by its own forward in float64, and what LAPACK says of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]
Shape = Sequence[int]

ROWS = 256  # basis vectors at a time


def in_double(layer: Any) -> list[Any]:
    """Copies of the parts of a layer, in float64 and for evaluation.

    A layer is a module, a callable, or a sequence of these that follow each other.
    """
    parts = list(layer) if isinstance(layer, (list, tuple)) else [layer]
    modules = [part for part in parts if isinstance(part, nn.Module)]
    # Tensors that a hook has computed cannot be deep-copied; the hook makes them anew.
    computed = {
        id(value): value.detach().clone()
        for module in modules
        for inner in module.modules()
        for value in vars(inner).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    parts = copy.deepcopy(parts, computed)  # at once: shared weights stay shared
    for part in parts:
        if isinstance(part, nn.Module):
            for inner in part.modules():
                inner.training = False  # `eval()` would let parametrizations go on
            if any(p.device.type == "mps" for p in part.parameters()):  # has no float64
                part.cpu()
            part.double().requires_grad_(False)
    return parts


def evaluate(layer: Any, x: Tensor) -> Tensor:
    """A layer's own forward on a batch; embeddings are read row by row, and take one-hot rows."""
    for part in layer if isinstance(layer, (list, tuple)) else [layer]:
        if isinstance(part, nn.Embedding):
            x = x @ part(torch.arange(part.num_embeddings))
        elif isinstance(part, nn.EmbeddingBag):
            rows = x @ part(torch.arange(part.num_embeddings)[:, None])
            x = rows.sum(-2) if part.mode == "sum" else rows.mean(-2)
        else:
            x = part(x)
    return x


@torch.no_grad()
def dense_matrix(layer: Any, in_shape: Shape) -> Array:
    """The matrix of an affine layer: `f(e) - f(0)` for every basis vector `e` is a column."""
    parts, size = in_double(layer), math.prod(in_shape)
    basis = torch.eye(size, dtype=torch.float64).reshape(size, *in_shape)
    offset = evaluate(parts, torch.zeros(1, *in_shape, dtype=torch.float64))
    columns = torch.cat([evaluate(parts, rows) for rows in basis.split(ROWS)]) - offset
    return np.asarray(columns.reshape(size, -1).T.contiguous().numpy())


def singular_values(layer: Any, in_shape: Shape) -> Array:
    """All of them, descending."""
    return np.asarray(np.linalg.svd(dense_matrix(layer, in_shape), compute_uv=False))


def dense_norm(layer: Any, in_shape: Shape) -> float:
    """The norm of a layer's matrix; NaN where weights are not finite."""
    return matrix_norm(dense_matrix(layer, in_shape))


def matrix_norm(matrix: Array) -> float:
    """The largest singular value, as a square root of an eigenvalue: its error is of rounding."""
    largest = float(np.abs(matrix).max(initial=0.0))
    if largest == 0.0 or not math.isfinite(largest):
        return largest if largest == 0.0 else math.nan
    scaled = matrix / largest
    gram = scaled @ scaled.T if len(scaled) < scaled.shape[1] else scaled.T @ scaled
    return largest * math.sqrt(np.linalg.eigvalsh(gram)[-1])


def kernel_norm(module: Any) -> float:
    """The norm of the kernel as a matrix with a row for each output channel."""
    kernel = module.weight.detach().double().numpy()
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        kernel = kernel.swapaxes(0, 1)
    return matrix_norm(kernel.reshape(len(kernel), -1))
