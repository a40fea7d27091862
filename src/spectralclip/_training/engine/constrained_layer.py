"""A layer as training sees it: the weight that moves, and what its outputs are scaled with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip._models import FoundLayer
from spectralclip._operators import BATCH_NORMS, CONVS, TRANSPOSED, Rows, is_plain
from spectralclip._training.engine.group import stacked
from spectralclip._training.method import seeded

BatchNorm = nn.modules.batchnorm._BatchNorm


@final
@dataclass(frozen=True)
class ConstrainedLayer:
    """A dense layer or convolution with a weight of its own, perhaps with the following batch norm.

    Attributes:
        name: The layer's.
        module: The dense layer or convolution; or rows of another module's weight, as one.
        norm: The batch norm, if the two count as one layer.
        in_shapes: The shapes of its inputs.
        origin: Where its random numbers come from.
    """

    name: str
    module: nn.Module
    norm: BatchNorm | None
    in_shapes: tuple[Shape, ...]
    origin: str = ""

    @staticmethod
    def of(layer: FoundLayer, origin: str = "") -> ConstrainedLayer | None:
        """The layer in this form; None if it has another one."""
        module, *following = layer.modules
        if not is_plain(module, nn.Linear, Rows, *CONVS, *TRANSPOSED) or len(following) > 1:
            return None
        own = module if isinstance(module, Rows) else module._parameters.get("weight")
        if not isinstance(own, (Rows, nn.Parameter)):
            return None  # as under a parametrization
        norm = following[0] if following else None
        if norm is not None:
            if not is_plain(norm, *BATCH_NORMS) or isinstance(module, TRANSPOSED):
                return None
            assert isinstance(norm, BatchNorm)
        return ConstrainedLayer(layer.name, module, norm, layer.in_shapes, origin)

    @property
    def weight(self) -> Tensor:
        """The weight, which may have been exchanged since; of rows, a view of them."""
        if isinstance(self.module, Rows):
            with torch.no_grad():
                return self.module.weight
        weight = self.module._parameters["weight"]
        assert weight is not None
        return weight

    @property
    def gamma(self) -> Tensor | None:
        """The batch norm's own factor, if it has one that may move."""
        gamma = None if self.norm is None else self.norm._parameters.get("weight")
        return gamma if gamma is not None and gamma.requires_grad else None

    @property
    def moving(self) -> Tensor:
        """The parameter to move: of a batch norm its factor, since it undoes all others."""
        return self.weight if self.gamma is None else self.gamma

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must be equal of all layers of a group."""
        weight, norm = self.weight, self.norm
        shared = (weight.shape, weight.dtype, weight.device, self.groups)
        if norm is None:
            return shared
        return (*shared, norm.eps, norm._parameters.get("weight") is None, self.gamma is None)

    def generator(self) -> torch.Generator:
        """For its random vectors."""
        return seeded(self.origin)

    @property
    def groups(self) -> int:
        """How many independent kernels the weight holds: the map is block diagonal."""
        return int(getattr(self.module, "groups", 1))


def stacked_scales(layers: Sequence[ConstrainedLayer]) -> Tensor | None:
    """What batch norms multiply each output channel with, in evaluation; None without them."""
    norms = [layer.norm for layer in layers if layer.norm is not None]
    if not norms:
        return None
    variances = stacked([norm.running_var for norm in norms if norm.running_var is not None])
    scales = torch.rsqrt(variances + norms[0].eps)
    weights = [norm._parameters.get("weight") for norm in norms]
    factors = [weight for weight in weights if weight is not None]
    return scales * stacked(factors) if factors else scales
