"""Small problems, thousands at once: leading vectors, cuts and clipped matrices by products alone.

Nothing here asks what a number is: there are no branches on data, and no library routines that
report errors to the host. Complex vectors are two real planes each, `(re a, im a, re b, ...)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

TINY = 1e-30
SQUARED = 1e-18  # what has a square in single precision: powers of less are taken for zero
RIDGE = 1e-5  # of Gram matrices in float32, whose rounding errors are a hundredth of it


def largest(kernels: Iterable[Tensor]) -> Tensor:
    """The largest entry of each, or what is not finite; a tenth of a maximum norm's time."""
    sizes = torch._foreach_abs(list(kernels))
    return torch.stack(torch.ops.aten._foreach_max(sizes))


def quarter_turns(vectors: int, like: Tensor) -> Tensor:
    """What multiplies each of so many complex vectors with i, plane by plane."""
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64, device="cpu")
    turns: Tensor = torch.block_diag(*[turn] * vectors).to(like)
    return turns


def unit_matrix(side: int, like: Tensor) -> Tensor:
    """Made once: a step has no use for a new one each time."""
    return torch.eye(side, dtype=like.dtype, device=like.device)


def as_complex(planes: Tensor, turns: Tensor) -> Tensor:
    """Products of planes `(N, m, m)` as those of complex vectors, each a real 2 by 2 matrix."""
    turned = turns[: planes.shape[1], : planes.shape[1]]
    return torch.baddbmm(planes, turned @ planes, turned.mT.expand_as(planes))


def leading(
    planes: Tensor, turns: Tensor, eye: Tensor, *, by_products: bool = False
) -> tuple[Tensor, Tensor]:
    """The vectors of a small space that a map makes longest, and how long.

    Orthogonal iteration from the first half of the basis, which is what was known of them before.
    With fourth powers: higher ones would lose the smaller values in rounding errors.

    Args:
        planes: `(2, N, 4 k, 4 k)`, Gram matrices of the planes of 2 k vectors, and of what the map
            makes of them. The first k are nearly orthonormal, the others of any length.
        turns: Of 2 k vectors.
        eye: As large.
        by_products: As for `whitening`.

    Returns:
        What mixes planes into those of k vectors, `(N, 2 k, 4 k)`, and their values, `(N, k)`.
    """
    kept = len(eye) // 2
    basis, images = as_complex(planes.flatten(0, 1), turns).view_as(planes)
    apart = whitening(basis, eye, by_products)
    whitened = apart @ images @ apart.mT
    size = torch.linalg.vector_norm(whitened, dim=(1, 2), keepdim=True)
    power = whitened / size.clamp_min(SQUARED)
    power = power @ power
    power = power @ power
    small = eye[:kept, :kept]
    rows = _orthonormal(power[:, :kept], small, by_products)
    rows = _orthonormal(rows @ power, small, by_products)
    squares = (rows @ whitened).mul_(rows).sum(-1)
    # Of what a map sends to zero nothing is known: the vectors stay.
    mix = torch.where((squares > 0)[..., None], rows @ apart, eye[:kept])
    return mix, squares[:, ::2].clamp_min(0).sqrt()


def _orthonormal(rows: Tensor, eye: Tensor, by_products: bool) -> Tensor:
    """The first row as it is, each other one without its share in those before it."""
    rows = whitening(rows @ rows.mT, eye, by_products) @ rows
    size: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / size.clamp_min(TINY)


def whitening(gram: Tensor, eye: Tensor, by_products: bool) -> Tensor:
    """What makes vectors of these Gram matrices orthonormal, one after another.

    Args:
        gram: `(N, n, n)`, of vectors of any length.
        eye: As large.
        by_products: Without factorizations, for devices that have none.
    """
    if not by_products:
        root = _cholesky(gram, eye)
        inverse: Tensor = torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False)
        return inverse
    sizes = _squares(gram).rsqrt()
    gram = torch.addcmul(RIDGE * eye, gram, sizes * sizes.mT)
    known = eye[:0].expand(len(gram), 0, len(eye))
    for row in eye.split(1):
        image = row @ gram
        rest = row - (image @ known.mT) @ known
        size = (rest @ gram @ rest.mT).clamp_min(RIDGE).rsqrt()
        known = torch.cat((known, size * rest), 1)
    return known * sizes


