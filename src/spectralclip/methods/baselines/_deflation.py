"""Singular values one after the other: the power method through autograd, with deflation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._linalg import tall_qr
from spectralclip._operators import Layer, LinearOperator, as_operator, plain_numerics
from spectralclip._spectrum import ROUNDING, Spectrum, warned
from spectralclip.methods._domain import affine_only
from spectralclip.methods._settings import check_count, check_positive
from spectralclip.methods.baselines._power import SETTLED, power_method, random_start

ITERATIONS = 500
TOL = 1e-6


@plain_numerics()
def virmaux_svds(
    layer: Layer,
    in_shape: Shape,
    k: int = 1,
    *,
    power_iterations: int = ITERATIONS,
    tol: float = TOL,
    generator: torch.Generator | None = None,
) -> Spectrum:
    """The k largest singular values by k runs of the power method, each deflated by those before.

    Args:
        layer: A module, an affine callable, or a sequence of them.
        in_shape: Shape of one input.
        k: How many.
        power_iterations: At most, for each.
        tol: A run ends once an iteration moves the unit vector by no more than this.
        generator: Source of the starts; by default the same for each call.

    Returns:
        A `Spectrum`, as from `svds`.

    Warns:
        ConvergenceWarning: Not all vectors have settled.

    Raises:
        OutsideDomain: The layer is not affine.
        ValueError: There are not k singular values.

    Example:
        >>> import torch
        >>> from spectralclip.methods import virmaux_svds
        >>> layer = torch.nn.Linear(3, 3)
        >>> _ = layer.weight.data.copy_(torch.diag(torch.tensor([3.0, 2.0, 1.0])))
        >>> virmaux_svds(layer, (3,), 2)
        Spectrum(S=[3, 2], ... applications, converged)
    """
    check_count(1, k=k, power_iterations=power_iterations)
    check_positive(tol=tol)
    with affine_only("Virmaux", layer):
        op = as_operator(layer, in_shape, explicit=False)
    if k > min(op.shape):
        raise ValueError(f"{op.name} has {min(op.shape)} singular values, got k = {k}.")
    generator = generator or torch.Generator("cpu").manual_seed(0)
    found, applications = torch.zeros(0, *op.in_shape, dtype=op.dtype, device=op.device), 0
    for _ in range(k):
        start = _without(random_start(op, generator), found)
        v, iterations, _ = power_method(_deflated(op, found), start, power_iterations, tol)
        found, applications = torch.cat([found, v]), applications + 2 * iterations
    return warned(op, _spectrum(op, found, applications))


def _without(x: Tensor, found: Tensor) -> Tensor:
    """A batch of one, orthogonal to orthonormal vectors."""
    rows = found.flatten(1)
    return x - ((x.flatten(1) @ rows.T) @ rows).reshape(x.shape)


def _deflated(op: LinearOperator, found: Tensor) -> Callable[[Tensor], Tensor]:
    """`M^T M` on what is orthogonal to the vectors found."""

    def gram(x: Tensor) -> Tensor:
        image = op.gram(_without(x, found))
        # Twice: where little is left, the first time leaves noise along what was found.
        return _without(_without(image, found), found)

    return gram


def _spectrum(op: LinearOperator, found: Tensor, applications: int) -> Spectrum:
    """What the vectors found are worth."""
    images = op.matvec(found)
    S, order = images.flatten(1).norm(dim=1).sort(descending=True)
    V, images = found[order], images[order]
    Q, triangle = tall_qr(images.flatten(1).T)
    U = (Q.T * torch.where(triangle.diagonal() < 0, -1.0, 1.0)[:, None]).reshape(images.shape)
    forward = images.flatten(1) - S[:, None] * U.flatten(1)
    backward = op.rmatvec(U).flatten(1) - S[:, None] * V.flatten(1)
    residuals = torch.hypot(forward.norm(dim=1), backward.norm(dim=1))
    # What is not to be told from zero is as accurate as it gets.
    zero = (residuals >= S) & (residuals <= ROUNDING * torch.finfo(S.dtype).eps * S[0])
    converged = bool(((residuals <= SETTLED * S) | zero).all())
    advice = "" if converged else "Take more power_iterations, or use svds."
    total = applications + 2 * len(S)
    return Spectrum(S, U, V, residuals, residuals, converged, total, advice)
