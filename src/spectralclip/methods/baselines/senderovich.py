"""Senderovich et al. (2022): clip strided convolutions at each frequency, perhaps compressed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spectralclip.methods._domain import check_count
from spectralclip.methods.baselines._circulant import CirculantMethod, Torus


@final
@dataclass(frozen=True)
class Senderovich(CirculantMethod):
    """Fourier transform of the phases of a strided convolution, clip, back (Senderovich et al.).

    A. Senderovich, E. Bulatova, A. Obukhov, M. Rakhuba: *Towards Practical Control of Singular
    Values of Convolutional Layers*, NeurIPS 2022.

    The method of `Sedghi` for strides. With stride s, image and kernel are split into `s x s`
    phases, which are convolved without a stride on the grid of the output; with circular padding
    and a stride that divides the side, the layer's singular values are those of the `c_out x
    s^2 c_in` matrices that the Fourier transform of the phases has at each frequency. Every
    `every` steps those above the bound are set to it, and the outcome is cut down to the taps.

    With `tt_rank`, the compressed variant: a kernel is a tensor train of three cores, `c_in x r`,
    `r x k^2 x r` and `r x c_out`. If the outer two have orthonormal columns and rows, the layer's
    singular values are those of the small convolution in the middle, and zeros; that one is
    clipped, at a price that depends on r rather than on the channels. The authors train the three
    cores; here each round first replaces the kernel by the nearest such train, up to a factor of
    sqrt(2), which never raises the norm. Dense layers are not compressed.

    *Domain*: as of `Sedghi`, with any stride; sides that it does not divide are rounded up, as the
    authors do.

    *Promise*: `estimate` is exact for circular padding where the output's side is the input's,
    divided by the stride. Dense layers and convolutions whose windows do not overlap are clipped
    exactly.

    *Cost*: `(n / s)^2` singular value decompositions of `c_out x s^2 c_in` matrices for
    images of `n x n`, half of them by symmetry, in each round, and the values once more.

    *Known failure*: as of `Sedghi`: cutting down to the taps raises the norm again. A small
    `tt_rank` costs accuracy.

    Attributes:
        every: Steps of the optimizer from one round to the next; 100 in the paper's experiments.
        tt_rank: Rank r of the compressed kernel, where channels are more; None to leave it whole.

    Example:
        >>> import torch
        >>> from spectralclip import attach
        >>> from spectralclip.methods.baselines.senderovich import Senderovich
        >>> conv = torch.nn.Conv2d(1, 1, 2, stride=2)
        >>> _ = torch.nn.init.ones_(conv.weight)
        >>> round(Senderovich.estimate(conv, (1, 8, 8)), 4)
        2.0
        >>> attachment = attach(conv, None, torch.zeros(1, 1, 8, 8), method=Senderovich(every=1))
        >>> attachment.step()
        >>> round(Senderovich.estimate(conv, (1, 8, 8)), 4)
        1.0
    """

    every: int = 100
    tt_rank: int | None = None

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        super().__post_init__()
        if self.tt_rank is not None:
            check_count(1, tt_rank=self.tt_rank)

    def clipped(self, kernel: Tensor, torus: Torus, bound: float) -> Tensor:
        """Clip, compressed if asked for, and cut down."""
        if self.tt_rank is None or not torus.sides or self.tt_rank >= max(kernel.shape[:2]):
            return torus.clip(kernel, bound)
        left, core, right = tensor_train(kernel, self.tt_rank)
        clipped = torus.clip(core, bound)
        compressed = torch.einsum("or,rs...,is->oi...", left, clipped, right)
        # A kernel that was compressed before, and is within the bound, stays as it is.
        moved = torch.linalg.vector_norm(compressed - kernel)
        noise = 10 * torch.finfo(kernel.dtype).eps * torch.linalg.vector_norm(kernel)
        return kernel if clipped is core and bool(moved <= noise) else compressed


def tensor_train(kernel: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """A kernel as a tensor train with orthonormal outer cores, by two truncated SVDs.

    They are `left (c_out, r)`, `core (r, s, *taps)` and `right (c_in, s)`, with
    `kernel[o, i] ~ sum left[o, r] core[r, s] right[i, s]`. The distance to the kernel is at most
    sqrt(2) times the best possible one.
    """
    unfolded = kernel.transpose(0, 1).flatten(1)
    right = torch.linalg.svd(unfolded, full_matrices=False).U[:, :rank]
    core = torch.einsum("oi...,is->os...", kernel, right)
    left = torch.linalg.svd(core.flatten(1), full_matrices=False).U[:, :rank]
    return left, torch.einsum("or,os...->rs...", left, core), right
