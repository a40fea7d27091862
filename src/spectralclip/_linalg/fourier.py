"""The symbols of convolutions on a torus: the one place that builds them.

With circular padding a convolution is diagonalized by the Fourier transform up to one small
matrix for each frequency, its *symbol*; the singular values of the layer are those of the
symbols (Sedghi et al. 2019). With a stride s that divides the side, the s frequencies that
the subsampling folds onto each other share one wider matrix (Senderovich et al. 2022).

`symbols` computes them at chosen frequencies, tap by tap and with exact phases; `grid_symbols` at
all of a torus, by the fast Fourier transform.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spectralclip._common import Shape


def folded_frequencies(sides: Shape, stride: Shape) -> tuple[Tensor, Tensor]:
    """The frequencies `(f, d)` of an output torus that are needed, and how often each counts.

    A real kernel's symbol at `-w` is the conjugate of that at `w`: of each such pair one
    frequency is kept and counts twice.
    """
    reduced = [side // step for side, step in zip(sides, stride, strict=True)]
    axes = [torch.arange(size, device="cpu") for size in reduced]
    grid = torch.cartesian_prod(*axes).reshape(-1, len(reduced))
    mirrored = (-grid).remainder(torch.tensor(reduced, device="cpu"))
    place = torch.arange(len(grid), device="cpu")
    mirrored_place = place.reshape(reduced)[tuple(mirrored.T)]
    kept = place <= mirrored_place
    counts = torch.where(place == mirrored_place, 1, 2)
    return grid[kept], counts[kept]


def alias_frequencies(frequencies: Tensor, sides: Shape, stride: Shape) -> Tensor:
    """All input frequencies that a stride folds onto each output frequency: `(f, aliases, d)`."""
    sizes = [side // step for side, step in zip(sides, stride, strict=True)]
    reduced = torch.tensor(sizes, device="cpu")
    shifts = torch.cartesian_prod(*[torch.arange(step, device="cpu") for step in stride])
    return frequencies[:, None] + shifts.reshape(1, -1, len(stride)) * reduced


def tap_waves(
    kernel: Shape, sides: Shape, frequencies: Tensor, stride: Shape, dilation: Shape, padding: Shape
) -> Tensor:
    """What each tap contributes to the symbol at each frequency: `(f, aliases, taps)`.

    The sides are those of the input torus, each divisible by its stride. By the square root of how
    many frequencies that folds together the waves are divided, so that the layer's singular values
    are those of the symbols. Padding, at the low end, shifts the phases only.
    """
    aliases = alias_frequencies(frequencies, sides, stride)
    phase = torch.zeros(*aliases.shape[:2], 1, dtype=torch.float64, device="cpu")
    for axis, (taps, side) in enumerate(zip(kernel, sides, strict=True)):
        offsets = torch.arange(taps, device="cpu") * dilation[axis] - padding[axis]
        # Integer arithmetic modulo the side keeps the phases exact to the last bit.
        turns = (aliases[..., axis, None] * offsets).remainder(side).double() / side
        phase = (phase[..., :, None] + turns[..., None, :]).flatten(-2)
    return _unit(phase) / math.sqrt(math.prod(stride))


def symbols(weight: Tensor, waves: Tensor, groups: int = 1) -> Tensor:
    """The symbols of a kernel, `(groups, f, c_out / groups, aliases * c_in)`.

    The weight is `(c_out, c_in, *taps)`; the waves are those of `tap_waves`, on its device, in the
    precision wanted.
    """
    frequencies, aliases, taps = waves.shape
    rows, flat = weight.reshape(-1, taps), waves.reshape(-1, taps)
    real, imaginary = (part @ rows.T.to(part.dtype) for part in (flat.real, flat.imag))
    symbol = torch.complex(real, imaginary)
    symbol = symbol.reshape(frequencies, aliases, groups, -1, weight.shape[1])
    return symbol.permute(2, 0, 3, 1, 4).reshape(groups, frequencies, -1, aliases * weight.shape[1])


def plane_wave(
    frequencies: Tensor, amplitudes: Tensor, sides: Shape, space: Shape, first: Shape
) -> Tensor:
    """A complex sum of plane waves on an image that begins at `first` on a torus.

    From frequencies `(waves, d)` in steps of the torus and amplitudes `(waves, channels)` it makes
    `(channels, *space)`.
    """
    image = amplitudes.new_zeros(amplitudes.shape[1], *space)
    for frequency, amplitude in zip(frequencies.tolist(), amplitudes, strict=True):
        wave = amplitude
        for n, side, step, place in zip(space, sides, frequency, first, strict=True):
            turns = (torch.arange(place, place + n, device="cpu") * step).remainder(side)
            wave = wave[..., None] * _unit(turns.double() / side).to(image)
        image += wave
    return image


def _unit(turns: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(turns), 2 * math.pi * turns)


def split_phases(x: Tensor, stride: Shape) -> Tensor:
    """`(b, c, *sides)` as `(b, c * phases, *sides / stride)`: positions a stride apart together."""
    axes = len(stride)
    sizes = zip(x.shape[2:], stride, strict=True)
    split = x.reshape(*x.shape[:2], *[size for n, s in sizes for size in (n // s, s)])
    order = [*range(3, 3 + 2 * axes, 2), *range(2, 2 + 2 * axes, 2)]
    return split.permute(0, 1, *order).flatten(1, 1 + axes)


def grid_symbols(kernel: Tensor, stride: Shape) -> Tensor:
    """Symbols of a kernel `(c_out, c_in, *sides)`: `(*frequencies, c_out, c_in * phases)`.

    With stride s, an image is s x s smaller ones, its phases, and so is a kernel, filled up with
    zeros; each pair of phases is convolved without a stride on the grid of the output. Of conjugate
    frequencies one is left. Differentiable.
    """
    axes = len(stride)
    spectrum: Tensor = torch.fft.rfftn(split_phases(kernel, stride), dim=tuple(range(-axes, 0)))
    # Conjugated for good, as blocks are read many times.
    return torch.conj_physical(spectrum).movedim((0, 1), (-2, -1))


def grid_kernel(blocks: Tensor, sides: Shape, stride: Shape) -> Tensor:
    """The kernel `(c_out, c_in, *sides)` with these symbols: the inverse of `grid_symbols`."""
    axes = len(sides)
    grid = tuple(n // s for n, s in zip(sides, stride, strict=True))
    spectrum = blocks.conj().movedim((-2, -1), (0, 1))
    phases: Tensor = torch.fft.irfftn(spectrum, s=grid, dim=tuple(range(-axes, 0)))
    split: Tensor = phases.unflatten(1, (-1, *stride))
    order = [place for axis in range(axes) for place in (2 + axes + axis, 2 + axis)]
    return split.permute(0, 1, *order).reshape(*split.shape[:2], *sides)
