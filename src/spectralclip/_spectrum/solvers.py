"""Iterative solvers for the leading singular triplets of a `LinearOperator`, on flat rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spectralclip._linalg import LanczosRun, lengths, rows_lq, wide
from spectralclip._operators import LinearOperator
from spectralclip._spectrum.start_vectors import filtered_row, has_fourier_modes, random_rows
from spectralclip._spectrum.stopping import ROUNDING, STOPPING, StoppingRule
from spectralclip._spectrum.subspace import KRYLOV, Subspace
from spectralclip._spectrum.triplets import (
    Spectrum,
    Triplets,
    Verdict,
    finish,
    left_vectors,
    margin,
)


class Solver(ABC):
    """Finds the k leading singular triplets.

    Derive from it for a solver of your own, which `svds(..., solver=...)` takes. The page on
    solvers in the documentation shows one.
    """

    @abstractmethod
    def solve(
        self, op: LinearOperator, k: int, tol: float, v0: Tensor | None, generator: torch.Generator
    ) -> Spectrum:
        """Solve to relative accuracy `tol`.

        Args:
            op: The operator.
            k: How many triplets, `1 <= k <= min(op.shape)`.
            tol: Relative accuracy of the values.
            v0: Right vectors to start from, `(j, *op.in_shape)`, in the operator's precision and on
                its device; None for a random start.
            generator: Source of that.

        Returns:
            A `Spectrum`; `Spectrum.from_right_vectors` makes one from right vectors.
        """


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
            128 for k = 1, and for more 3 blocks where the block is wide or the tolerance is
            rough, else 5.
        oversampling: How much wider than k the block is; by default 3, or 3 k / 10 if more.
        max_matvecs: Budget of single products with `M` or `M^T`; by default
            1000 + 200 k.
    """

    basis: int | None = None
    oversampling: int | None = None
    max_matvecs: int | None = None

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        least = {"basis": 2, "oversampling": 0, "max_matvecs": 2}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < smallest):
                raise ValueError(
                    f"{name} of Lanczos must be an integer of at least {smallest}, got {value!r}."
                )

    def solve(
        self, op: LinearOperator, k: int, tol: float, v0: Tensor | None, generator: torch.Generator
    ) -> Spectrum:
        """Solve on the smaller side of the operator."""
        balanced, factor = op.balanced()
        start = None if v0 is None else op.input_rows(v0)
        if op.shape[0] >= op.shape[1]:
            found = self._solve(balanced, k, tol, start, generator, 0)
        else:
            spent = 0 if start is None else len(start)
            start = None if start is None else balanced.forward_rows(start)
            found = self._solve(balanced.adjoint(), k, tol, start, generator, spent).swapped()
        return found.scaled(1 / factor).spectrum(op, _advice(found, tol))

    def _solve(
        self,
        op: LinearOperator,
        k: int,
        tol: float,
        v0: Tensor | None,
        generator: torch.Generator,
        spent: int,
    ) -> Triplets:
        eps, n = torch.finfo(op.dtype).eps, op.shape[1]
        tol = max(tol, ROUNDING * eps)  # what the precision allows
        if k == 1 and v0 is None and n > KRYLOV.small:
            return self._largest(op, tol, generator)
        wanted = min(k + 2, n) if n <= KRYLOV.small else k
        extra = max(3, 3 * k // 10) if self.oversampling is None else self.oversampling
        width = min(wanted + extra, n)
        rows = random_rows(op, width, generator)
        if v0 is not None:
            # Random rows stay, so that what v0 has missed can still be found.
            rows = torch.cat([v0, rows[min(v0.shape[0], k) :]])
        safety = STOPPING.safety_small if n <= KRYLOV.small else STOPPING.safety
        rule = StoppingRule(tol, eps, width, safety)
        return self._leading(op, (k, wanted), rows, width, rule, generator, spent).first(k)

    def _budget(self, k: int) -> int:
        return self.max_matvecs or 1000 + 200 * k

    def _largest(self, op: LinearOperator, tol: float, generator: torch.Generator) -> Triplets:
        """The three-term recurrence, which does not have to be reorthogonalized."""
        limit = min(self.basis or KRYLOV.single_basis, op.shape[1], max(2, self._budget(1) // 2))
        safety = STOPPING.safety if has_fourier_modes(op) else STOPPING.safety_isolated
        rule = StoppingRule(tol, torch.finfo(op.dtype).eps, safety=safety)
        run = LanczosRun(op.gram_rows, filtered_row(op, generator), reorthogonalize=False)
        check_at = KRYLOV.probe_steps
        while True:
            exhausted = not run.step()
            if not exhausted and run.steps < min(check_at, limit):
                continue
            check_at = run.steps + max(1, run.steps // 16)
            theta, vectors = run.ritz()
            residual = run.betas[-1] * vectors[-1, :1].abs()
            second = theta[1].clamp_min(0) if run.steps > 1 else 0 * theta[0]
            error = float(rule.estimates(theta[:1], residual, second))
            settled = float(residual) <= ROUNDING * rule.eps * float(theta[0])
            if exhausted or settled or error <= rule.tol:
                vector = run.rows(vectors[:, :1])
                # `A Q = Q T + e rest^T` gives the vector's image at no further cost.
                gram = vector * theta[0].item() + run.rest * vectors[-1, 0].item()
                norm, beside = lengths(vector), float(second) ** 0.5
                spent = 2 * run.steps
                return finish(op, vector / norm, rule, spent, beside=beside, gram=gram / norm)
            if run.steps >= limit:
                break
        # The basis is full: go on from its best part.
        best, spent = run.rows(vectors[:, :4]), 2 * run.steps
        del run
        return self._leading(op, (1, 1), best, len(best), rule, generator, spent)

    def _leading(
        self,
        op: LinearOperator,
        counts: tuple[int, int],
        rows: Tensor,
        width: int,
        rule: StoppingRule,
        generator: torch.Generator,
        num_matvecs: int,
    ) -> Triplets:
        """Rayleigh-Ritz on a basis that grows by the residuals of what has not converged.

        First on `M^T M`, whose images take no further basis. Where a value turns out to have
        been lost by squaring, on `M` itself from there. `counts` are the values asked for, and
        those to look for.
        """
        n, (asked, k) = op.shape[1], counts
        budget = self._budget(asked)
        few = rule.tol >= KRYLOV.rough_tol or rule.wide == 1
        blocks = KRYLOV.few_blocks if few else KRYLOV.many_blocks
        basis = self.basis or max(8 * blocks, blocks * width)
        room = min(n, max(basis, width + k, rows.shape[0] + 1))
        space = Subspace(op, room, width, rule, generator, num_matvecs)
        space.grow(k, rows, budget)
        vectors, images = space.ritz(k)
        found = finish(op, vectors, rule, space.num_matvecs, beside=space.beside, gram=images)
        if found.first(asked).converged or found.num_matvecs + 3 * k >= budget:
            return found
        rows = space.ritz(width)[0]
        del space
        space = Subspace(op, room, width, rule, generator, found.num_matvecs, two_sided=True)
        space.grow(k, rows, budget)
        return finish(op, space.ritz(k)[0], rule, space.num_matvecs, beside=space.beside)


def _advice(found: Triplets, tol: float) -> str:
    """What to do about values that are not accurate."""
    assert found.verdict is not None
    residuals, errors, accurate = found.verdict
    if found.converged:
        return ""
    floor = ROUNDING * torch.finfo(found.S.dtype).eps * float(found.S[0])
    text = f"{int((~accurate).sum())} of {len(found.S)} values have not reached tol={tol:g}"
    if bool((residuals[~accurate] <= floor).all()):
        return (
            f"{text}: they are known to about {float(errors[~accurate].min()):.1g}, which is "
            f"rounding in {found.S.dtype} (see errors). Ask for fewer values, loosen tol, or "
            "convert the layer to float64."
        )
    return (
        f"{text} after {found.num_matvecs} matvecs. Go on from here with "
        "svds(..., v0=spectrum.V), allow more with solver=Lanczos(max_matvecs=...), or "
        "loosen tol."
    )


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
    ) -> Spectrum:
        """Iterate a fixed number of times on the input side."""
        balanced, factor = op.balanced()
        # Scaling down with the shift changes nothing; scaling up, the shift would overflow.
        scale = min(factor, 1.0)
        scaled, shift = (balanced, self.shift * scale**2) if scale < 1 else (op, self.shift)
        X = random_rows(op, k, generator) if v0 is None else op.input_rows(v0)[:k]
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
        S, V = (S * (factor / scale)).to(X), _orthonormal(X)[order]
        U, residuals = left_vectors(balanced, balanced.forward_rows(V), S, V)
        # A residual says that some value is near, not that it is the one of this rank.
        errors = torch.maximum(residuals, tol * S) + 2 * margin(op) * S
        verdict = Verdict(residuals, errors, residuals <= 2 * tol * S)
        found = Triplets(S, U, V, 2 * len(S) * (self.iterations + 1), verdict)
        advice = (
            f"PowerQR's {self.iterations} iterations did not bring the residuals below "
            f"2 * tol = {2 * tol:g}. Go on with v0=spectrum.V, or use the default solver."
        )
        return found.scaled(1 / factor).spectrum(op, advice)


def _orthonormal(rows: Tensor) -> Tensor:
    """Orthonormal rows, to rounding: one factorization leaves what the rows' condition costs."""
    return rows_lq(rows_lq(rows)[1])[1]
