"""What is measured of updates: alone, beside their base, and beside each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from spectralclip._bounds import Interval
from spectralclip._common import Shape
from spectralclip._linalg import FactoredSVD, factored_inner, on_host
from spectralclip._spectrum import spectral_norm, svds
from spectralclip.integrations.adapters.adapter import image_shape
from spectralclip.integrations.adapters.update import Update, summed


@final
@dataclass(frozen=True)
class Judgement:
    """From where on a measure earns a remark."""

    # A leading direction of the sum is an intruder if less than this cosine of it lies in the span
    # of the base's leading directions, twice as many as are looked at: among those that the update
    # leaves alone, neighbours with nearly equal values may change places.
    intruder: float = 0.5
    wider: int = 2
    # Of what two norms could add up to, beyond the larger one. Random updates of rank 8 for layers
    # of 256, 1024 and 4096 inputs and outputs came to at most 0.12, and to cosines within 0.01.
    adds_up: float = 0.5
    cancels: float = -0.1


JUDGEMENT = Judgement()


@final
@dataclass(frozen=True)
class BaseMeasures:
    """An update beside the weight that it is added to.

    Attributes:
        key: Of the weight, in the base.
        norm: The norm of the base.
        sum_norm: The norm of base and update together.
        output_angles: Principal angles in degrees between the leading left singular vectors of
            update and base, ascending; 90 where they share nothing.
        input_angles: The same for the right ones.
        intruders: How many of the sum's leading left singular vectors lie mostly outside of the
            base's leading ones.
    """

    key: str
    norm: float
    sum_norm: float
    output_angles: tuple[float, ...]
    input_angles: tuple[float, ...]
    intruders: int


@final
@dataclass(frozen=True)
class UpdateMeasures:
    """One update of one adapter.

    Attributes:
        adapter: Its name.
        layer: The name of the layer.
        shape: Numbers of outputs and inputs, and the sides of a kernel.
        rank: How many rows A has.
        scale: What `B A` is multiplied with.
        norm: The largest singular value: of a convolution that of its reshaped kernel.
        is_reshaped: Whether it is that, which is not the norm of the convolution.
        norm_at: For a convolution an interval around its norm at `in_shape`, if a size was given.
        in_shape: The shape of its input then.
        frobenius: The Frobenius norm of the weight.
        effective_rank: `exp` of the entropy of the singular values over their sum.
        stable_rank: The squared Frobenius norm over the squared norm.
        singular_values: The leading ones, of the matrix that `norm` belongs to.
        base: What it does to its base, if one was given.
    """

    adapter: str
    layer: str
    shape: Shape
    rank: int
    scale: float
    norm: float
    is_reshaped: bool
    norm_at: Interval | None
    in_shape: Shape | None
    frobenius: float
    effective_rank: float
    stable_rank: float
    singular_values: tuple[float, ...]
    base: BaseMeasures | None = None


@final
@dataclass(frozen=True)
class Clash:
    """Updates of several adapters for one layer, and what becomes of them when they are added.

    Attributes:
        layer: The name of the layer.
        adapters: Whose updates.
        norms: Their norms.
        sum_norm: The norm of their sum.
        alignment: How much of what the smaller norms could add to the largest they do add: 1 if
            all point the same way, 0 if the largest is left as it was, negative if they cancel.
        cosine: Between the updates as vectors, for two of them.
        output_overlap: How much of the space that the smaller one writes to the other writes to
            as well, from 0 to 1; for two of them.
        input_overlap: The same for the space that they read.
        remark: "add up", "cancel", or nothing.
    """

    layer: str
    adapters: tuple[str, ...]
    norms: tuple[float, ...]
    sum_norm: float
    alignment: float
    cosine: float | None
    output_overlap: float | None
    input_overlap: float | None
    remark: str


def measure_update(
    adapter: str,
    update: Update,
    *,
    k: int,
    size: Sequence[int] | None,
    base: BaseMeasures | None = None,
) -> UpdateMeasures:
    """An update by itself, from its factors; what is known of its base is passed on."""
    S = update.singular_values
    norm, frobenius = float(S[0]), float(S.norm())
    in_shape = image_shape(update, size)
    return UpdateMeasures(
        adapter=adapter,
        layer=update.name,
        shape=(*update.shape, *update.kernel_size),
        rank=update.rank,
        scale=update.scale,
        norm=norm,
        is_reshaped=update.is_convolution,
        norm_at=None if in_shape is None else update.norm_at(in_shape),
        in_shape=in_shape,
        frobenius=frobenius,
        effective_rank=_effective_rank(S),
        stable_rank=(frobenius / norm) ** 2 if norm > 0 else 0.0,
        singular_values=tuple(S[:k].tolist()),
        base=base,
    )


def measure_base(
    update: Update, weight: Tensor, key: str, *, k: int, size: Sequence[int] | None
) -> BaseMeasures:
    """An update beside the base's weight, which has its shape."""
    k = min(k, *weight.flatten(1).shape)
    wider = min(JUDGEMENT.wider * k, *weight.flatten(1).shape)
    both = weight + update.delta()
    alone, together = svds(_dense(weight), k=wider), svds(_dense(both), k=k)
    own = update.svd()
    leading = min(k, own.rank)
    # Where a matrix has no more values than rounding, its singular vectors are any.
    U, V = (on_host(one[: _rank(alone.S)]) for one in (alone.U, alone.V))
    outputs = _angles(own.U.T[:leading], U[:k])
    inputs = _angles(own.Vh[:leading], V[:k])
    inside = (on_host(together.U[: _rank(together.S)]) @ U.T).norm(dim=1)
    intruders = int((inside < JUDGEMENT.intruder).sum())
    norm, sum_norm = float(alone.S[0]), float(together.S[0])
    in_shape = image_shape(update, size)
    if in_shape is not None:
        layers = (update.as_convolution(one) for one in (weight, both))
        norm, sum_norm = (float(spectral_norm(one, in_shape)) for one in layers)
    return BaseMeasures(key, norm, sum_norm, outputs, inputs, intruders)


