"""Layer-wise orthogonal training of Xu, Li and Li (2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, linalg

from spectralclip.methods.baselines._orthogonal import OrthogonalMethod, nearer_unitary


@final
@dataclass(frozen=True)
class LOT(OrthogonalMethod):
    """Orthogonal layers as `(V V^T)^(-1/2) V`: the orthogonal layer that is nearest to the weight.

    Xu, Li and Li, "LOT: Layer-wise Orthogonal Training on Improving l2 Certified Robustness",
    NeurIPS 2022. On a torus the product is one of small matrices, one for each frequency, and the
    inverse square root comes from Newton's iteration. Theirs is a coupled one for the root and its
    inverse, with a little added to the diagonal; here it is the same iteration written for the
    product itself, `X <- (3 I - X X^H) X / 2` from `X = V / ||V||_F`, which needs two products of
    matrices in place of three, and nothing added.

    *Domain.* As of `SOC`: dense layers, and convolutions that map a side of n positions to
    n / stride at one size of image. They become circular; the authors pad with zeros first, and
    cut off, which keeps the norm within the bound but is not orthogonal.

    *Promise.* No singular value is ever above the bound, after any number of iterations; all come
    up to it, but for those that are zero by shape, as the iterations converge.

    *Cost.* Two products of matrices of the size of the channels for each frequency and iteration
    of a forward pass, and again of the backward one, since they are too many to be kept.
    `finalize` and `remove` leave a plain circular convolution, its kernel as large as the image,
    of which the optimizer has no averages yet.

    *Checkpoints.* As of `SOC`.

    *Known failure.* A value that is a share r of the Frobenius norm of its matrix grows by a half
    in each iteration at first: with the published 10, values with r below 0.01 stay well below the
    bound. The authors begin training at the identity, where none is; a given weight may need 20.

    Attributes:
        iterations: Of Newton's method.

    Example:
        >>> import torch
        >>> from spectralclip import attach, methods, singular_values
        >>> conv = torch.nn.Conv2d(1, 4, 3, padding=1)
        >>> with attach(conv, None, torch.zeros(1, 1, 6, 6), method=methods.get("lot")()):
        ...     pass  # train it here
        >>> values = singular_values(conv, (1, 6, 6))
        >>> bool((values - 1).abs().max() < 1e-5)
        True
    """

    iterations: int = 10

    def orthogonal(self, matrices: Tensor) -> Tensor:
        """Newton's iteration towards the unitary factor, on the smaller side."""
        if matrices.shape[-2] > matrices.shape[-1]:
            return self.orthogonal(matrices.mH).mH
        size = linalg.matrix_norm(matrices, keepdim=True)
        x = matrices / torch.where(size > 0, size, 1.0)
        # Torch 2.6 loads sympy with it, which nothing else here needs.
        from torch.utils.checkpoint import checkpoint

        unitary: Tensor = checkpoint(self._newton, x, use_reentrant=False, preserve_rng_state=False)
        return unitary

    def _newton(self, x: Tensor) -> Tensor:
        for _ in range(self.iterations):
            x = nearer_unitary(x)
        return x
