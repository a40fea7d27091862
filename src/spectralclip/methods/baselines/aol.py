"""Almost orthogonal layers of Prach and Lampert (2022)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._models import FoundLayer
from spectralclip.methods._domain import EstimatingMethod, Source, sole_module
from spectralclip.methods.baselines._orthogonal import repetition
from spectralclip.methods.baselines._swap import Form, OwnShape, SwapMethod


@final
@dataclass(frozen=True)
class AOL(SwapMethod, EstimatingMethod):
    """Layers of norm at most the bound, by one factor for each input channel.

    Prach and Lampert, "Almost-Orthogonal Layers for Efficient General-Purpose Lipschitz Networks",
    ECCV 2022. With `T = W^T W`, the columns of W are multiplied with `d_j = (sum_i |T_ij|)^(-1/2)`.
    For a convolution T is the correlation of the kernel with itself, between all pairs of input
    channels, and the sum goes over all shifts too. No iteration, and no size of image, is needed.

    *Domain.* Dense layers and convolutions of any stride, dilation and groups, with zero or
    circular padding or none; a border that repeats pixels may exceed the bound, and so may a
    circular one that is wider than half the reach of the kernel, which repeats outputs.

    *Promise.* The norm is at most the bound, by proof, at every size of image. The layer keeps its
    shape, padding and stride, and training tends to orthogonal ones.

    *Cost.* One correlation of the kernel with itself at each forward pass.

    *Checkpoints.* While it is attached, the `state_dict` has the keys and shapes of the plain one,
    and means something else: attach the method there too.

    *Known failure.* Far from orthogonal the bound is loose: a random 3 x 3 convolution is
    multiplied by a factor several times smaller than need be, so that signals fade in deep
    networks. Small weights are enlarged just as large ones are lowered.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods, spectral_norm
        >>> conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        >>> with attach(conv, None, torch.zeros(1, 3, 8, 8), method=methods.get("aol")()):
        ...     pass  # train it here
        >>> bool(spectral_norm(conv, (3, 8, 8)) <= 1)
        True
    """

    @classmethod
    def why_not(cls, layer: object, *in_shapes: Shape, **settings: Any) -> str:
        """Dense layers and convolutions whose border repeats nothing."""
        why = super().why_not(layer)
        border = "" if why else repetition(sole_module(layer))
        return why or (f"its bound does not hold with {border}" if border else "")

    def form(self, layer: FoundLayer) -> Form:
        """The layer with its columns scaled."""
        return OwnShape(partial(_rescaled, getattr(sole_module(layer), "groups", 1)))

    @classmethod
    def norm_of(cls, module: Any, in_shape: Shape, generator: Source, **settings: Any) -> float:
        """An upper bound of the norm: the largest `sum_i |T_ij|`, rooted."""
        sole = sole_module(module)
        wide = sole.weight.to(torch.promote_types(sole.weight.dtype, torch.float32))
        return float(_sums(wide, getattr(sole, "groups", 1)).max().sqrt())


def _rescaled(groups: int, weight: Tensor) -> Tensor:
    """A weight with its columns scaled."""
    sums = _sums(weight, groups)
    # A column of zeros stays one, and has a gradient.
    factors = torch.where(sums > 0, sums, 1.0).rsqrt()
    rows = factors.repeat_interleave(weight.shape[0] // groups, 0)
    return weight * rows.reshape(*rows.shape, *[1] * (weight.ndim - 2))


def _sums(weight: Tensor, groups: int) -> Tensor:
    """`sum |T_ij|` over i and all shifts, for each input channel j: `(groups, c_in / groups)`."""
    kernel = weight if weight.ndim > 2 else weight[..., None]
    columns, taps = kernel.shape[1], kernel.shape[2:]
    images = kernel.transpose(0, 1)
    filters = kernel.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    correlate: Any = (F.conv1d, F.conv2d, F.conv3d)[len(taps) - 1]
    # (c_in / groups, c_in, *shifts): channels of one group with each other.
    gram = correlate(images, filters, padding=[size - 1 for size in taps], groups=groups)
    sums: Tensor = gram.abs().sum(tuple(range(2, gram.ndim))).sum(0)
    return sums.reshape(groups, columns)
