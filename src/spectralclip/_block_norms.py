"""The largest singular value of layers that are many small matrices, and of tori around others.

A layer that falls apart into blocks has the norm of its largest block, which is found to rounding:
such a bound is exact. A convolution on a torus is one of these, a block for each frequency. Zero
padding spoils that, but a zero-padded convolution is a part of a circular one on a torus that is
a little larger, whose norm bounds it from above without an iteration.

What is proved by floating point is proved up to rounding, so each value has its margin here too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from spectralclip._affine import Shape
from spectralclip._blocks import CircularBlocks, ListedBlocks, WindowBlocks, block_form
from spectralclip._explicit import merge
from spectralclip._maps import ConvGeometry, ConvMap, DiagonalMap, TransposedMap
from spectralclip._operator import LinearOperator
from spectralclip._precision import on_host

# Multiplications of an embedding that need no second thought, and how many Lanczos runs more.
CHEAP_EMBEDDING, EMBEDDING_RUNS = 2e10, 4.0

# --- Small matrices ------------------------------------------------------------------------


def convolution(op: LinearOperator) -> ConvMap | None:
    """The one convolution that an operator or its transpose is, its batch norms merged in."""
    for side in (op, op.adjoint()):
        maps = [
            map_.inner
            if isinstance(map_, TransposedMap) and isinstance(map_.inner, DiagonalMap)
            else map_
            for map_ in side.maps
        ]
        merged = merge(maps)
        if len(merged) == 1 and isinstance(merged[0], ConvMap):
            return merged[0]
    return None


def listed_blocks(op: LinearOperator) -> ListedBlocks | None:
    """The blocks of an operator or its transpose, whose norms are the same."""
    conv = convolution(op)
    if conv is not None:
        if WindowBlocks.fits(conv):
            return WindowBlocks(conv)
        return CircularBlocks(conv) if CircularBlocks.fits(conv) else None
    forms = (block_form(op), block_form(op.adjoint()))
    return next((form for form in forms if isinstance(form, ListedBlocks)), None)


def largest_value(form: ListedBlocks) -> float:
    """The largest singular value of many small matrices, from their Grams in float64."""
    rows, columns = form.block_shape
    count, chunk = form.copies.shape[0], max(1, 2**22 // (rows * columns))
    best = 0.0
    for start in range(0, count, chunk):
        blocks = on_host(form.blocks(slice(start, min(start + chunk, count))))
        scale = float(blocks.abs().max())  # keeps squares in range
        if best >= scale * math.sqrt(rows * columns):
            continue
        blocks = blocks / scale
        gram = blocks @ blocks.mH if rows <= columns else blocks.mH @ blocks
        best = scale * math.sqrt(largest_eigenvalue(gram, (best / scale) ** 2))
    return best


def largest_eigenvalue(grams: Tensor, known: float) -> float:
    """The largest eigenvalue in a batch, or `known` if that is larger.

    Few are decomposed: where `(1 + 1e-9) known I - G` has a Cholesky factor, which costs a
    tenth, G is below what is known already. A few power steps say which to begin with.
    """
    side = grams.shape[-1]
    if side == 1:
        return max(known, float(grams.real.max()))
    seeded = torch.Generator("cpu").manual_seed(0)
    start = torch.randn(side, 1, generator=seeded, dtype=torch.float64, device="cpu")
    vectors = grams @ start.to(grams.dtype)
    for _ in range(6):
        norms = vectors.norm(dim=1, keepdim=True)
        vectors = grams @ (vectors / norms.clamp_min(1e-300))
    grams = grams[vectors.norm(dim=1)[:, 0].argsort(descending=True)]
    identity = torch.eye(side, dtype=grams.dtype, device="cpu")
    while grams.shape[0]:
        known = max(known, float(torch.linalg.eigvalsh(grams[:2])[:, -1].max()))
        grams = grams[2:]
        if grams.shape[0]:
            test = (known * (1 + 1e-9)) * identity - grams
            grams = grams[torch.linalg.cholesky_ex(test).info != 0]
    return known


def rounding(op: LinearOperator, form: ListedBlocks, conv: ConvMap | None) -> float:
    """Relative margin for a value that `largest_value` found.

    Entries that carry a relative error u make an error of `u ||B||_F <= u sqrt(r) ||B||` in a
    block of rank r; a symbol sums T taps, which turns u into `T^(3/2) u` at most. A Cholesky
    factor that exists in floating point proves the bound up to `r (r + 1)` roundings.
    """
    rank = min(form.block_shape)
    taps = 1 if conv is None else math.prod(conv.weight.shape[2:])
    entries = 4 * torch.finfo(op.dtype).eps * math.sqrt(rank * taps) * taps
    return entries + 4 * rank * (rank + 9) * torch.finfo(torch.float64).eps + 1e-9


# --- Tori ----------------------------------------------------------------------------------


def embedding_norm(candidates: Sequence[LinearOperator], at_any_cost: bool) -> float:
    """Upper bound on a zero-padded convolution's norm, with its margin; infinity for other layers.

    Args:
        candidates: The same layer in one precision or more; the first that is such a
            convolution is taken.
        at_any_cost: Also where a few Lanczos runs would cost less; otherwise infinity.
    """
    for candidate in candidates:
        conv = convolution(candidate)
        if conv is not None and conv.geometry.mode == "zeros":
            torus = torus_blocks(conv, embedding_sides(conv), conv.geometry.stride)
            if at_any_cost or _affordable(torus):
                return largest_value(torus) * (1 + rounding(candidate, torus, conv))
            break
    return math.inf


def embedding_sides(conv: ConvMap) -> Shape:
    """Sides of the smallest torus on which a zero-padded convolution is a part of a circular one.

    Beyond the n pixels, windows read padding at both ends. On the torus both ends may fall on
    the same zeros, so the longer one counts; windows that see nothing but padding do not. A
    window reaches `dilation * (kernel - 1)` further than its first tap.
    """
    sides, geometry = [], conv.geometry
    for axis, (n, windows) in enumerate(
        zip(conv.source.shape[1:], conv.target.shape[1:], strict=True)
    ):
        stride, before = geometry.stride[axis], geometry.before[axis]
        reach = geometry.dilation[axis] * (conv.weight.shape[2 + axis] - 1)
        after = (windows - 1) * stride - before + reach - (n - 1)
        padding = max(0, min(before, reach), min(after, reach))
        sides.append(stride * math.ceil((n + padding) / stride))
    return tuple(sides)


def torus_blocks(
    conv: ConvMap, sides: Shape, stride: Shape, dilation: Shape | None = None
) -> CircularBlocks:
    """The blocks of a kernel on a torus; padding shifts phases only, and is left out."""
    dilation = dilation or conv.geometry.dilation
    kernel = conv.weight.shape[2:]
    after = tuple(d * (k - 1) + 1 - s for d, k, s in zip(dilation, kernel, stride, strict=True))
    geometry = ConvGeometry(
        stride, dilation, (0,) * len(sides), after, conv.geometry.groups, "circular"
    )
    weight = on_host(conv.weight)
    shape = (conv.source.shape[0], *sides)
    return CircularBlocks(ConvMap(weight, geometry, shape, channels_last=False))


def _affordable(torus: CircularBlocks) -> bool:
    """Whether the embedding costs no more than a few Lanczos runs on the layer would."""
    rows, columns = torus.block_shape
    work = 10.0 * torus.copies.shape[0] * rows * columns * min(rows, columns)
    return work <= max(CHEAP_EMBEDDING, EMBEDDING_RUNS * 240 * torus.application_work)
