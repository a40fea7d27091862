"""A subspace that grows by the residuals of what has not converged: Rayleigh-Ritz with restarts."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor

from spectralclip._linalg import (
    descending_eigh,
    lengths,
    on_host,
    orthonormal_rows,
    row_products,
    tall_qr,
    wide,
)
from spectralclip._operators import LinearOperator
from spectralclip._spectrum.start_vectors import gaussian, random_rows
from spectralclip._spectrum.stopping import ROUNDING, StoppingRule


class KrylovConstants(NamedTuple):
    """What the Lanczos solver is steered by.

    Figures are for 3x3 convolutions of 16, 32 and 64 channels on 32, 24 and 16 pixels.
    """

    # Up to this many unknowns products are cheap, and spectra so thin that a missed value is far
    # from its neighbour: two values more than wanted are found, to a stricter rule.
    small: int = 2048
    # A warm start, or luck, may look converged at once; so long nothing is believed.
    probe_steps: int = 10
    # Vectors that a run for one value keeps before it restarts; to 1e-6 it takes 66 at most.
    single_basis: int = 128
    # How many blocks are kept. Three of them take 176 pairs for 5 values to 1e-3, five 155; to
    # `rough_tol` five save no pair. Of a wide block five save 1 to 13 % of the pairs, and take up
    # to two fifths longer (dense layers: from a tenth less): most of the work is on the basis then.
    many_blocks: int = 5
    few_blocks: int = 3
    rough_tol: float = 5e-3
    # Residuals near rounding have arrived once they stop shrinking by this factor, so many times in
    # a row; how small they become depends on the layer (0.3 to 8 eps times the largest value).
    shrinks: float = 0.7
    patience: int = 3


KRYLOV = KrylovConstants()


@final
class Subspace:
    """An orthonormal basis V on the input side, in one of two forms.

    *One-sided*, with the images `A V` for `A = M^T M`: Ritz pairs are those of `V^T A V`.

    *Two-sided*, with an orthonormal basis Q on the output side, `M V = Q B`, and the images
    `M^T Q`: the singular triplets of B give Ritz triplets `M v = s u`, and `M^T u - s v` is their
    residual. The subspaces are the same, but nothing is squared: rounding in a residual is eps
    times the largest value, where that of `A v - s^2 v`, divided by s, is larger by `s_1 / s`. It
    takes as many products; the price is a third long basis.
    """

    def __init__(
        self,
        op: LinearOperator,
        room: int,
        width: int,
        rule: StoppingRule,
        generator: torch.Generator,
        num_matvecs: int,
        *,
        two_sided: bool = False,
    ) -> None:
        """Begin empty, for at most `room` vectors, to be expanded by blocks of some width."""
        self._op, self._room, self._width, self._rule = op, room, width, rule
        self._generator, self.num_matvecs = generator, num_matvecs
        m, n = op.shape
        self._right = torch.empty(room, n, dtype=op.dtype, device=op.device)
        self._images = torch.empty_like(self._right)  # A V, or M^T Q
        self._left = self._right.new_empty(room, m) if two_sided else None
        self._projection = torch.zeros(room, room, dtype=torch.float64, device="cpu")
        self._best = torch.full((room,), torch.inf, dtype=torch.float64, device="cpu")
        self._idle = torch.zeros(room, dtype=torch.int64, device="cpu")
        self._size = 0

    def grow(self, k: int, rows: Tensor, budget: int) -> None:
        """Expand the basis from some rows until its k leading triplets have converged.

        Each step adds the residuals of all that are open. A third of them at a time would take a
        fifth fewer products, and miss copies of a value that is repeated.
        """
        n = self._op.shape[1]
        fresh = self._new(rows)
        steps, open_ = 0, list(range(k))
        while True:
            if self._size + fresh.shape[0] < min(self._width, n):
                more = random_rows(self._op, self._width, self._generator)
                fresh = self._new(torch.cat([fresh, more]))
            self._expand(fresh[: self._room - self._size])
            steps += 1
            rows, open_ = self._unconverged(open_ or list(range(k)))
            if not open_:
                # What converged first may have moved since.
                rows, open_ = self._unconverged(list(range(k)))
            if self._size == n or self.num_matvecs + 3 * k >= budget:
                return
            if not open_ and steps >= KRYLOV.probe_steps:
                return
            if not open_:
                # The first vector behind those wanted is a probe for what is still hidden.
                after = list(range(k, min(self._size, k + 2 * self._width)))
                rows = self._unconverged(after)[0][:1]
            if self._size + rows.shape[0] > self._room:
                kept = max(k + self._width // 2, self._size // 2)
                self._restart(min(kept, self._room - rows.shape[0]))
            fresh = self._new(rows)
            if fresh.shape[0] == 0:
                fresh = self._new(random_rows(self._op, 1, self._generator))

    def _new(self, rows: Tensor) -> Tensor:
        """An orthonormal basis of what rows add to the span."""
        return orthonormal_rows(rows, self._right[: self._size])

    def _expand(self, rows: Tensor) -> None:
        """Add orthonormal rows to the basis."""
        old, new = self._size, self._size + rows.shape[0]
        self._right[old:new] = rows
        if self._left is None:
            self._images[old:new] = self._op.gram_rows(rows)
            block = row_products(self._images[old:new], self._right[:new])
            self._projection[old:new, :new] = block
            self._projection[:new, old:new] = block.T
            square = self._projection[old:new, old:new]
            square.copy_((square + square.T) / 2)
        else:
            images = self._op.forward_rows(rows)
            self._left[old:new] = self._outside(images, self._left[:old])
            self._images[old:new] = self._op.adjoint_rows(self._left[old:new])
            self._projection[:new, old:new] = on_host(self._left[:new] @ images.T)
        self.num_matvecs += 2 * rows.shape[0]
        self._size = new
        self._decompose()

    def _outside(self, images: Tensor, against: Tensor) -> Tensor:
        """As many orthonormal rows, orthogonal to Q, that span the images together with it."""
        rest, eps = images, torch.finfo(images.dtype).eps
        scale = float(wide(images).norm(dim=1).max())
        scale = max(scale, float(self._values[0])) if len(against) else scale
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
        """The Ritz values, theta or s, and the coordinates of their vectors in the bases."""
        projection = self._projection[: self._size, : self._size]
        if self._left is None:
            self._values, self._mix_right = descending_eigh(projection)
            self._mix_left = self._mix_right
        else:
            self._mix_left, self._values, mix = torch.linalg.svd(projection)
            self._mix_right = mix.T

    def ritz(self, count: int) -> tuple[Tensor, Tensor]:
        """The leading right Ritz vectors, and what the images are for them."""
        right = self._mixed(self._mix_right[:, :count], self._right)
        return right, self._mixed(self._mix_left[:, :count], self._images)

    @property
    def beside(self) -> float | None:
        """The first singular value behind a block of the width, where the basis shows one."""
        if self._width >= self._size:
            return None
        value = float(self._values[self._width])
        return value if self._left is not None else max(value, 0.0) ** 0.5

    def _unconverged(self, indices: list[int]) -> tuple[Tensor, list[int]]:
        """Those of some Ritz vectors that are not accurate yet: their residuals, and which."""
        rule, width = self._rule, self._width
        indices = [index for index in indices if index < self._size]
        values, largest = self._values[indices], float(self._values[0])
        rows = self._mixed(self._mix_left[:, indices], self._images)
        right = self._mixed(self._mix_right[:, indices], self._right)
        rows.addcmul_(values[:, None].to(rows), right, value=-1)
        norms = on_host(lengths(rows))
        if self._left is not None:
            done = rule.accepts(values, norms, self.beside, largest)
            done |= rule.settled(norms, largest) & self._stalls(indices, norms)
        else:
            done = norms <= ROUNDING * rule.eps * largest  # the rounding of applying A
            if width < self._size:
                # A block of this width separates its vectors from the value that follows it.
                done |= rule.estimates(values, norms, self._values[width]) <= rule.tol
        chosen = [position for position, ended in enumerate(done.tolist()) if not ended]
        return rows[chosen], [indices[position] for position in chosen]

    def _stalls(self, indices: list[int], norms: Tensor) -> Tensor:
        """Which residuals have not shrunk for a while."""
        improved = norms < KRYLOV.shrinks * self._best[indices]
        self._idle[indices] = torch.where(improved, 0, self._idle[indices] + 1)
        self._best[indices] = torch.minimum(self._best[indices], norms)
        return self._idle[indices] >= KRYLOV.patience

    def _restart(self, keep: int) -> None:
        """Keep the leading Ritz vectors alone."""
        pairs = [(self._right, self._mix_right), (self._images, self._mix_left)]
        if self._left is not None:
            pairs.append((self._left, self._mix_left))
        for basis, mix in pairs:
            basis[:keep] = self._mixed(mix[:, :keep], basis)
        self._projection.zero_()
        self._projection[:keep, :keep] = torch.diag(self._values[:keep])
        self._size = keep
        self._decompose()

    def _mixed(self, mix: Tensor, basis: Tensor) -> Tensor:
        return mix.T.to(basis) @ basis[: self._size]
