"""Sedghi, Gupta and Long (2018): clip the singular values of a convolution at each frequency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from spectralclip._common import Shape
from spectralclip.methods.baselines._circulant import CirculantMethod, Torus, why_not_circulant


@final
@dataclass(frozen=True)
class Sedghi(CirculantMethod):
    """Fourier transform, clip every frequency, back to a kernel (Sedghi, Gupta and Long).

    H. Sedghi, V. Gupta, P. M. Long: *The Singular Values of Convolutional Layers*, ICLR 2019
    (arXiv 1805.10408, 2018).

    With circular padding and stride 1 a convolution is block-circulant: the Fourier transform of
    its taps has a `c_out x c_in` matrix at each frequency, and the singular values of all these
    matrices are those of the layer. Every `every` steps, those above the bound are set to it.
    The nearest layer within the bound has as many taps as the image has pixels; it is cut down
    to the `k x k` taps of the kernel. Clipping and cutting down are two projections, which may
    alternate several times (`projections`).

    *Domain*: convolutions on any number of axes with stride 1, one group, no dilation, and an
    image not smaller than the kernel; dense layers, as one tap on one pixel. Strided
    layers are left alone: `Senderovich` takes them. The theory is for circular padding;
    layers with another one are taken for circular, as the authors do.

    *Promise*: `estimate` is exact for circular padding that keeps the size. Dense layers and 1x1
    convolutions are clipped exactly.

    *Cost*: `n^2` singular value decompositions of `c_out x c_in` matrices for images of
    `n x n`, half of them by symmetry, in each round, and the values once more; `n^2 c_out c_in`
    complex numbers at a time.

    *Known failure*: cutting down raises the norm again: random 3x3 kernels that are clipped to
    half of their norm are left at 1.3 times the bound, also with circular padding. For other
    paddings the circulant norm is not the layer's, and the error grows with the channels. Between
    rounds nothing holds the norm.

    Attributes:
        every: Steps of the optimizer from one round to the next.
        projections: How often a round clips and cuts down; once as published.

    Example:
        >>> import torch
        >>> from spectralclip import attach
        >>> from spectralclip.methods.baselines.sedghi import Sedghi
        >>> conv = torch.nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")
        >>> _ = torch.nn.init.ones_(conv.weight)
        >>> round(Sedghi.estimate(conv, (1, 8, 8)), 4)
        9.0
        >>> attachment = attach(
        ...     conv, None, torch.zeros(1, 1, 8, 8), method=Sedghi(every=1), max_norm=3.0
        ... )
        >>> attachment.step()
        >>> round(Sedghi.estimate(conv, (1, 8, 8)), 2)  # more than 3: taps were cut off
        5.21
    """

    every: int = 100
    projections: int = 1

    @classmethod
    def why_not(cls, layer: object, *in_shapes: Shape, **settings: Any) -> str:
        """Dense layers and convolutions with stride 1, one group and no dilation."""
        return why_not_circulant(layer, *in_shapes, strides=False)

    def clipped(self, kernel: Tensor, torus: Torus, bound: float) -> Tensor:
        """Clip and cut down, as often as asked for."""
        for _ in range(self.projections):
            kernel = torus.clip(kernel, bound)
        return kernel
