"""`init_at_bound_`: an orthogonal start for every affine layer of a model, at its bound."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from spectralclip._clipping import (
    InitResult,
    Targets,
    check_bounds,
    init_found_layers_,
    layer_targets,
)
from spectralclip._common import positive_number
from spectralclip._lipschitz.allocation import NetworkRules
from spectralclip._models import Compose, ExampleInputs, FoundLayer, find_layers, weights_of


def init_at_bound_(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    max_norm: Targets | None = None,
    max_lipschitz: float | None = None,
    proportions: Targets = 1.0,
    compose: Compose | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, InitResult]:
    """Draw new weights for every affine layer of a model, in place: orthogonal, at the bound.

    All singular values of a layer are its bound, as far as its form allows:

    - A dense layer or a 1x1 convolution gets a random matrix with orthonormal rows or columns.
    - A convolution with stride 1 gets such a matrix in one tap, and zeros elsewhere: in the one
      that reads each position once. With the padding that keeps the size this is the tap in the
      centre, whatever the padding mode.
    - With a stride, such a matrix goes into a block of as many taps on each axis as the stride has
      steps, so that no position is read twice, and none is skipped if the kernel is large enough.
    - Transposed convolutions are the adjoints of these, and groups are independent.
    - A batch norm on its own gets equal factors. With `compose="conv_bn"`, one that directly
      follows a dense layer or convolution stays as it is; that layer's weight makes up for it.
    - Weights of any other module, where they have two axes or more, become orthogonal matrices,
      and are then scaled until the norm is the bound.

    Biases of dense layers and convolutions become zero. A layer that is used at several input sizes
    is at the bound at one of them, and within it at the others; so it is with layers that share a
    weight. Running statistics are taken as they are, and are best those of a new model. Layers with
    a frozen weight stay as they are, and count at their norms.

    Args:
        model: Any module.
        example_inputs: What the model is called with, as for `find_layers`.
        max_norm: One bound for all, 1 if none is given; or a bound for some layers by name, as
            `find_layers` names them; or a function of a layer's name and `FoundLayer`, which may
            return None for one that is to be left alone.
        max_lipschitz: In place of `max_norm`, a bound for the network as a whole, which all layers
            reach by the same norm, by the rules of `lipschitz_bounds`.
        proportions: With `max_lipschitz`, those of the layers' norms, in the same form as
            `max_norm`; layers that are left out stay as they are, and count at their norms.
        compose: Which layers are at the bound together, as for `find_layers`. By default
            "conv_bn", a dense layer or convolution with the following batch norm; but with
            `max_lipschitz` "none", so that each has the norm that `SpectralClip()` will hold it at.
        generator: Source of the random matrices; by default the same for each call.

    Returns:
        An `InitResult` for each layer, by name. Norms are within 0.1 % of the bounds. Matrices of
        fewer than four rows or columns in bfloat16, which cannot be rounded so well, may be off
        by a few times that.

    Raises:
        ValueError: A layer has a parametrized weight, or cannot be brought to its bound; all
            layers are frozen, or one that is named; or the network has no bound. The whole
            model is as it was.

    Example:
        >>> import torch
        >>> from spectralclip import init_at_bound_
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Conv2d(3, 16, 3, padding=1),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
        ... )
        >>> results = init_at_bound_(model, torch.zeros(1, 3, 8, 8), max_norm=0.5)
        >>> for name, result in results.items():
        ...     print(name, round(result.norm, 4), round(result.smallest, 4), result.how)
        0 0.5 0.5 single tap
        2 0.5 0.5 taps of one window
    """
    check_bounds(max_norm, max_lipschitz, proportions)
    if compose is None:
        compose = "conv_bn" if max_lipschitz is None else "none"
    found = find_layers(model, example_inputs, compose)
    frozen = [name for name, layer in found.items() if _is_frozen(layer)]
    given = max_norm if max_lipschitz is None else proportions
    named = [name for name in frozen if isinstance(given, Mapping) and name in given]
    if named or len(frozen) == len(found) > 0:
        raise ValueError(
            f"The layers {named or frozen} are frozen, and a start is drawn for weights that train "
            f"alone: call requires_grad_(True) on them{', or leave them out' if named else ''}."
        )
    layers = {name: layer for name, layer in found.items() if name not in frozen}
    if max_lipschitz is None:
        targets = layer_targets(layers, 1.0 if max_norm is None else max_norm)
        return init_found_layers_(layers, targets, generator)
    parts = layer_targets(layers, proportions, "proportions")
    whole = positive_number(max_lipschitz, "max_lipschitz")
    rules = NetworkRules(model, example_inputs, {name: layers[name] for name in parts})
    scale = rules.scale_for(parts, whole)
    targets = {name: scale * part for name, part in parts.items()}
    return init_found_layers_(layers, targets, generator)


def _is_frozen(layer: FoundLayer) -> bool:
    """Whether a weight that would be drawn is frozen: those of the first module that has some."""
    first = next((part for part in layer.modules if any(True for _ in part.parameters())), None)
    return first is not None and not all(weight.requires_grad for weight in weights_of(first))