def measure_clash(
    layer: str, updates: Sequence[tuple[str, Update]], size: Sequence[int] | None
) -> Clash:
    """What becomes of updates of one layer when they are added."""
    names, parts = zip(*updates, strict=True)
    decomposed = [one.svd() for one in parts]
    norms = [_norm(one, found, size) for one, found in zip(parts, decomposed, strict=True)]
    both = summed(parts)
    total, largest, most = _norm(both, both.svd(), size), max(norms), sum(norms)
    alignment = (total - largest) / (most - largest) if most > largest else 0.0
    cosine = outputs = inputs = None
    if len(parts) == 2:
        first, second = decomposed
        cosine = _cosine(*parts, float(first.S.norm() * second.S.norm()))
        ranks = first.rank, second.rank
        outputs = _overlap(first.U.T[: ranks[0]], second.U.T[: ranks[1]])
        inputs = _overlap(first.Vh[: ranks[0]], second.Vh[: ranks[1]])
    remark = "add up" if alignment >= JUDGEMENT.adds_up else ""
    if min(alignment, cosine or 0.0) <= JUDGEMENT.cancels:
        remark = "cancel"
    return Clash(layer, names, tuple(norms), total, alignment, cosine, outputs, inputs, remark)


def _norm(update: Update, decomposed: FactoredSVD, size: Sequence[int] | None) -> float:
    in_shape = image_shape(update, size)
    return float(decomposed.S[0]) if in_shape is None else update.norm_at(in_shape).upper


def _dense(weight: Tensor) -> nn.Module:
    # Single precision takes half the time, and is far beyond what directions are judged by.
    matrix = weight.flatten(1).float()
    m, n = matrix.shape
    layer = nn.Linear(n, m, bias=False, device="meta", dtype=matrix.dtype)
    layer.weight = nn.Parameter(matrix, requires_grad=False)
    return layer


def _rank(S: Tensor) -> int:
    """How many values of a matrix in single precision are more than its rounding."""
    return int(S.gt(10 * torch.finfo(S.dtype).eps * S[0]).sum())


def _effective_rank(S: Tensor) -> float:
    total = float(S.sum())
    if total == 0:
        return 0.0
    return math.exp(float(torch.special.entr(S / total).sum()))


def _angles(first: Tensor, second: Tensor) -> tuple[float, ...]:
    """Principal angles in degrees between the spans of orthonormal rows, ascending."""
    if not (first.shape[0] and second.shape[0]):
        return ()
    cosines = torch.linalg.svdvals(first @ second.T).clamp(max=1.0)
    return tuple(torch.rad2deg(torch.acos(cosines)).tolist())


def _cosine(first: Update, second: Update, lengths: float) -> float:
    flat = [(one.scale * on_host(one.B).flatten(1), one.A.flatten(1)) for one in (first, second)]
    return factored_inner(*flat[0], *flat[1]) / lengths if lengths > 0 else 0.0


def _overlap(first: Tensor, second: Tensor) -> float:
    """The mean squared cosine of the smaller of two spans of orthonormal rows."""
    smaller = min(first.shape[0], second.shape[0])
    return float((first @ second.T).square().sum()) / smaller if smaller else 0.0
