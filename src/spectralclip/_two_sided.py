"""A growing pair of subspaces, one on each side of `M`: for values far below the largest."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from spectralclip._operator import LinearOperator
from spectralclip._precision import wide
from spectralclip._starts import gaussian
from spectralclip._subspace import Accuracy, small, tall_qr

# Residuals near rounding have arrived once they stop shrinking by this factor so many times in a
# row; how small they can become depends on the layer (0.3 to 8 eps times the largest value).
SHRINKS = 0.7
PATIENCE = 3


@final
class TwoSidedSpace:
    """Orthonormal bases V and Q with `M V = Q B`, and the images `M^T Q`.

    The singular triplets of the small matrix B give Ritz triplets `M v = s u`, and
    `M^T u - s v` is their residual. The subspaces are those of a Krylov method on `M^T M`, but
    nothing is squared: rounding in a residual is eps times the largest value, where that of
    `M^T M v - s^2 v`, divided by s, is larger by `s_1 / s`.

    It expands, restarts and says what has not converged as `Subspace` does, at the same number
    of applications. The price is a third long basis, on the output side.
    """

    def __init__(
        self, op: LinearOperator, room: int, applications: int, generator: torch.Generator
    ) -> None:
        self._op, self._generator = op, generator
        self.applications = applications
        self.room = room
        m, n = op.shape
        self._right = torch.empty(room, n, dtype=op.dtype, device=op.device)
        self._left = torch.empty(room, m, dtype=op.dtype, device=op.device)
        self._back = torch.empty_like(self._right)
        self._projection = torch.zeros(room, room, dtype=torch.float64, device="cpu")
        self._best = torch.full((room,), torch.inf, dtype=torch.float64, device="cpu")
        self._idle = torch.zeros(room, dtype=torch.int64, device="cpu")
        self.size = 0

    @property
    def vectors(self) -> Tensor:
        """The basis V, one vector a row."""
        return self._right[: self.size]

    def expand(self, rows: Tensor) -> None:
        """Add orthonormal rows to the basis."""
        old, new = self.size, self.size + rows.shape[0]
        images = self._op.forward_rows(rows)
        left = self._outside(images)
        self._right[old:new], self._left[old:new] = rows, left
        self._back[old:new] = self._op.adjoint_rows(left)
        self.applications += 2 * rows.shape[0]
        self.size = new
        self._projection[:new, old:new] = small(self._left[:new] @ images.T)
        self._decompose()

    def _outside(self, images: Tensor) -> Tensor:
        """As many orthonormal rows, orthogonal to Q, that span the images together with it."""
        against = self._left[: self.size]
        rest, eps = images, torch.finfo(images.dtype).eps
        scale = float(wide(images).norm(dim=1).max())
        scale = max(scale, float(self._values[0])) if self.size else scale
        for _ in range(3):
            for _ in range(2):  # once leaves rounding behind where much has cancelled
                rest = rest - (rest @ against.T) @ against
            Q, R = tall_qr(wide(rest).T)
            lost = R.diagonal().abs() <= eps * scale
            if not bool(lost.any()):
                break
            # Nothing is left of these images but rounding: any direction outside will do.
            scale = 0.0
            noise = gaussian(self._op, len(rest), rest.shape[1], self._generator)
            unit = Q.T.to(rest)
            rest = torch.where(lost.to(rest.device)[:, None], noise / noise.norm(), unit)
        return Q.T.to(images)

    def _decompose(self) -> None:
        B = self._projection[: self.size, : self.size]
        self._mix_left, self._values, mix = torch.linalg.svd(B)
        self._mix_right = mix.T

    def ritz(self, count: int) -> Tensor:
        """The leading right Ritz vectors."""
        return self._mixed(self._mix_right[:, :count], self._right)

    def beside(self, width: int) -> float | None:
        """The first singular value behind a block of this width, where the basis shows one."""
        return float(self._values[width]) if width < self.size else None

    def unconverged(
        self, indices: list[int], width: int, accuracy: Accuracy
    ) -> tuple[Tensor, list[int]]:
        """Those of some Ritz vectors that are not accurate yet: their residuals, and which."""
        indices = [index for index in indices if index < self.size]
        values = self._values[indices]
        rows = self._mixed(self._mix_left[:, indices], self._back)
        right = self._mixed(self._mix_right[:, indices], self._right)
        rows -= values[:, None].to(rows) * right
        norms = small(rows.norm(dim=1))
        done = accuracy.accepts(values, norms, self.beside(width), float(self._values[0]))
        done |= accuracy.settled(norms, float(self._values[0])) & self._stalls(indices, norms)
        chosen = [position for position, ended in enumerate(done.tolist()) if not ended]
        return rows[chosen], [indices[position] for position in chosen]

    def _stalls(self, indices: list[int], norms: Tensor) -> Tensor:
        """Which residuals have not shrunk for a while."""
        improved = norms < SHRINKS * self._best[indices]
        self._idle[indices] = torch.where(improved, 0, self._idle[indices] + 1)
        self._best[indices] = torch.minimum(self._best[indices], norms)
        return self._idle[indices] >= PATIENCE

    def restart(self, keep: int) -> None:
        """Keep the leading Ritz triplets alone."""
        for basis, mix in (
            (self._right, self._mix_right),
            (self._left, self._mix_left),
            (self._back, self._mix_left),
        ):
            basis[:keep] = self._mixed(mix[:, :keep], basis)
        self._projection.zero_()
        self._projection[:keep, :keep] = torch.diag(self._values[:keep])
        self.size = keep
        self._decompose()

    def _mixed(self, mix: Tensor, basis: Tensor) -> Tensor:
        return mix.T.to(basis) @ basis[: self.size]
