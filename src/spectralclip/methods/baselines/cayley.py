"""Orthogonal convolutions by the Cayley transform of Trockman and Kolter (2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

from torch import Tensor

from spectralclip._models import FoundLayer
from spectralclip.methods.baselines._orthogonal import OrthogonalMethod, nearer_unitary
from spectralclip.methods.baselines._swap import Form


@final
@dataclass(frozen=True)
class Cayley(OrthogonalMethod):
    """Orthogonal layers as Cayley transforms, through the package `orthogonium`.

    Trockman and Kolter, "Orthogonalizing Convolutional Layers with the Cayley Transform", ICLR
    2021. For a square matrix with skew-Hermitian part A, `(I - A) (I + A)^(-1)` is unitary; a tall
    one is split into a square upper part U and a lower part V, with `A = U - U^H + V^H V` and
    `-2 V (I + A)^(-1)` below. On a torus this is done at each frequency. The transform is that of
    `orthogonium`; their convolution, with a scale of its own to be learned, takes square images.

    *Domain.* As of `SOC`: dense layers, and convolutions that map a side of n positions to
    n / stride at one size of image. They become circular.

    *Promise.* All singular values are the bound, but for those that are zero by shape.

    *Cost.* One inverse of the size of the smaller number of channels for each frequency, at each
    forward pass. `finalize` and `remove` leave a plain circular convolution with a kernel as large
    as the image, of which the optimizer has no averages yet.

    *Checkpoints.* As of `SOC`.

    *Known failure.* Matrices with an eigenvalue of -1 cannot be reached, and those near them only
    by large weights.

    It needs `pip install "spectralclip[orthogonal]"`.

    Example:
        >>> from spectralclip import methods
        >>> methods.get("cayley")()
        Cayley()
    """

    def form(self, layer: FoundLayer) -> Form:
        """The orthogonal layer."""
        _transform()  # Say at once what is missing.
        return super().form(layer)

    def orthogonal(self, matrices: Tensor) -> Tensor:
        """The transform of each matrix."""
        flat = matrices.reshape(-1, *matrices.shape[-2:])
        transformed: Tensor = _transform()(flat)
        # The inverse for large weights is far from exact.
        return nearer_unitary(transformed).reshape(matrices.shape)


def _transform() -> Callable[[Tensor], Any]:
    try:
        legacy = import_module("orthogonium.legacy.cayley_ortho_conv")
    except ImportError as error:
        raise ImportError(
            "spectralclip.methods.Cayley needs the packages 'orthogonium' and 'einops': "
            f'{error}. pip install "spectralclip[orthogonal]"',
            name=error.name,
        ) from error
    transform: Callable[[Tensor], Any] = legacy.cayley_func
    return transform
