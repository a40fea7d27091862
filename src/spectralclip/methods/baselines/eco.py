"""Explicitly constructed orthogonal convolutions of Yu et al. (2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip.methods._domain import sole_module
from spectralclip.methods.baselines._orthogonal import OrthogonalMethod, skew_exponential


@final
@dataclass(frozen=True)
class ECO(OrthogonalMethod):
    """Orthogonal convolutions from unitary matrices at the frequencies of a small torus.

    Yu, Li, Cai and Li, "Constructing Orthogonal Convolutions in an Explicit Manner", ICLR 2022. A
    circular convolution with a k x k kernel and dilation n / k on an image of n x n has only k x k
    different symbols: the discrete Fourier transform of the kernel. They are made unitary as in
    `SOC`, by the exponential of their skew-Hermitian part, and transformed back: the result is
    again a k x k kernel, and a cheap plain convolution. The authors take real matrices, one for
    each frequency and its mirror image; here they are complex, from the layer's own weight.

    Where k does not divide n, the authors enlarge the image, and the layer is no longer orthogonal:
    its norm is above one (found by Prach et al., CVPR 2024). Here the kernel takes the next
    size that divides n, such as 4 x 4 with dilation 8 for 3 x 3 on 32 x 32.

    *Domain.* Dense layers; convolutions of stride 1, any dimension and groups, that are used at one
    size of image and keep it. They become circular, and dilated. Others are left as they are.

    *Promise.* All singular values are the bound, but for those that are zero by shape.

    *Cost.* k x k exponentials of the size of the channels, and one dilated convolution, at each
    forward pass; `finalize` and `remove` leave that convolution as a plain layer. Where the kernel
    has grown, the optimizer's averages of it begin anew.

    *Checkpoints.* As of `SOC`.

    *Known failure.* The receptive field is spread over the whole image, so that nothing local is
    left of the original convolution.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods, singular_values
        >>> conv = torch.nn.Conv2d(2, 4, 3, padding=1)
        >>> with attach(conv, None, torch.zeros(1, 2, 9, 9), method=methods.get("eco")()):
        ...     pass  # train it here
        >>> conv.kernel_size, conv.dilation, conv.padding_mode
        ((3, 3), (3, 3), 'circular')
        >>> values = singular_values(conv, (2, 9, 9))
        >>> bool((values - 1).abs().max() < 1e-5)
        True
    """

    def orthogonal(self, matrices: Tensor) -> Tensor:
        """The exponential of the skew-Hermitian part."""
        return skew_exponential(matrices)

    def torus(self, sides: Shape, kernel: Shape) -> Shape:
        """The smallest divisors of the sides that the kernel fits on."""
        return tuple(
            next(d for d in range(min(k, n), n + 1) if n % d == 0)
            for n, k in zip(sides, kernel, strict=True)
        )

    @classmethod
    def why_not(cls, layer: object, *in_shapes: Shape, **settings: Any) -> str:
        """As of all orthogonal methods, without strides."""
        why, module = super().why_not(layer, *in_shapes), sole_module(layer)
        if why or isinstance(module, nn.Linear) or max(module.kernel_size) == 1:
            return why
        if max(module.stride) > 1:
            return f"with a stride of {module.stride} no kernel is spread out evenly"
        return ""
