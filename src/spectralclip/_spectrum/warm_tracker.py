"""The warm tracker: a layer's leading singular pairs, followed while its weights move."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from spectralclip._linalg import descending_eigh, on_host, tall_qr
from spectralclip._operators import LinearOperator
from spectralclip._spectrum.triplets import Triplets


@final
class RitzTracker:
    """A few right singular vectors, followed by Rayleigh-Ritz on [x, residual, momentum].

    A refresh costs one `M x` and one `M^T y` for each vector x, and one `M` each for its residual
    and its last change. That is twice a power iteration's price, and takes the place of about ten
    of them: the change between two refreshes is small, and mostly in these directions.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.vectors: Tensor | None = None  # orthonormal rows
        self.changes: Tensor | None = None  # the last changes of these
        self.gain = 0.0  # by how much the first value has grown within the last refresh
        self._next: tuple[Tensor | None, Tensor | None] = None, None

    def start(self, rows: Tensor, changes: Tensor | None = None) -> None:
        """Begin from rows, which need not be orthonormal, and other directions to try."""
        self.vectors, self.changes = tall_qr(rows.T)[0].T.contiguous(), changes

    def refresh(self, op: LinearOperator, others: Tensor | None = None) -> Triplets:
        """One Rayleigh-Ritz step on the layer as it is now, and on other rows, one product each.

        Values are NaN where the layer is not finite. `keep` makes the next step go on from here.
        """
        x = self.vectors
        assert x is not None, "start first"
        more = [rows for rows in (self.changes, others) if rows is not None]
        images = op.forward_rows(x)
        if not bool(torch.isfinite(images).all()):
            nothing = torch.full((len(x),), torch.nan, dtype=torch.float64, device="cpu")
            self._next, self.gain = (x, self.changes), 0.0
            return Triplets(nothing, images, x, len(x))
        squares, mix = descending_eigh(on_host(images @ images.T))
        turn = mix.T.to(x)
        x, images = turn @ x, turn @ images
        residuals = op.adjoint_rows(images) - squares.to(x)[:, None] * x
        extra = torch.cat([residuals, *more])
        extra = extra / extra.norm(dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        basis = torch.cat([x, extra])
        images = torch.cat([images, op.forward_rows(extra)])
        floor = max(1e-10, 128 * torch.finfo(x.dtype).eps)
        grams = on_host(basis @ basis.T), on_host(images @ images.T)
        values, mix = _ritz(*grams, len(x), floor)
        turn = mix.T.to(x)
        left = turn @ images
        left = left / left.norm(dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        vectors = turn @ basis
        self._next = vectors, turn[:, len(x) :] @ extra
        self.gain = float(values[0]) - max(float(squares[0]), 0.0) ** 0.5
        return Triplets(values, left, vectors, 2 * len(x) + len(extra))

    def keep(self) -> None:
        """Go on from what the last refresh has found."""
        self.vectors, self.changes = self._next


def _ritz(gram: Tensor, squares: Tensor, count: int, floor: float) -> tuple[Tensor, Tensor]:
    """The largest values of `sqrt(a^T H a)` over `a^T G a = 1`, and their coefficients.

    Directions in which G is below a share `floor` of its norm are rounding, and left out.
    """
    sizes, directions = descending_eigh(gram)
    kept = sizes > floor * sizes[0]
    whiten = directions[:, kept] / sizes[kept].sqrt()
    values, mix = descending_eigh(whiten.T @ squares @ whiten)
    count = min(count, int(kept.sum()))
    return values[:count].clamp_min(0).sqrt(), whiten @ mix[:, :count]
