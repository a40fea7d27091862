"""Skew orthogonal convolutions of Singla and Feizi (2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from spectralclip.methods.baselines._orthogonal import OrthogonalMethod, skew_exponential


@final
@dataclass(frozen=True)
class SOC(OrthogonalMethod):
    """Orthogonal layers as exponentials of skew-symmetric ones.

    Singla and Feizi, "Skew Orthogonal Convolutions", ICML 2021. The weight is made skew-symmetric,
    `L = (W - W^T) / 2`, with channels of zeros where there are more on one side than on the other;
    the layer is `exp(L)`, less the channels that were added. Their code sums the first 5 to 12
    terms of the series, a convolution each, after dividing L by a bound of its norm; here the
    convolution is taken on a torus, where the exponential is one of small matrices, and exact.

    *Domain.* Dense layers; convolutions of any dimension, dilation and groups that are used at
    one size of image and map a side of n positions to n / stride. They become circular, whatever
    their padding was. Others are left as they are.

    *Promise.* All singular values are the bound; with a stride, or with fewer outputs than inputs,
    all that are not zero by shape.

    *Cost.* One matrix exponential of the size of the channels for each frequency, at each forward
    pass. `finalize` and `remove` leave a plain circular convolution, whose kernel is as large as
    the image; the optimizer goes on with it, but for its averages of the weight, which begin anew.

    *Checkpoints.* While it is attached, the `state_dict` has the keys and shapes of the plain one,
    and means something else: attach the method there too. Afterwards kernels have another shape:
    save the model whole, or build its convolutions from the attributes that they have now.

    *Known failure.* Half of the parameters, the symmetric part of W, have no influence. Of its
    published forms the one with an explicit kernel and one scale for each channel is not
    skew-symmetric before the exponential: new ones had norms from 1.003 to 1.034.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods, singular_values
        >>> conv = torch.nn.Conv2d(3, 3, 3, padding=1)
        >>> with attach(conv, None, torch.zeros(1, 3, 6, 6), method=methods.get("soc")()):
        ...     pass  # train it here
        >>> values = singular_values(conv, (3, 6, 6))
        >>> bool((values - 1).abs().max() < 1e-5)
        True
    """

    def orthogonal(self, matrices: Tensor) -> Tensor:
        """The exponential of the skew-symmetric part."""
        return skew_exponential(matrices)
