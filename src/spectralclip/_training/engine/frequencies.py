"""Where the Fourier modes of a convolution are, and what its taps make of them.

Away from the borders a convolution maps a Fourier mode `v e^{iwx}` to another, `S(w) v e^{iwx}`,
so that its norm is nearly the largest singular value of the small matrices `S(w)` over all w: the
norm of the same kernel on an endless image. A zero-padded layer is a part of that, and never above
it. One application of `S(w)` reads the weights once, whatever the size of the image.

With a stride s an output mode of frequency w is made of input modes that differ from pixel to
pixel within s pixels: of one amplitude for each remainder r of a position modulo s. Tap t reads
the position `s q + r`, and `S(w) v = sum_t W_t e^{i w q_t} v[r_t]`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import final

import torch
from torch import Tensor

from spectralclip._common import Shape
from spectralclip._linalg import folded_frequencies
from spectralclip._training.engine.tuning import TUNING


@final
@dataclass(frozen=True)
class Taps:
    """Where the taps of a kernel read: `position = stride * step + remainder` along each axis.

    Attributes:
        steps: `(T, d)`, whole steps of the stride, with their middle at zero.
        remainders: `(T,)`, an index for each remainder that occurs.
    """

    steps: Tensor
    remainders: Tensor

    @staticmethod
    def of(kernel: Shape, stride: Shape, dilation: Shape) -> Taps:
        """The taps of a kernel, in the order in which weights store them."""
        positions = [[d * t for t in range(k)] for k, d in zip(kernel, dilation, strict=True)]
        places = list(product(*positions))
        rests = [tuple(x % s for x, s in zip(place, stride, strict=True)) for place in places]
        index = {rest: i for i, rest in enumerate(dict.fromkeys(rests))}
        whole = [[x // s for x, s in zip(place, stride, strict=True)] for place in places]
        steps = torch.tensor(whole, dtype=torch.float64, device="cpu")
        middle = (steps.amax(0) + steps.amin(0)) / 2
        return Taps(steps - middle, torch.tensor([index[rest] for rest in rests], device="cpu"))

    @property
    def remainder_count(self) -> int:
        """How many different remainders the taps have."""
        return int(self.remainders.max()) + 1

    def tables(self) -> tuple[Tensor, Tensor]:
        """Phases and places of the planes `(plane, tap)` in the planes `(plane, remainder)`.

        After these rows come as many for steps along the slope, along each axis of the frequency.
        """
        T, R = len(self.steps), self.remainder_count
        turned = torch.tensor([[0.0, -0.5], [0.5, 0.0]], dtype=torch.float64, device="cpu")
        phases = math.pi * turned[:, None, :, None].expand(2, R, 2, T)
        read = torch.eye(R, dtype=torch.float64, device="cpu")[self.remainders].T
        # Slopes change with the square of the extent: steps along them are shorter by that.
        slopes = self.steps / self.steps.amax(0).clamp_min(1).square()
        factors = torch.cat((torch.ones_like(self.steps[:, :1]), slopes), 1).T
        places = read[None, :, None] * factors[:, None, None, None]
        turns = [0.0, *[0.5] * self.steps.shape[1]]
        phases = torch.cat([phases + math.pi * turn for turn in turns])
        return phases.reshape(-1, 2 * T), places.expand(-1, 2, R, 2, T).reshape(-1, 2 * T)


@final
@dataclass(frozen=True)
class Frequencies:
    """Where on the torus of frequencies a kernel is followed, up to conjugation.

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
        """Cells that cover all frequencies; one where the symbol does not depend on them."""
        # Taps that are g steps apart, as with dilation, repeat themselves g times around the torus.
        apart = (taps.steps - taps.steps[0]).long().T.tolist()
        repeats = [max(1, math.gcd(*axis)) for axis in apart]
        spans = [(max(axis) - min(axis)) // g for axis, g in zip(apart, repeats, strict=True)]
        # There may be as many peaks along an axis as steps from the first tap to the last.
        cells = TUNING.cells[len(apart) - 1]
        sizes = tuple(cells * max(span, 2) // 2 if span else 1 for span in spans)
        centers = _angles(sizes) / torch.tensor(repeats, dtype=torch.float64, device="cpu")
        reach = [math.pi / (size * g) for size, g in zip(sizes, repeats, strict=True)]
        return Frequencies(centers, tuple(reach))


def _angles(sizes: Shape) -> Tensor:
    whole, _ = folded_frequencies(sizes, (1,) * len(sizes))
    return whole.double() * (2 * math.pi / torch.tensor(sizes, device="cpu").double())
