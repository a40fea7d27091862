"""Small problems, thousands at once: leading vectors, cuts and clipped matrices by products alone.

Nothing here asks what a number is: there are no branches on data, and no library routines that
report errors to the host. Complex vectors are two real planes each, `(re a, im a, re b, ...)`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TINY = 1e-30
RIDGE = 1e-5  # of Gram matrices in float32, whose rounding errors are a hundredth of it
SHORTEST = 1e-3  # of what is left of a vector in a new direction, beyond rounding errors


def quarter_turns(vectors: int, like: Tensor) -> Tensor:
    """What multiplies each of so many complex vectors with i, plane by plane."""
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64, device="cpu")
    turns: Tensor = torch.block_diag(*[turn] * vectors).to(like)
    return turns


def as_complex(planes: Tensor, turns: Tensor) -> Tensor:
    """Products of planes `(N, m, m)` as those of complex vectors, each a real 2 by 2 matrix."""
    turned = turns[: planes.shape[1], : planes.shape[1]]
    return torch.baddbmm(planes, (turned @ planes), turned.mT.expand_as(planes))


def leading(
    basis: Tensor, images: Tensor, turns: Tensor, *, by_products: bool = False
) -> tuple[Tensor, Tensor]:
    """The vectors of a small space that a map makes longest, and how long.

    Orthogonal iteration from the first half of the basis, which is what was known of them before.
    With squares: higher powers would lose the smaller ones in rounding errors.

    Args:
        basis: `(N, 4 k, 4 k)`, Gram matrices of the planes of 2 k vectors. The first k are nearly
            orthonormal, and the others orthogonal to them, of any length.
        images: The same of what the map makes of them.
        turns: Of 2 k vectors.
        by_products: As for `inverse_root`.

    Returns:
        What mixes planes into those of k vectors, `(N, 2 k, 4 k)`, and their values, `(N, k)`.
    """
    n, kept = basis.shape[-1], basis.shape[-1] // 2
    basis, images = as_complex(basis, turns), as_complex(images, turns)
    squares, worth = (t.diagonal(dim1=1, dim2=2) for t in (basis, images))
    # What is left in new directions is taken to be no shorter than rounding errors.
    shortest = SHORTEST * worth[:, :kept].amax(1, keepdim=True)
    sizes = torch.cat((squares[:, :kept], squares[:, kept:].maximum(shortest * shortest)), 1)
    lengths = sizes.clamp_min(TINY).rsqrt()
    outer = lengths[:, :, None] * lengths[:, None]
    eye = torch.eye(n, dtype=basis.dtype, device=basis.device)
    apart = inverse_root(basis * outer, by_products)
    whitened = apart @ (images * outer) @ apart.mT
    power = whitened / torch.linalg.vector_norm(whitened, dim=(1, 2), keepdim=True).clamp_min(TINY)
    power = power @ power
    rows = power[:, :kept]
    for _ in range(2):
        rows = _orthonormal(rows, by_products) @ power
    rows = _orthonormal(rows, by_products)
    squares = (rows @ whitened).mul_(rows).sum(-1)[:, ::2]
    mix = rows @ apart * lengths[:, None]
    # Of what a map sends to zero nothing is known: the vectors stay.
    is_seen = (squares > 0)[..., None].expand(-1, -1, 2).flatten(1)[..., None]
    return torch.where(is_seen, mix, eye[:kept]), squares.clamp_min(0).sqrt()


def _orthonormal(rows: Tensor, by_products: bool) -> Tensor:
    """The first row as it is, each other one without its share in those before it."""
    rows = _unit(rows)
    return _unit(inverse_root(rows @ rows.mT, by_products) @ rows)


def inverse_root(gram: Tensor, by_products: bool) -> Tensor:
    """What makes vectors of these Gram matrices orthonormal, one after another.

    Args:
        gram: `(N, n, n)`.
        by_products: Without factorizations, for devices that have none.
    """
    n = gram.shape[-1]
    eye = torch.eye(n, dtype=gram.dtype, device=gram.device)
    gram = gram + RIDGE * eye
    if not by_products:
        root = torch.linalg.cholesky_ex(gram)[0]
        inverse: Tensor = torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False)
        return inverse
    known = eye[:0].expand(len(gram), 0, n)
    for row in eye.split(1):
        image = row @ gram
        rest = row - (image @ known.mT) @ known
        size = (rest @ gram @ rest.mT).clamp_min(RIDGE).rsqrt()
        known = torch.cat((known, size * rest), 1)
    return known


def _unit(rows: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / size.clamp_min(TINY)


def multipliers(Q: Tensor, excess: Tensor, rounds: int) -> Tensor:
    """How far to go along each cut: the least change after which no value is above its target.

    Minimizes `x Q x / 2 - excess x` over `x >= 0`, by FISTA: a fixed number of products, and no
    solve, since cuts may be nearly the same.
    """
    step = 1 / Q.abs().sum(-1).amax(-1, keepdim=True).clamp_min(TINY)
    eye = torch.eye(Q.shape[-1], dtype=Q.dtype, device=Q.device)
    keep, push = eye - step[..., None] * Q, (step * excess)[..., None]
    x = y = push.relu()
    t = 1.0
    for _ in range(rounds):
        moved = torch.baddbmm(push, keep, y).relu_()
        following = (1 + math.sqrt(1 + 4 * t * t)) / 2
        y = torch.lerp(x, moved, 1 + (t - 1) / following)
        x, t = moved, following
    return x[..., 0]


def surplus(H: Tensor) -> Tensor:
    """`1 - h^(-1/2)` of the eigenvalues h of H that are above one, zero of the others.

    H must not be above four. Signs by Newton and Schulz, first by steps that overshoot one, which
    bring up small numbers faster; then the inverse root, by the same.
    """
    eye = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device).expand_as(H)
    E = H - eye
    sign = E / torch.linalg.vector_norm(E, dim=(1, 2), keepdim=True).clamp_min(TINY)
    for a, b, c in 4 * [(3.4445, -4.775, 2.0315)] + 4 * [(1.875, -1.25, 0.375)]:
        square = sign @ sign
        higher = torch.baddbmm(square, square, square, beta=b, alpha=c)
        sign = torch.baddbmm(sign, sign, higher, beta=a)
    above = torch.baddbmm(E, E, sign, beta=0.5, alpha=0.5)
    A = eye + above
    root = math.sqrt(0.4) * eye
    for _ in range(5):
        root = torch.baddbmm(root, root @ root, root @ A, beta=1.5, alpha=-0.5)
    # What is above by less than rounding errors is not above.
    is_above = torch.linalg.vector_norm(above, dim=(1, 2), keepdim=True) > 1e-3
    return torch.where(is_above, eye - root, 0)
