"""Following the largest singular values of convolutions through plane waves.

Away from the borders a convolution maps a plane wave `v e^{iwx}` to another one, `S(w) v e^{iwx}`,
so that its norm is nearly the largest singular value of the small matrices `S(w)` over all w: the
norm of the same kernel on an endless image. A zero-padded layer is a part of that, and never
above it. One application of `S(w)` reads the weights once, whatever the size of the image.

With a stride s an output wave of frequency w is made of input waves that differ from pixel to
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
from typing import final

import torch
from torch import Tensor

from spectralclip._affine import Shape
from spectralclip._fourier import folded_frequencies

# Cells of the torus of frequencies along an axis, for each step that a symbol's phase can make.
CELLS_A_STEP, MOST_CELLS = 8, (16, 12, 5)


@final
@dataclass(frozen=True)
class Taps:
    """Where the taps of a kernel read: `position = stride * step + remainder` along each axis.

    Attributes:
        steps: `(T, d)`, whole steps of the stride.
        remainders: `(T,)`, an index for each remainder that occurs.
        stride: One entry for each axis.
        rests: The remainders themselves, tap by tap.
    """

    steps: Tensor
    remainders: Tensor
    stride: Shape
    rests: tuple[Shape, ...]

    def of_remainder(self, rest: Shape) -> int:
        """A tap that reads pixels of this remainder; -1 if none does."""
        return self.rests.index(rest) if rest in self.rests else -1

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
            stride,
            tuple(rests),
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
    """Where on the torus of frequencies to look, up to conjugation.

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
        most = MOST_CELLS[taps.steps.shape[1] - 1]
        sizes = tuple(max(1, min(CELLS_A_STEP * int(span), most)) for span in spans)
        # Somewhat beyond the middle between two centers, so that no maximum is on an edge.
        return Frequencies(_angles(sizes), tuple(1.2 * math.pi / size for size in sizes))


def _angles(sizes: Shape) -> Tensor:
    whole, _ = folded_frequencies(sizes, (1,) * len(sizes))
    return whole.double() * (2 * math.pi / torch.tensor(sizes, device="cpu").double())


