"""The largest singular values of convolutions, followed through Fourier modes.

Away from the borders a convolution maps a Fourier mode `v e^{iwx}` to another, `S(w) v e^{iwx}`, so
that its norm is nearly the largest singular value of the small matrices `S(w)` over all w: the norm
of the same kernel on an endless image. A zero-padded layer is a part of that, and never
above it. One application of `S(w)` reads the weights once, whatever the size of the image.

With a stride s an output mode of frequency w is made of input modes that differ from pixel to
pixel within s pixels: of one amplitude for each remainder r of a position modulo s. Tap t reads
the position `s q + r`, and `S(w) v = sum_t W_t e^{i w q_t} v[r_t]`.

Everything is batched over B kernels of one shape (the groups of a convolution, and layers of equal
shape), F frequencies and k vectors a frequency. Complex vectors are kept as two real planes where
they meet the weights, which are real.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._linalg import folded_frequencies
from spectralclip._training.engine.complex_ritz import ritz_coefficients
from spectralclip._training.engine.tuning import FREQUENCIES

Array: TypeAlias = npt.NDArray[Any]


@final
@dataclass(frozen=True)
class Taps:
    """Where the taps of a kernel read: `position = stride * step + remainder` along each axis.

    Attributes:
        steps: `(T, d)`, whole steps of the stride.
        remainders: `(T,)`, an index for each remainder that occurs.
    """

    steps: Tensor
    remainders: Tensor

    @staticmethod
    def of(kernel: Shape, stride: Shape, dilation: Shape) -> Taps:
        """The taps of a kernel, in the order in which weights store them."""
        positions = [[d * t for t in range(k)] for k, d in zip(kernel, dilation, strict=True)]
        places = list(product(*positions))
        steps = [[x // s for x, s in zip(place, stride, strict=True)] for place in places]
        rests = [tuple(x % s for x, s in zip(place, stride, strict=True)) for place in places]
        index = {rest: i for i, rest in enumerate(dict.fromkeys(rests))}
        return Taps(
            torch.tensor(steps, dtype=torch.float64, device="cpu"),
            torch.tensor([index[rest] for rest in rests], device="cpu"),
        )

    @property
    def remainder_count(self) -> int:
        """How many different remainders the taps have."""
        return int(self.remainders.max()) + 1

    @property
    def do_not_overlap(self) -> bool:
        """Whether each window reads pixels of its own, so that all frequencies are alike."""
        return bool((self.steps == self.steps[0]).all())


@final
@dataclass(frozen=True)
class Frequencies:
    """Where on the torus of frequencies to refresh, up to conjugation.

    Attributes:
        centers: `(F, d)` angles.
        reach: How far along each axis a frequency may move from its center; zero for a grid
            whose points are all there is.
    """

    centers: Tensor
    reach: tuple[float, ...]

    @staticmethod
    def on_grid(sizes: Shape) -> Frequencies:
        """Those of a torus with so many output pixels along each axis."""
        return Frequencies(_angles(sizes), (0.0,) * len(sizes))

    @staticmethod
    def everywhere(taps: Taps) -> Frequencies:
        """Cells that cover all frequencies, finer where the symbol may turn faster."""
        spans = taps.steps.max(0).values - taps.steps.min(0).values
        most = FREQUENCIES.most_cells[taps.steps.shape[1] - 1]
        sizes = tuple(max(1, min(FREQUENCIES.cells_a_step * int(span), most)) for span in spans)
        # Somewhat beyond the middle between two centers, so that no maximum is on an edge.
        return Frequencies(_angles(sizes), tuple(1.2 * math.pi / size for size in sizes))


def _angles(sizes: Shape) -> Tensor:
    whole, _ = folded_frequencies(sizes, (1,) * len(sizes))
    return whole.double() * (2 * math.pi / torch.tensor(sizes, device="cpu").double())


@final
@dataclass
class Modes:
    """Singular pairs at some frequencies, and what is needed to build cuts from them.

    Attributes:
        S: `(B, F, k)`, descending along k.
        U: `(B, F, k, 2, c_out)`: the left vectors, real and imaginary parts.
        taps: `(B, F, 2 k, c_in * T)`: real and imaginary parts of vectors that span the right
            ones, as the taps read them.
        mix: `(B, F, 2 k, 2 k)`, what turns them into the right vectors.
        gain: `(B, F)`, by how much the first value has grown within this refresh; the more, the
            farther it may still have to go.
        chosen: `(B, F)`, the frequencies that these are; None for all.
    """

    S: Array
    U: Tensor
    taps: Tensor
    mix: Tensor
    gain: Array
    chosen: Array | None

    def cuts(self, kernel: Array, where: Array) -> tuple[Tensor, Tensor]:
        """Gradients `left[i].T @ right[i]` of values in their kernels: factors of rank two.

        The i-th value is number `where[i]` of the `F * k` values of kernel `kernel[i]`.
        """
        F, k = self.S.shape[1:]
        place = torch.from_numpy(kernel * F + where // k).to(self.U.device)
        value = torch.from_numpy(kernel * (F * k) + where).to(self.U.device)
        left = self.U.flatten(0, 2)[value]
        mix = self.mix.reshape(-1, 2, 2 * k)[value]
        return left, mix @ self.taps.flatten(0, 1)[place]


@final
class ModeTracker:
    """Warm singular vectors of B kernels at F frequencies.

    What is small is kept in NumPy, whose calls are shorter; what meets the weights, in torch.

    Attributes:
        vectors: `(B, F, k, 2, c_out)`: the left singular vectors, as known so far, real and
            imaginary parts.
        drift: `(B, F, 2, c_out)`: the leading left vectors of the weights' last changes.
        frequencies: `(B, F, d)`, where they are now.
        values: `(B, F)`, the largest singular value at each frequency when last refreshed.
        ages: `(B, F)`, how many steps ago that was.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        taps: Taps,
        frequencies: Frequencies,
        width: int,
        like: Tensor,
        generators: Sequence[torch.Generator],
    ) -> None:
        batch, c_out, self._c_in = shape
        self._count, self._like = taps.remainder_count, like.new_empty(0)
        self._centers, self._reach = frequencies.centers.numpy(), np.array(frequencies.reach)
        self._moves = any(frequencies.reach)
        self._steps = taps.steps.numpy()
        self._read = np.eye(self._count)[taps.remainders.numpy()]
        self._together = self._read @ self._read.T
        self._tables: tuple[Tensor, Tensor] | None = None
        F, k = len(self._centers), min(width, c_out, self._c_in * self._count)
        draws = [
            torch.randn(F, k, 2, c_out, dtype=torch.float64, generator=g, device="cpu")
            for g in generators
        ]
        self.vectors = torch.stack(draws).to(like)
        self.drift = self.vectors[:, :, -1].clone()
        self.frequencies: Array = np.tile(self._centers, (batch, 1, 1))
        self.values: Array = np.zeros((batch, F))
        self.ages: Array = np.zeros((batch, F))

    @property
    def columns(self) -> int:
        """Real vectors that the weights are multiplied with in each half of a whole refresh."""
        return 2 * self.vectors.shape[1] * self.vectors.shape[2]

    def promising(self, potential: Array, count: int) -> Array | None:
        """Some frequencies to refresh at: `(B, at least count)`, or None for all.

        Those that may have come up to the bound since, but no fewer than half of the count, and as
        many that have not been refreshed for longest, since little is known of them.

        Args:
            potential: `(B, F)`, the largest value that each may have by now, as a share of what
                must not be overlooked.
            count: How many frequencies to refresh at, at least.
        """
        most = self.values.shape[1]
        old = count // 2
        near = max(int((potential > 1).sum(1).max()), count - old)
        if near + old >= most:
            return None
        largest = np.argsort(-potential, axis=1, kind="stable")[:, :near]
        ages = self.ages.copy()
        np.put_along_axis(ages, largest, -1.0, axis=1)
        oldest = np.argsort(-ages, axis=1, kind="stable")[:, :old]
        chosen: Array = np.sort(np.concatenate((largest, oldest), axis=1), axis=1)
        return chosen

    def follow_drift(self, change: Tensor, rows: Tensor | None, chosen: Array | None) -> None:
        """One power step on the change of the weights since the last refresh.

        What is about to be large is where the weights are heading. Their own vectors would notice
        it late, since it begins with next to no share in them; but changes are alike from step to
        step, and nearly of low rank, so that a single vector finds their direction.
        """
        start = self._of_chosen(self.drift, chosen)
        B, F, _, c_out = start.shape
        if rows is not None:
            start = start * rows[:, None, None]
        pulled = torch.bmm(start.reshape(B, -1, c_out), change)
        down, up = self._phase_tables(chosen)
        v = self._folded(pulled.reshape(B, F, 1, 2, self._c_in, -1), down)
        read = self._unfolded(v, up)
        found = torch.bmm(read.reshape(B, F * 2, -1), change.mT).reshape(B, F, 2, c_out)
        if rows is not None:
            found = found * rows[:, None, None]
        size = torch.linalg.vector_norm(found, dim=(2, 3), keepdim=True)
        found = torch.where(size > 0, found / size, self._of_chosen(self.drift, chosen))
        if chosen is None:
            self.drift = found
        else:
            batch = torch.arange(len(chosen))[:, None]
            self.drift[batch, torch.from_numpy(chosen)] = found

    def refresh(
        self,
        weight: Tensor,
        rows: Tensor | None,
        chosen: Array | None = None,
        *,
        move: bool,
        drift: bool = False,
    ) -> Modes:
        """One step of subspace iteration at each frequency, with Rayleigh and Ritz.

        Args:
            weight: `(B, c_out, c_in * T)`.
            rows: `(B, c_out)`, what the outputs are multiplied with, as by a batch norm.
            chosen: The frequencies to refresh at, from `promising`; None for all.
            move: Let the frequencies climb.
            drift: Put the drift in the place of the last vector.
        """
        start = self._of_chosen(self.vectors, chosen)
        B, F, k, _, c_out = start.shape
        if drift and k > 1:
            heading = self._of_chosen(self.drift, chosen)
            start = torch.cat((start[:, :, :-1], heading[:, :, None]), 2)
        kept = start
        if rows is not None:
            start = start * rows[:, None, None, None]
        pulled = torch.bmm(start.reshape(B, -1, c_out), weight)
        pulled = pulled.reshape(B, F, k, 2, self._c_in, -1)
        if move and self._moves:
            self._climb(pulled, chosen)
        down, up = self._phase_tables(chosen)
        v = self._folded(pulled, down)
        read = self._unfolded(v, up).reshape(B, F, 2 * k, -1)
        images = torch.bmm(read.flatten(1, 2), weight.mT).reshape(B, F, 2 * k, c_out)
        if rows is not None:
            images = images * rows[:, None, None]
        flat = v.reshape(B, F, 2 * k, -1)
        grams = torch.stack((flat @ flat.mT, images @ images.mT)).cpu().double().numpy()
        values, mix = ritz_coefficients(grams[0], grams[1])
        before = np.sqrt(grams[0, :, :, 0, 0] + grams[0, :, :, 1, 1])
        mixing = torch.from_numpy(mix).to(self._like)
        with np.errstate(all="ignore"):
            scale = np.where(values > 0, 1 / values, 0.0).repeat(2, -1)[..., None]
        left = torch.from_numpy(mix * scale).to(self._like) @ images
        left = left.reshape(B, F, k, 2, c_out)
        if not (values > 0).all():
            # What a kernel of zeros makes of a vector is nothing to go on from.
            seen = torch.from_numpy(values > 0).to(left.device)[..., None, None]
            left = torch.where(seen, left, kept)
        return Modes(values, left, read, mixing, values[:, :, 0] - before, chosen)

    def move_to(self, own: slice, frequencies: Array) -> None:
        """Move the frequencies of some of the kernels."""
        self.frequencies[own] = frequencies
        self._tables = None

    def keep(self, modes: Modes) -> None:
        """Go on from what a refresh has found."""
        if modes.chosen is None:
            self.vectors, self.values = modes.U, modes.S[:, :, 0].copy()
            self.ages[:] = 0
            return
        batch = np.arange(len(modes.chosen))[:, None]
        self.vectors[torch.from_numpy(batch), torch.from_numpy(modes.chosen)] = modes.U
        self.values[batch, modes.chosen] = modes.S[:, :, 0]
        self.ages[batch, modes.chosen] = 0

    def _of_chosen(self, vectors: Tensor, chosen: Array | None) -> Tensor:
        if chosen is None:
            return vectors
        batch = torch.arange(len(chosen))[:, None]
        return vectors[batch, torch.from_numpy(chosen)]

    def _phase_tables(self, chosen: Array | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the taps' phases: `(B, F, T, 2 R)`, and `(B, F, R, 2 T)`."""
        if self._tables is not None and chosen is None:
            return self._tables
        angles = _taken(self.frequencies, chosen) @ self._steps.T
        both = np.stack((np.cos(angles), np.sin(angles)), -1)  # (B, F, T, 2)
        down = both[..., None] * self._read[:, None, :]
        up = np.swapaxes(self._read, 0, 1)[:, None, :] * np.swapaxes(both, -1, -2)[..., None, :, :]
        B, F, T = angles.shape
        tables = (
            torch.from_numpy(down.reshape(B, F, T, -1)).to(self._like),
            torch.from_numpy(up.reshape(B, F, self._count, -1)).to(self._like),
        )
        if chosen is None:
            self._tables = tables
        return tables

    def _folded(self, pulled: Tensor, down: Tensor) -> Tensor:
        """`sum_t e^{-i w q_t} z_t` over the taps of each remainder: `(B, F, k, 2, c_in, R)`."""
        B, F, k = pulled.shape[:3]
        parts = pulled.reshape(B, F, -1, pulled.shape[-1]) @ down
        parts = parts.reshape(B, F, k, 2, self._c_in, 2, self._count)
        (zc, zs), (yc, ys) = (parts[:, :, :, a].unbind(-2) for a in (0, 1))
        return torch.stack((zc + ys, yc - zs), 3)

    def _unfolded(self, v: Tensor, up: Tensor) -> Tensor:
        """`e^{i w q_t} v[r_t]` for each tap: `(B, F, k, 2, c_in, T)`."""
        B, F, k = v.shape[:3]
        parts = (v.reshape(B, F, -1, self._count) @ up).reshape(B, F, k, 2, self._c_in, 2, -1)
        (zc, zs), (yc, ys) = (parts[:, :, :, a].unbind(-2) for a in (0, 1))
        return torch.stack((zc - ys, yc + zs), 3)

    @np.errstate(all="ignore")  # a frequency that is not finite is put back below
    def _climb(self, pulled: Tensor, chosen: Array | None) -> None:
        """Move each frequency towards where its first left vector u has more.

        For a fixed u, `g(w) = ||S(w)^H u||^2` is a trigonometric polynomial whose coefficients
        are inner products of the taps' `z_t = W_t^T u`, which are there already: Newton's step
        along each axis costs no application.
        """
        frequencies = _taken(self.frequencies, chosen)
        first = pulled[:, :, 0]  # (B, F, 2, c_in, T)
        stacked = first.flatten(2, 3)
        crossed = first[:, :, 0].mT @ first[:, :, 1]
        both = torch.stack((stacked.mT @ stacked, crossed)).cpu().double().numpy()
        inner = both[0] + 1j * (np.swapaxes(both[1], -1, -2) - both[1])  # <z_t', z_t>
        turn = np.exp(-1j * (frequencies @ self._steps.T))
        products = turn[..., :, None] * inner * turn.conj()[..., None, :] * self._together
        along = products.sum(-1)
        slope = 2 * (along.imag @ self._steps)
        bend = -2 * (along.real @ self._steps**2)
        bend += 2 * ((products.real @ self._steps) * self._steps).sum(-2)
        limit = self._reach / 4
        newton = slope / np.maximum(np.abs(bend), 1e-300)
        step = np.where(bend < 0, newton, np.sign(slope) * limit)
        moved = frequencies + np.clip(step, -limit, limit)
        centers = self._centers if chosen is None else self._centers[chosen]
        moved = np.clip(moved, centers - self._reach, centers + self._reach)
        moved = np.where(np.isfinite(moved), moved, frequencies)
        if chosen is None:
            self.frequencies = moved
        else:
            self.frequencies[np.arange(len(chosen))[:, None], chosen] = moved
        self._tables = None


def _taken(state: Array, chosen: Array | None) -> Array:
    """What belongs to the chosen frequencies of each kernel."""
    return state if chosen is None else state[np.arange(len(chosen))[:, None], chosen]