def triangular_root(gram: Tensor, eye: Tensor, by_products: bool) -> Tensor:
    """D with `D D^T` the Gram matrix; as for `whitening`."""
    return gram @ whitening(gram, eye, True).mT if by_products else _cholesky(gram, eye)


def _cholesky(gram: Tensor, eye: Tensor) -> Tensor:
    # Each vector in its own unit: a factorization is as precise for vectors of any length.
    root: Tensor = torch.linalg.cholesky_ex(torch.addcmul(gram, _squares(gram), eye, value=RIDGE))[
        0
    ]
    return root


def _squares(gram: Tensor) -> Tensor:
    return gram.diagonal(dim1=1, dim2=2).clamp_min(TINY)[:, None]


def multipliers(Q: Tensor, excess: Tensor, eye: Tensor, rounds: int) -> Tensor:
    """How far to go along each cut: the least change after which no value is above its target.

    Minimizes `x Q x / 2 - excess x` over `x >= 0`, by FISTA: a fixed number of products, and no
    solve, since cuts may be nearly the same.
    """
    step = Q.abs().sum(-1).amax(-1, keepdim=True).clamp_min(TINY).reciprocal()
    keep = torch.addcmul(eye, step[..., None], Q, value=-1)
    push = (step * excess)[..., None]
    x = push.relu()
    y = moved = torch.baddbmm(push, keep, x).relu_()
    t = (1 + math.sqrt(5)) / 2
    for _ in range(rounds - 1):
        x, moved = moved, torch.baddbmm(push, keep, y).relu_()
        following = (1 + math.sqrt(1 + 4 * t * t)) / 2
        y = torch.lerp(x, moved, 1 + (t - 1) / following)
        t = following
    return moved[..., 0]


def surplus(H: Tensor, eye: Tensor) -> Tensor:
    """`1 - h^(-1/2)` of the eigenvalues h of H that are above one, zero of the others.

    H must be between 0 and 2.5. What is above one, by the sign of `H - 1` after Newton and Schulz,
    first with steps that overshoot, which bring up small numbers faster: too small by 0.0007 at
    most, which is where h is near one. Then a quotient of polynomials that is above the function by
    less than 0.003 up to 2.1, and by 0.01 at most, with an inverse by Newton.
    """
    E = H - eye
    sign = E / 1.5
    for a, b, c in 3 * [(3.4445, -4.775, 2.0315)] + 2 * [(1.875, -1.25, 0.375)]:
        square = sign @ sign
        higher = torch.baddbmm(square, square, square, beta=b, alpha=c)
        sign = torch.baddbmm(sign, sign, higher, beta=a)
    above = torch.baddbmm(E, E, sign, beta=0.5, alpha=0.5)
    # `2 + 1.5 x - x^2 / 8`, between 2 and 4: `(6 - y) 2 / 17` is the best linear start.
    divisor = torch.add(above, eye, alpha=4 / 3)
    divisor = torch.baddbmm(divisor, above, above, beta=1.5, alpha=-0.125)
    inverse = torch.sub(12 / 17 * eye, divisor, alpha=2 / 17)
    for _ in range(2):
        inverse = torch.baddbmm(inverse, inverse @ divisor, inverse, beta=2, alpha=-1)
    # What is above by less than rounding errors is not above.
    is_small = torch.linalg.vector_norm(above, dim=(1, 2), keepdim=True) <= 1e-3
    return (above @ inverse).masked_fill(is_small, 0)
