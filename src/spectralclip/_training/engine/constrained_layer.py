"""A layer as training sees it: the weight that moves, and what its outputs are scaled with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip._models import FoundLayer
from spectralclip._operators import CONVS, HALF_PRECISION, TRANSPOSED, batch_norm_scale, is_plain
from spectralclip._training.engine.tuning import LAYER

BatchNorm = nn.modules.batchnorm._BatchNorm


@final
@dataclass(frozen=True)
class ConstrainedLayer:
    """A dense layer or convolution with a weight of its own, perhaps with the following batch norm.

    Attributes:
        name: The layer's.
        module: The dense layer or convolution.
        norm: The batch norm, if the two count as one layer.
        in_shapes: The shapes of its inputs.
    """

    name: str
    module: nn.Module
    norm: BatchNorm | None
    in_shapes: tuple[Shape, ...]

    @staticmethod
    def of(layer: FoundLayer) -> ConstrainedLayer | None:
        """The layer in this form; None if it has another one."""
        module, *following = layer.modules
        if not is_plain(module, nn.Linear, *CONVS, *TRANSPOSED) or len(following) > 1:
            return None
        if not isinstance(module._parameters.get("weight"), nn.Parameter):
            return None  # as under a parametrization
        norm = following[0] if following else None
        if norm is not None:
            plain = is_plain(norm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
            if not plain or isinstance(module, TRANSPOSED):
                return None
            assert isinstance(norm, BatchNorm)
        return ConstrainedLayer(layer.name, module, norm, layer.in_shapes)

    @property
    def weight(self) -> Tensor:
        """The weight, which may have been exchanged since."""
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
    def groups(self) -> int:
        """How many independent kernels the weight holds: the map is block diagonal."""
        return int(getattr(self.module, "groups", 1))

    def kernels(self) -> Tensor:
        """The weight as `(groups, rows, columns, taps)` in the precision of computation.

        A view of the weight where that is possible.
        """
        weight = self.weight.detach()
        taps = weight[0, 0].numel() if weight.ndim > 2 else 1
        shaped = weight.reshape(self.groups, weight.shape[0] // self.groups, weight.shape[1], taps)
        return shaped.float() if weight.dtype in HALF_PRECISION else shaped

    @torch.no_grad()
    def write(self, kernels: Tensor) -> None:
        """Store kernels of that shape; nothing to copy where they are a view of the weight."""
        weight = self.weight
        if kernels.data_ptr() == weight.data_ptr() and kernels.dtype == weight.dtype:
            torch.autograd.graph.increment_version(weight)
            return
        weight.copy_(kernels.reshape(weight.shape))

    def peak(self) -> float:
        """The largest entry of the kernels as they act, a lower bound on the norm; or NaN."""
        rows, kernels = self.rows(), self.kernels()
        if rows is not None:
            kernels = kernels * rows.reshape(kernels.shape[0], -1, 1, 1)
        return float(kernels.abs().amax())

    @torch.no_grad()
    def tame_(self, bound: float) -> None:
        """Scale down what is so large that it cannot be projected, or not even squared."""
        peak = self.peak()
        if LAYER.spike * bound < peak < math.inf:
            self.moving.mul_(bound / peak)

    def rows(self) -> Tensor | None:
        """What the batch norm multiplies each output channel with, in evaluation."""
        norm = self.norm
        if norm is None:
            return None
        assert norm.running_var is not None
        precise = norm.running_var.detach()
        precise = precise.float() if precise.dtype in HALF_PRECISION else precise
        gamma = norm._parameters.get("weight")
        factor = None if gamma is None else gamma.detach().to(precise.dtype)
        return batch_norm_scale(precise, norm.eps, factor)
