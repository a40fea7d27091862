"""The true norms of a model's layers, by the oracle; a batch norm is a diagonal matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

import oracle
from spectralclip import FoundLayer, find_layers

Measure = Literal["layers", "compositions", "none"]
Shape = tuple[int, ...]
BatchNorm = nn.modules.batchnorm._BatchNorm


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
    single = find_layers(model, example, compose="none")
    if measure == "layers":
        return {n: layer for n, layer in single.items() if not _is_batch_norm(layer.modules)}
    composed = find_layers(model, example, compose="conv_bn")
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
    if _is_batch_norm(modules):
        return _diagonal_norm(modules[0])
    # Of clipped layers so many values are close to the bound that a smaller residual, and with it
    # the vector of the largest one alone, would not be reached in reasonable time.
    found = [oracle.true_norm(modules, tuple(shape), tol=1e-6).value for shape in in_shapes]
    return math.nan if any(map(math.isnan, found)) else max(found)


def _is_batch_norm(modules: Sequence[nn.Module]) -> bool:
    return len(modules) == 1 and isinstance(modules[0], BatchNorm)


def _diagonal_norm(norm: nn.Module) -> float:
    """Of a batch norm: the largest factor `|gamma| / sqrt(running variance + eps)`."""
    assert isinstance(norm, BatchNorm) and norm.running_var is not None
    factors = (norm.running_var.detach().cpu().double() + norm.eps).rsqrt()
    if norm.weight is not None:
        factors = factors * norm.weight.detach().cpu().double().abs()
    return float(factors.max()) if bool(factors.isfinite().all()) else math.nan
