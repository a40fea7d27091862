"""Clipping an update through its factors, which keep their shapes and types."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from spectralclip._clipping import ClipResult, clip_
from spectralclip._common import positive_number
from spectralclip._linalg import factored_svd, on_host, sent

if TYPE_CHECKING:
    from spectralclip.integrations.adapters.update import Update


@final
@dataclass(frozen=True)
class Rounds:
    """How the rounding of the factors, as they are stored, is made good."""

    # One or two were needed by random factors of rank 8 in float32, float16, bfloat16 and float8.
    most: int = 8
    # Each round the target is lowered by what is missing and, since rounding may undo a small
    # step, by this many roundings of the factors' type.
    roundings: float = 0.25


ROUNDS = Rounds()


def clip_matrix_(update: Update, max_norm: float) -> ClipResult:
    """Lower the singular values above the bound to it, or below by what rounding needs."""
    max_norm = positive_number(max_norm, "max_norm")
    U, S, Vh = update.svd()
    norm = float(S[0])
    if norm <= max_norm:
        return ClipResult(norm, norm, 0.0, 0.0, 0, 0, True)
    # Copies: of parameters in float64 the factors below would be the parameters themselves.
    A, B = (on_host(one).flatten(1).clone() for one in (update.A, update.B))

    def factors(target: float) -> tuple[Tensor, Tensor]:
        count = int(S.gt(target).sum())
        share = 1 - (target / S[:count]).sqrt()
        left, right = U[:, :count], Vh[:count]
        return A - (A @ right.T * share) @ right, B - left @ (share[:, None] * (left.T @ B))

    rounds, after = _store_(update, max_norm, factors)
    lowest = float((S - max_norm).clamp_min(0).norm())
    return ClipResult(norm, after, _moved(update, A, B), lowest, 0, rounds, True)


def clip_convolution_(update: Update, max_norm: float, in_shape: Sequence[int]) -> ClipResult:
    """Clip the convolution that is left once B has orthonormal columns, by `clip_`."""
    max_norm = positive_number(max_norm, "max_norm")
    B = on_host(update.B).flatten(1)
    conv, Q = update.thin_convolution()
    result = clip_(conv, in_shape, max_norm, certify=True)
    if result.distance == 0:
        return result
    kernel = on_host(next(conv.parameters())).flatten(1)
    size = float(B.norm()) / math.sqrt(Q.shape[1])  # B stays as large as it was
    spare = update.rank - Q.shape[1]
    right = torch.nn.functional.pad(kernel / (update.scale * size), (0, 0, 0, spare))
    left = torch.nn.functional.pad(size * Q, (0, spare))

    def factors(target: float) -> tuple[Tensor, Tensor]:
        return right * (target / max_norm), left

    rounds, after = _store_(update, max_norm, factors, in_shape)
    # Distances are those of the thin convolution, as Q changes no length.
    spent = result.num_matvecs, rounds, result.converged
    return ClipResult(result.norm_before, after, result.distance, None, *spent)


def _store_(
    update: Update,
    max_norm: float,
    factors: Callable[[float], tuple[Tensor, Tensor]],
    in_shape: Sequence[int] | None = None,
) -> tuple[int, float]:
    """Write factors whose norm, as they are rounded, is within the bound; rounds and norm."""
    own = update.A, update.B
    eps = max(torch.finfo(tensor.dtype).eps for tensor in own)
    target = max_norm
    for attempt in range(1, ROUNDS.most + 1):
        pairs = zip(factors(target), own, strict=True)
        A, B = (sent(new.reshape(old.shape), old.device, old.dtype) for new, old in pairs)
        stored = update.with_factors(A, B)
        after = stored.norm if in_shape is None else stored.norm_at(in_shape).upper
        if after <= max_norm:
            with torch.no_grad():
                for old, new in zip(own, (A, B), strict=True):
                    old.copy_(new)
            return attempt, after
        target *= max_norm / after * (1 - ROUNDS.roundings * attempt * eps)
    raise ValueError(
        f"{update.name} cannot be brought to {max_norm:g} in {own[0].dtype}: rounded, its norm is "
        f"{after:g}. It is left as it was: convert it to a longer type first."
    )


def _moved(update: Update, A: Tensor, B: Tensor) -> float:
    """The Frobenius norm of the change from the update with factors A and B."""
    left = torch.cat([on_host(update.B).flatten(1), -B], dim=1)
    right = torch.cat([on_host(update.A).flatten(1), A])
    return abs(update.scale) * float(factored_svd(left, right).S.norm())
