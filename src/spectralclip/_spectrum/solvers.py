"""Solvers for the leading singular triplets of a `LinearOperator`.

- `Lanczos`, the default: Krylov subspaces of `M^T M`. One vector at a time for the largest
  value alone; for more, a block at least as wide as the number of values wanted, since a
  narrower one misses copies of repeated values.
- `PowerQR`, the paper's Algorithm 1.
- `Exact`, in `exact`, which never iterates on the operator.

All work on flat rows in the layer's own layout and return a `Triplets`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from spectralclip._linalg import wide
from spectralclip._operators import LinearOperator
from spectralclip._spectrum.start_vectors import filtered_row, has_waves, random_rows
from spectralclip._spectrum.subspace import (
    ROUNDING,
    Accuracy,
    Subspace,
    descending_eigh,
    lengths,
    orthonormal_rows,
    rows_lq,
    tall_qr,
)
from spectralclip._spectrum.triplets import Triplets, finish, margin
from spectralclip._spectrum.two_sided import TwoSidedSpace


class Solver(ABC):
    """Finds the k leading singular triplets."""

    @abstractmethod
    def solve(
        self, op: LinearOperator, k: int, tol: float, v0: Tensor | None, generator: torch.Generator
    ) -> Triplets:
        """Solve to relative accuracy `tol`, from the rows `v0` where given."""


# Below this many unknowns applications are cheap, and spectra so thin that a missed value is
# far from its neighbour: two values more than wanted are found, to a stricter rule.
SMALL = 2048
# A warm start, or luck, may look converged at once; so long nothing is believed.
PROBE_STEPS = 10


@final
@dataclass(frozen=True)
class Lanczos(Solver):
    """Krylov subspace methods on `M^T M` (or `M M^T`, on the smaller side).

    The largest value alone is found by the plain Lanczos recurrence. For k > 1, a block of
    `k + oversampling` random vectors is expanded by the residuals of those wanted Ritz
    vectors that have not converged yet, with thick restarts: the block starts wide enough to
    find every copy of a repeated value, and the work narrows as pairs converge.

    Attributes:
        basis: Most vectors kept (for k > 1, each with its image under `M^T M`); by default
            128 for k = 1, and 3 to 5 blocks for more, depending on the tolerance.
        oversampling: How much wider than k the block is; by default 3, or 3 k / 10 if more.
        max_applications: Budget of single applications of `M` or `M^T`; by default
            1000 + 200 k.
    """

    basis: int | None = None
    oversampling: int | None = None
    max_applications: int | None = None

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        least = {"basis": 2, "oversampling": 0, "max_applications": 2}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < smallest):
                raise ValueError(
                    f"{name} of Lanczos must be an integer of at least {smallest}, got {value!r}."
                )

    def solve(
        self, op: LinearOperator, k: int, tol: float, v0: Tensor | None, generator: torch.Generator
    ) -> Triplets:
        """Solve on the smaller side of the operator."""
        balanced, factor = op.balanced()
        budget = self.max_applications or 1000 + 200 * k
        if op.shape[0] >= op.shape[1]:
            found = self._solve(balanced, k, tol, v0, generator, budget, 0)
        else:
            start, spent = v0, 0
            if v0 is not None:
                start, spent = balanced.forward_rows(v0), v0.shape[0]
            found = self._solve(balanced.adjoint(), k, tol, start, generator, budget, spent)
            found = found.swapped()
        if not found.converged:
            found = replace(found, advice=_advice(found, tol))
        return found.scaled(1 / factor)

    def _solve(
        self,
        op: LinearOperator,
        k: int,
        tol: float,
        v0: Tensor | None,
        generator: torch.Generator,
        budget: int,
        spent: int,
    ) -> Triplets:
        eps, n = torch.finfo(op.dtype).eps, op.shape[1]
        tol = max(tol, ROUNDING * eps)  # what the precision allows
        if k == 1 and v0 is None and n > SMALL:
            return self._largest(op, tol, generator, budget)
        wanted = min(k + 2, n) if n <= SMALL else k
        extra = max(3, 3 * k // 10) if self.oversampling is None else self.oversampling
        width = min(wanted + extra, n)
        rows = random_rows(op, width, generator)
        if v0 is not None:
            # Random rows stay, so that what v0 has missed can still be found.
            rows = torch.cat([v0, rows[min(v0.shape[0], k) :]])
        accuracy = Accuracy(tol, eps, width, 0.1 if n <= SMALL else 0.39)
        found = self._leading(op, (k, wanted), rows, width, accuracy, generator, budget, spent)
        return found.first(k)

    def _largest(
        self, op: LinearOperator, tol: float, generator: torch.Generator, budget: int
    ) -> Triplets:
        """The three-term recurrence; copies that rounding makes of converged values do no harm."""
        limit = min(self.basis or 128, op.shape[1], max(2, budget // 2))
        start = filtered_row(op, generator)
        caution = 0.39 if has_waves(op) else 0.25
        accuracy = Accuracy(tol, torch.finfo(op.dtype).eps, caution=caution)
        current, previous = start / lengths(start), torch.zeros_like(start)
        basis: list[Tensor] = []
        alphas: list[float] = []
        betas: list[float] = [0.0]
        check_at = 10  # a good start may look converged before the rest has had its say
        while True:
            basis.append(current)
            image = op.gram_rows(current)
            alphas.append(float(torch.sum(image * current)))
            image = image.sub_(current, alpha=alphas[-1]).sub_(previous, alpha=betas[-1])
            betas.append(float(lengths(image)))
            steps = len(basis)
            exhausted = betas[-1] <= 10 * accuracy.eps * max(alphas)
            if exhausted or steps >= min(check_at, limit):
                check_at = steps + max(1, steps // 16)
                theta, vectors = _tridiagonal_eigh(alphas, betas[1:-1])
                residual = betas[-1] * vectors[-1, :1].abs()
                second = theta[1].clamp_min(0) if steps > 1 else 0 * theta[0]
                error = float(accuracy.estimates(theta[:1], residual, second))
                settled = float(residual) <= 20 * accuracy.eps * float(theta[0])
                if exhausted or settled or error <= accuracy.tol:
                    vector = _combination(basis, vectors[:, 0])
                    # `A Q = Q T + image e^T` gives the vector's image at no further cost.
                    gram = vector * theta[0].item() + image * vectors[-1, 0].item()
                    norm = lengths(vector)
                    beside, gram = float(second) ** 0.5, gram / norm
                    return finish(op, vector / norm, accuracy, 2 * steps, beside=beside, gram=gram)
                if steps >= limit:
                    break
            previous, current = current, image / betas[-1]
        # The basis is full: go on from its best part.
        best = [_combination(basis, vectors[:, index]) for index in range(min(4, limit))]
        return self._leading(
            op, (1, 1), torch.cat(best), len(best), accuracy, generator, budget, 2 * steps
        )

    def _leading(
        self,
        op: LinearOperator,
        counts: tuple[int, int],
        rows: Tensor,
        width: int,
        accuracy: Accuracy,
        generator: torch.Generator,
        budget: int,
        applications: int,
    ) -> Triplets:
        """Rayleigh-Ritz on a basis that grows by the residuals of what has not converged.

        First on `M^T M`, whose images take no further basis. Where a value turns out to have
        been lost by squaring, on `M` itself from there. `counts` are the values asked for, and
        those to look for.
        """
        n, (asked, k) = op.shape[1], counts
        # Rough answers come before a long basis pays for its orthogonalization.
        blocks = 3 if accuracy.tol >= 5e-3 else 5
        basis = self.basis or max(8 * blocks, blocks * width)
        room = min(n, max(basis, width + k, rows.shape[0] + 1))
        squared = Subspace(op, room, applications)
        _grow(squared, op, k, rows, width, accuracy, generator, budget)
        vectors, images = squared.ritz(list(range(k)))
        found = finish(
            op,
            vectors,
            accuracy,
            squared.applications,
            beside=squared.beside(width),
            gram=images,
        )
        if found.first(asked).converged or found.applications + 3 * k >= budget:
            return found
        rows = squared.ritz(list(range(min(squared.size, width))))[0]
        space = TwoSidedSpace(op, room, found.applications, generator)
        del squared
        _grow(space, op, k, rows, width, accuracy, generator, budget)
        return finish(op, space.ritz(k), accuracy, space.applications, beside=space.beside(width))


def _grow(
    space: Subspace | TwoSidedSpace,
    op: LinearOperator,
    k: int,
    rows: Tensor,
    width: int,
    accuracy: Accuracy,
    generator: torch.Generator,
    budget: int,
) -> None:
    """Expand a subspace from some rows until its k leading triplets have converged."""
    n, room = op.shape[1], space.room
    fresh = orthonormal_rows(rows, space.vectors)
    steps, open_ = 0, list(range(k))
    while True:
        if space.size + fresh.shape[0] < min(width, n):
            more = random_rows(op, width, generator)
            fresh = orthonormal_rows(torch.cat([fresh, more]), space.vectors)
        space.expand(fresh[: room - space.size])
        steps += 1
        rows, open_ = space.unconverged(open_ or list(range(k)), width, accuracy)
        if not open_:
            # What converged first may have moved since.
            rows, open_ = space.unconverged(list(range(k)), width, accuracy)
        if space.size == n or space.applications + 3 * k >= budget:
            return
        if not open_ and steps >= PROBE_STEPS:
            return
        if not open_:
            # The first vector behind those wanted is a probe for what is still hidden.
            after = list(range(k, min(space.size, k + 2 * width)))
            rows = space.unconverged(after, width, accuracy)[0][:1]
        if space.size + rows.shape[0] > room:
            space.restart(min(max(k + width // 2, space.size // 2), room - rows.shape[0]))
        fresh = orthonormal_rows(rows, space.vectors)
        if fresh.shape[0] == 0:
            fresh = orthonormal_rows(random_rows(op, 1, generator), space.vectors)


def _advice(found: Triplets, tol: float) -> str:
    """What to do about values that are not accurate."""
    floor = ROUNDING * torch.finfo(found.S.dtype).eps * float(found.S[0])
    inaccurate = int((~found.accurate).sum())
    text = f"{inaccurate} of {len(found.S)} values have not reached tol={tol:g}"
    if bool((found.residuals[~found.accurate] <= floor).all()):
        smallest = float(found.errors[~found.accurate].min())
        return (
            f"{text}: they are known to about {smallest:.1g}, which is rounding in "
            f"{found.S.dtype} (see errors). Ask for fewer values, loosen tol, or convert the "
            "layer to float64."
        )
    return (
        f"{text} after {found.applications} applications. Go on from here with "
        "svds(..., v0=spectrum.V), allow more with solver=Lanczos(max_applications=...), or "
        "loosen tol."
    )


def _combination(rows: list[Tensor], weights: Tensor) -> Tensor:
    """A weighted sum of rows, without stacking them."""
    total = torch.zeros_like(rows[0])
    for weight, row in zip(weights.tolist(), rows, strict=True):
        total.add_(row, alpha=weight)
    return total


def _tridiagonal_eigh(diagonal: list[float], beside: list[float]) -> tuple[Tensor, Tensor]:
    """Eigenvalues, descending, and eigenvectors of a small symmetric tridiagonal matrix."""
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64, device="cpu"))
    if beside:
        band = torch.tensor(beside, dtype=torch.float64, device="cpu")
        matrix = matrix + torch.diag(band, 1) + torch.diag(band, -1)
    return descending_eigh(matrix)


@final
@dataclass(frozen=True)
class PowerQR(Solver):
    """Shifted subspace iteration: Algorithm 1 of the paper, as printed.

    Each iteration replaces X by the Q factor of `(mu I + M^T M) X`; at the end the singular
    values are `sqrt(|diag R| - mu)` (the sign of a QR factor's diagonal is free). It has no
    stopping rule: the result says whether its residuals meet the tolerance. For comparison:
    a positive shift slows the iteration down, and a fixed one depends on the weights' scale.

    Attributes:
        iterations: How many, N in the paper.
        shift: mu in the paper.
    """

    iterations: int = 100
    shift: float = 1.0

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        if self.iterations < 1:
            raise ValueError(f"PowerQR needs at least one iteration, got {self.iterations}.")
        if not 0 <= self.shift < math.inf:
            raise ValueError(f"PowerQR needs a finite shift of at least 0, got {self.shift}.")

    def solve(
        self, op: LinearOperator, k: int, tol: float, v0: Tensor | None, generator: torch.Generator
    ) -> Triplets:
        """Iterate a fixed number of times on the input side."""
        balanced, factor = op.balanced()
        # Scaling down with the shift changes nothing; scaling up, the shift would overflow.
        scale = min(factor, 1.0)
        scaled, shift = (balanced, self.shift * scale**2) if scale < 1 else (op, self.shift)
        X = random_rows(op, k, generator) if v0 is None else v0[:k]
        if X.shape[0] < k:
            X = torch.cat([X, random_rows(op, k - X.shape[0], generator)])
        X = _orthonormal(X)
        for step in range(self.iterations):
            if step == self.iterations - 1:
                X = _orthonormal(X)  # the factor L is read: what X is longer, it would be larger
            L, X = rows_lq(scaled.gram_rows(X).add_(X, alpha=shift))
        # Rounded down, so that it is a lower bound.
        diagonal = wide(L.diagonal().abs()) * (1 - margin(op))
        S, order = (diagonal - shift).clamp_min(0).sqrt().sort(descending=True)
        return self._judged(balanced, S * (factor / scale), _orthonormal(X)[order], tol).scaled(
            1 / factor
        )

    def _judged(self, op: LinearOperator, S: Tensor, V: Tensor, tol: float) -> Triplets:
        images = op.forward_rows(V)
        Q, triangle = tall_qr(images.T)
        U = Q.T * torch.where(triangle.diagonal() < 0, -1.0, 1.0)[:, None]
        S = S.to(V)
        forward, backward = images - S[:, None] * U, op.adjoint_rows(U) - S[:, None] * V
        residuals = torch.hypot(forward.norm(dim=1), backward.norm(dim=1))
        accurate = residuals <= 2 * tol * S
        applications = 2 * len(S) * (self.iterations + 1)
        advice = (
            ""
            if bool(accurate.all())
            else (
                f"PowerQR's {self.iterations} iterations did not bring the residuals below "
                f"2 * tol = {2 * tol:g}. Go on with v0=spectrum.V, or use the default solver."
            )
        )
        # A residual says that some value is near, not that it is the one of this rank.
        errors = torch.maximum(residuals, tol * S) + 2 * margin(op) * S
        return Triplets(S, U, V, residuals, errors, accurate, applications, advice)


def _orthonormal(rows: Tensor) -> Tensor:
    """Orthonormal rows, to rounding: one factorization leaves what the rows' condition costs."""
    return rows_lq(rows_lq(rows)[1])[1]