@final
@dataclass
class Waves:
    """Singular pairs at some frequencies, and what is needed to build cuts from them.

    Attributes:
        S: `(B, F, k)`, descending along k.
        U: `(B, F, k, c_out)`, complex.
        taps: `(B, F, k, 2, c_in * T)`: real and imaginary part of each right vector, as the
            taps read it, before the rotation.
        rotation: `(B, F, k, k)`, complex: column i turns these into the i-th right vector.
        rise: `(B, F)`, by how much the first value has grown within this look; the more, the
            farther it may still have to go.
        chosen: The frequencies that these are; None for all.
    """

    S: Tensor
    U: Tensor
    taps: Tensor
    rotation: Tensor
    rise: Tensor
    chosen: Tensor | None

    def cuts(self, kernel: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of chosen values in the weights of their kernels, as factors of rank two.

        The gradient of the i-th value is `left[i].T @ right[i]`.

        Args:
            kernel: `(m,)`, which of the B kernels.
            where: `(m,)` indices into the kernel's `F * k` values.

        Returns:
            `(m, 2, c_out)` and `(m, 2, c_in * T)`.
        """
        k = self.S.shape[-1]
        frequency, column = where // k, where % k
        left = torch.view_as_real(self.U[kernel, frequency, column]).movedim(-1, 1)
        turn = self.rotation[kernel, frequency, :, column]
        planes = self.taps[kernel, frequency]
        real, imaginary = turn.real[:, :, None], turn.imag[:, :, None]
        right = torch.stack(
            (
                (real * planes[:, :, 0] - imaginary * planes[:, :, 1]).sum(1),
                (real * planes[:, :, 1] + imaginary * planes[:, :, 0]).sum(1),
            ),
            1,
        )
        return left, right


def waves_on(amplitudes: Tensor, frequency: Tensor, taps: Taps, places: Sequence[Tensor]) -> Tensor:
    """A plane wave as an image: its real and its imaginary part.

    Args:
        amplitudes: `(c_in, T)`, complex: what each tap reads of it at the origin.
        frequency: `(d,)`.
        taps: The kernel's taps.
        places: For each axis, the positions of the pixels, of which tap 0 reads position 0.

    Returns:
        `(2, c_in, *sides)`.
    """
    grid = torch.cartesian_prod(*[place.double() for place in places])
    grid = grid.reshape(-1, len(places))
    stride = torch.tensor(taps.stride, dtype=torch.float64)
    steps = torch.div(grid, stride, rounding_mode="floor")
    rests = [tuple(rest) for rest in (grid - steps * stride).int().tolist()]
    known = {rest: taps.of_remainder(rest) for rest in set(rests)}
    tap = torch.tensor([known[rest] for rest in rests])
    frequency = frequency.double().cpu()
    turns = (steps - taps.steps[tap.clamp_min(0)]) @ frequency
    phases = torch.polar((tap >= 0).double(), turns).to(amplitudes)
    image = amplitudes[:, tap.clamp_min(0).to(amplitudes.device)] * phases
    image = image.reshape(len(amplitudes), *[len(place) for place in places])
    return torch.stack((image.real, image.imag))


@final
class WaveTracker:
    """Warm singular vectors of B kernels at F frequencies.

    Attributes:
        frequencies: `(B, F, d)`, where it looks now.
        vectors: `(B, F, k, c_out)`, complex: the left singular vectors, as known so far.
        values: `(B, F)`, the largest singular value at each frequency when it was last looked at.
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
        device, dtype = like.device, like.dtype
        self._count = taps.remainder_count
        self._centers = frequencies.centers.to(device, dtype)
        self._reach = torch.tensor(frequencies.reach).to(self._centers)
        self._moves = any(frequencies.reach)
        self._steps = taps.steps.to(device, dtype)
        self._read = torch.nn.functional.one_hot(taps.remainders, self._count).to(device, dtype)
        self._tables: tuple[Tensor, Tensor] | None = None
        F, k = len(self._centers), min(width, c_out, self._c_in * self._count)
        self.frequencies = self._centers.expand(batch, -1, -1).clone()
        draws = [
            torch.randn(F, k, c_out, dtype=torch.complex128, generator=g, device="cpu")
            for g in generators
        ]
        precision = torch.complex64 if dtype == torch.float32 else torch.complex128
        self.vectors = torch.stack(draws).to(device, precision)
        self.values = torch.zeros(batch, F, device=device, dtype=dtype)
        self.ages = torch.zeros(batch, F, device=device, dtype=dtype)

    @property
    def columns(self) -> int:
        """Real vectors that the weights are multiplied with in each half of a whole look."""
        return 2 * self.vectors.shape[1] * self.vectors.shape[2]

    def promising(self, count: int, drift: float) -> Tensor | None:
        """The frequencies that may have the largest values now: `(B, count)`, or None for all.

        Args:
            count: How many of them.
            drift: The share of the largest value by which others may grow in a step.
        """
        if count >= self.values.shape[1]:
            return None
        top = self.values.amax(1, keepdim=True)
        chosen = (self.values + drift * top * self.ages).topk(count, 1).indices
        return chosen.sort(1).values

    def look(
        self, weight: Tensor, rows: Tensor | None, chosen: Tensor | None = None, *, move: bool
    ) -> Waves:
        """One step of subspace iteration at each frequency, with Rayleigh and Ritz.

        Args:
            weight: `(B, c_out, c_in * T)`.
            rows: `(B, c_out)`, what the outputs are multiplied with, as by a batch norm.
            chosen: The frequencies to look at, from `promising`; None for all.
            move: Let the frequencies climb.
        """
        start = _taken(self.vectors, chosen)
        B, F, k, c_out = start.shape
        start = start if rows is None else start * rows[:, None, None]
        planes = torch.stack((start.real, start.imag), 3).reshape(B, -1, c_out)
        pulled = torch.bmm(planes, weight).reshape(B, F, k, 2, self._c_in, -1)
        if move and self._moves:
            self._climb(pulled, chosen)
        down, up = self._phase_tables(chosen)
        folded = self._folded(pulled, down)
        before = torch.linalg.vector_norm(folded[:, :, 0], dim=-1)
        read = self._unfolded(_orthonormal(folded), up)
        y = torch.bmm(read.reshape(B, F * k * 2, -1), weight.mT).reshape(B, F, k, 2, c_out)
        images = torch.complex(y[..., 0, :], y[..., 1, :])
        if rows is not None:
            images = images * rows[:, None, None]
        squares, rotation = torch.linalg.eigh(images.conj() @ images.mT)
        values, rotation = squares.flip(-1).clamp_min(0).sqrt(), rotation.flip(-1)
        left = rotation.mT @ images
        left = left / values.clamp_min(torch.finfo(values.dtype).tiny)[..., None]
        return Waves(values, left, read, rotation, values[:, :, 0] - before, chosen)

    def move_to(self, own: slice, frequencies: Tensor) -> None:
        """Look elsewhere with some of the kernels."""
        self.frequencies = self.frequencies.clone()
        self.frequencies[own] = frequencies.to(self.frequencies)
        self._tables = None

    def keep(self, waves: Waves) -> None:
        """Go on from what a look has found."""
        if waves.chosen is None:
            self.vectors, self.values = waves.U, waves.S[:, :, 0]
            self.ages.zero_()
            return
        batch = torch.arange(len(waves.chosen), device=waves.chosen.device)[:, None]
        self.vectors[batch, waves.chosen] = waves.U
        self.values[batch, waves.chosen] = waves.S[:, :, 0]
        self.ages[batch, waves.chosen] = 0

    def _phase_tables(self, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the taps' phases: `(B, F, T, 2 R)`, and `(B, F, R, 2 T)`."""
        if self._tables is not None and chosen is None:
            return self._tables
        angles = _taken(self.frequencies, chosen) @ self._steps.T
        both = torch.stack((angles.cos(), angles.sin()), -1)
        down = (both[..., None] * self._read[:, None, :]).flatten(-2)
        up = (self._read.T[:, None, :] * both.mT[..., None, :, :]).flatten(-2)
        if chosen is None:
            self._tables = down, up
        return down, up

    def _folded(self, pulled: Tensor, down: Tensor) -> Tensor:
        """`sum_t e^{-i w q_t} z_t` over the taps of each remainder: `(B, F, k, c_in * R)`."""
        B, F, k = pulled.shape[:3]
        parts = pulled.reshape(B, F, -1, pulled.shape[-1]) @ down
        parts = parts.reshape(B, F, k, 2, self._c_in, 2, self._count)
        real = parts[:, :, :, 0, :, 0] + parts[:, :, :, 1, :, 1]
        imaginary = parts[:, :, :, 1, :, 0] - parts[:, :, :, 0, :, 1]
        return torch.complex(real, imaginary).flatten(-2)

    def _unfolded(self, v: Tensor, up: Tensor) -> Tensor:
        """`e^{i w q_t} v[r_t]` for each tap, as planes: `(B, F, k, 2, c_in * T)`."""
        B, F, k = v.shape[:3]
        planes = torch.stack((v.real, v.imag), 3).reshape(B, F, -1, self._count)
        parts = (planes @ up).reshape(B, F, k, 2, self._c_in, 2, -1)
        real = parts[:, :, :, 0, :, 0] - parts[:, :, :, 1, :, 1]
        imaginary = parts[:, :, :, 1, :, 0] + parts[:, :, :, 0, :, 1]
        return torch.stack((real, imaginary), 3).flatten(-2)

    def _climb(self, pulled: Tensor, chosen: Tensor | None) -> None:
        """Move each frequency towards where its first left vector u has more.

        For a fixed u, `g(w) = ||S(w)^H u||^2` is a trigonometric polynomial whose coefficients
        are inner products of the taps' `W_t^T u`, which are there already: Newton's step along
        each axis costs no application.
        """
        frequencies = _taken(self.frequencies, chosen)
        centers = self._centers if chosen is None else self._centers[chosen]
        first = pulled[:, :, 0]
        z = torch.complex(first[:, :, 0], first[:, :, 1])  # (B, F, c_in, T)
        angles = frequencies @ self._steps.T
        turned = z * torch.polar(torch.ones_like(angles), -angles)[..., None, :]
        products = (turned.mT @ turned.conj()) * (self._read @ self._read.T)
        along = products.sum(-1)
        slope = 2 * (along.imag @ self._steps)
        bend = -2 * (along.real @ self._steps.square())
        bend += 2 * ((products.real @ self._steps) * self._steps).sum(-2)
        limit = self._reach / 4
        newton = slope / bend.abs().clamp_min(torch.finfo(bend.dtype).tiny)
        step = torch.where(bend < 0, newton, slope.sign() * limit)
        moved = frequencies + step.clamp(-limit, limit)
        moved = moved.clamp(centers - self._reach, centers + self._reach)
        if chosen is None:
            self.frequencies = moved
        else:
            batch = torch.arange(len(chosen), device=chosen.device)[:, None]
            self.frequencies[batch, chosen] = moved
        self._tables = None


def _taken(state: Tensor, chosen: Tensor | None) -> Tensor:
    """What belongs to the chosen frequencies of each kernel."""
    if chosen is None:
        return state
    batch = torch.arange(len(chosen), device=chosen.device)[:, None]
    return state[batch, chosen]


def _orthonormal(rows: Tensor) -> Tensor:
    """Orthonormal rows with the same span, by a Cholesky factor of their Gram matrix."""
    gram = rows.conj() @ rows.mT
    k = gram.shape[-1]
    size = gram.diagonal(dim1=-2, dim2=-1).real
    if k == 1:
        return rows / size.sqrt().clamp_min(torch.finfo(size.dtype).tiny)[..., None]
    eps = torch.finfo(size.dtype).eps
    ridge = (8 * eps * size.sum(-1)).clamp_min(torch.finfo(size.dtype).tiny)
    shifted = gram + torch.diag_embed(ridge[..., None].expand(*ridge.shape, k)).to(gram.dtype)
    factor, _ = torch.linalg.cholesky_ex(shifted.conj())
    solved: Tensor = torch.linalg.solve_triangular(factor, rows, upper=False)
    return solved
