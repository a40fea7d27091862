"""Deterministic upper bounds on the norm of a layer, by Cholesky factorization.

If `u^2 I - A` has a Cholesky factor, for `A = M^T M` or `A = M M^T`, then `||M|| <= u`. A guess
just above a Lanczos value therefore turns that value into an interval. For a layer with spatial
axes A is block-banded: the factorization runs along the image and keeps a few blocks at a time.

*Why this is a proof in floating point.* Nothing is assumed about how the factor L was found. Let
B be the symmetric matrix that was formed in place of A. Then

    lambda_max(A) <= u^2 + ||u^2 I - B - L L^T||_2 + ||B - A||_2.

The residual is computed block by block, and its 2-norm is at most the Frobenius norm. To compute
an entry from K products loses at most `gamma_K` times the sum of their absolute values, whatever
the order of summation (Higham 2002, section 3.1). For the residual these are the entries of
`|L| |L|^T + |u^2 I - B|`, with absolute values taken entrywise: in norm at most
`||L||_F^2 + ||u^2 I - B||_F`. For B it is `rounding`. Only the lower triangle of B is
used, so that it is symmetric.

This model of rounding is that of matrix products and convolutions in float64 as libraries compute
them. A layer that has to be applied through its own code is taken to round no worse than a dense
matrix would.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from spectralclip._bounds.banded import BandedGram
from spectralclip._operators import LinearOperator, plain_numerics
from spectralclip._spectrum import leading_spectrum


class CertificateConstants(NamedTuple):
    """What is still worth a certificate, and which values it tries."""

    work: float = 1.5e12  # multiply-adds: some two minutes of one core
    numbers: float = 2e8  # that are held: a gigabyte and a half
    longest: int = 2048  # longer axes, or more positions beside one, are not considered
    # At the squared norm, in margins of the first one; the later are for Lanczos values too low.
    guesses: tuple[float, ...] = (1.0, 5.0, 20.0, 100.0)


CERTIFICATE = CertificateConstants()


@plain_numerics()
def deterministic_upper(op: LinearOperator, lower: float, tol: float) -> float | None:
    """An upper bound on the norm of an operator in float64, or None where that is too large.

    It lies within `tol` of the norm, and within 1e-4 as a rule; the lower bound known so far is
    made sharper first.
    """
    if op.dtype != torch.float64:
        raise ValueError(
            f"A certificate for {op.name} needs float64, got {op.dtype}: make the operator by "
            "as_operator(layer, in_shape, dtype=torch.float64)."
        )
    balanced, scale = op.balanced()
    gram = _cheapest(balanced)
    if gram is None:
        return None
    sharper = float(leading_spectrum(balanced, 1, tol=1e-6).S[0])
    square = _certified(gram, max(lower * scale, sharper) ** 2, min(2e-4, max(tol, 4e-6)))
    return None if square is None else math.sqrt(square) * (1 + 2.0**-50) / scale


def _cheapest(op: LinearOperator) -> BandedGram | None:
    """The side and the axis with the least work, if that is little enough."""
    if any(not map_.is_explicit and map_.source.size > CERTIFICATE.longest for map_ in op.maps):
        return None
    found = []
    for maps in (op.adjoint().maps, op.maps):
        shape = maps[0].source.shape
        for axis in range(1, max(2, len(shape))):
            beside = math.prod(n for other, n in enumerate(shape) if other not in (0, axis))
            if max(beside, *shape[1:], 1) <= CERTIFICATE.longest:
                found.append(BandedGram(maps, axis, op.device))
    most = CERTIFICATE
    fitting = [gram for gram in found if gram.work <= most.work and gram.numbers <= most.numbers]
    return min(fitting, key=lambda gram: gram.work, default=None)


def _certified(gram: BandedGram, guess: float, margin: float) -> float | None:
    """A bound on `lambda_max(A)` from the first of some rising guesses that can be certified."""
    noise = rounding(gram)
    if any(map_.absolute_norm(gram.device) == 0 for map_ in gram.maps):
        return 0.0
    for factor in CERTIFICATE.guesses:
        # Below the noise nothing factors: stages that are not zero may compose to zero.
        square = max(guess * (1 + factor * margin), 100 * noise)
        bound = certified_square(gram, square)
        if bound is not None:
            return bound
    return None


def certified_square(gram: BandedGram, square: float) -> float | None:
    """An upper bound on `lambda_max(A)` that is just above `square`; None if that is too low.

    One block column at a time: subtract what earlier columns of L contribute, factor the
    diagonal block, solve for those below. What then remains is the residual of the whole.
    """
    past: deque[dict[int, Tensor]] = deque(maxlen=gram.bandwidth)
    residual = entries = factor = 0.0
    for j in range(gram.count):
        rows = range(j, min(j + gram.bandwidth + 1, gram.count))
        parts = []
        for i in rows:
            part = -gram.block(i, j)
            if i == j:
                part = part.tril() + part.tril(-1).mT
                part.diagonal(dim1=-2, dim2=-1).add_(square)
            entries += 2 * float(part.norm()) ** 2
            for column in past:
                if i in column:
                    part.baddbmm_(column[i], column[j].mT, alpha=-1)
            parts.append(part)
        corner, failed = torch.linalg.cholesky_ex(parts[0])
        if bool(failed.any()):
            return None
        panel = torch.cat(parts, dim=-2)
        below = torch.linalg.solve_triangular(
            corner.mT, panel[:, gram.size :], upper=True, left=False
        )
        found = torch.cat([corner, below], dim=-2)
        residual += 2 * float(panel.baddbmm_(found, corner.mT, alpha=-1).norm()) ** 2
        factor += float(found.norm()) ** 2
        past.append(dict(zip(rows, found.split(gram.size, dim=-2), strict=True)))
    lost = _gamma((gram.bandwidth + 1) * gram.size + 4) * (factor + math.sqrt(entries))
    # One per cent is far more than what these sums lose themselves.
    bound = square + 1.01 * (math.sqrt(residual) + lost + rounding(gram))
    return bound if 0 < bound < math.inf else None


def rounding(gram: BandedGram) -> float:
    """An upper bound on the 2-norm of what rounding does to A where it is formed.

    Entry by entry it is at most `gamma_K` times `|M|^T |M|`, with K the number of products in a
    sum, over all stages and both directions.
    """
    norm = math.prod(map_.absolute_norm(gram.device) for map_ in gram.maps)
    terms = sum(map_.rounding_terms for map_ in gram.maps) + 4 * sum(gram.maps[0].source.shape) + 64
    return 1.01 * _gamma(terms) * norm * norm


def _gamma(terms: float) -> float:
    """`K eps / (1 - K eps)`: what a sum of K products loses at most, of its absolute values."""
    lost = terms * 2.0**-53
    return lost / (1 - lost)
