"""What clipping is compared with: scaling, clipping the symbols, and the paper's Algorithm 2.

Each method gets a layer of its own, which it may change, and returns the new weight with what
that took.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.clipping.layers import Shape, movable, multiply_adds, row_factors
from spectralclip import svds
from spectralclip._linalg import alias_frequencies, folded_frequencies

SVD_WORK = 20  # times a^2 b for a block a x b, a <= b, with its vectors; complex: four times that


class NotApplicable(Exception):
    """The method is not defined for such a layer."""


@dataclass(frozen=True)
class Outcome:
    """The new weight, and what it took."""

    weight: Tensor
    num_matvecs: int  # vectors through M, M^T or the pullback
    flops: float | None  # of all work, where it is known
    rounds: int | None = None
    bound: float | None = None  # on the distance of any weight within c
    converged: bool | None = None  # by its own test


Method = Callable[[nn.Module, Shape, float], Outcome]


@torch.no_grad()
def scale(module: nn.Module, in_shape: Shape, limit: float) -> Outcome:
    """The whole weight times `c / sigma_1`."""
    found = svds(module, in_shape, 1)
    weight = movable(module).weight * min(1.0, limit / float(found.S[0]))
    flops = 2.0 * found.num_matvecs * multiply_adds(module, in_shape)
    return Outcome(weight, found.num_matvecs, flops, 1, converged=found.converged)


# --- The symbols --------------------------------------------------------------------------


@torch.no_grad()
def fft_clip(module: nn.Module, in_shape: Shape, limit: float, rounds: int) -> Outcome:
    """Clip the singular values of the symbol at every frequency, and cut back to the kernel.

    Sedghi et al. (2019); with a stride, the symbols that it folds onto each other stand side
    by side (Senderovich et al. 2022). Zero padding is treated as if it were circular. In its
    fast form: half of the frequencies, and eigenvectors of the smaller Gram matrix.
    """
    conv, factors = movable(module), row_factors(module)
    torus = Torus(conv, in_shape)
    weight = conv.weight
    rows = None if factors is None else factors.to(weight.dtype).reshape(-1, 1, 1, 1)
    taps = torus.taps(weight if rows is None else weight * rows)
    for _ in range(rounds):
        taps = taps - torus.kernel_of(_excess(torus.symbols_of(taps), limit))
    weight = torus.weight(taps)
    return Outcome(weight if rows is None else weight / rows, 0, rounds * torus.flops, rounds)


def _excess(blocks: Tensor, limit: float) -> Tensor:
    """What clipping takes off each block: `U (S - c)+ V^H`."""
    wide = blocks.shape[-2] <= blocks.shape[-1]
    gram = blocks @ blocks.mH if wide else blocks.mH @ blocks
    squares, vectors = torch.linalg.eigh(gram)
    share = (1 - limit * squares.clamp_min(1e-30).rsqrt()).clamp_min(0)
    projector = (vectors * share[..., None, :]) @ vectors.mH
    return projector @ blocks if wide else blocks @ projector


class Torus:
    """A convolution between its taps and its symbols at half of the frequencies."""

    def __init__(self, conv: Any, in_shape: Shape) -> None:
        if conv.padding_mode not in ("circular", "zeros"):
            raise NotApplicable(f"{conv.padding_mode} padding")
        sides = in_shape[1:]
        if isinstance(conv, nn.ConvTranspose2d):  # the transpose of a convolution on its outputs
            with torch.no_grad():
                sides = tuple(conv(torch.zeros(1, *in_shape)).shape[2:])
        stride, kernel = conv.stride, conv.kernel_size
        reach = [d * (k - 1) for d, k in zip(conv.dilation, kernel, strict=True)]
        if any(n % s or r >= n for n, s, r in zip(sides, stride, reach, strict=True)):
            raise NotApplicable("the stride does not divide the side, or the kernel is larger")
        self._shape, self._groups = conv.weight.shape, conv.groups
        self._step = math.sqrt(math.prod(stride))
        self._positions = math.prod(sides)
        frequencies, counts = folded_frequencies(sides, stride)
        aliases = alias_frequencies(frequencies, sides, stride)
        self._frequencies, self._aliases = aliases.shape[:2]
        phase = torch.zeros(*aliases.shape[:2], 1, dtype=torch.float64)
        for axis, (taps, side) in enumerate(zip(kernel, sides, strict=True)):
            offsets = torch.arange(taps) * conv.dilation[axis]
            turns = (aliases[..., axis, None] * offsets).remainder(side).double() / side
            phase = (phase[..., :, None] + turns[..., None, :]).flatten(-2)
        angle = 2 * math.pi * phase.flatten(0, 1)
        self._cos, self._sin = angle.cos().float(), angle.sin().float()
        self._counts = counts.repeat_interleave(self._aliases)[:, None].float()

    def taps(self, weight: Tensor) -> Tensor:
        return weight.reshape(-1, self._cos.shape[1]).T

    def weight(self, taps: Tensor) -> Tensor:
        return taps.T.reshape(self._shape).contiguous()

    def symbols_of(self, taps: Tensor) -> Tensor:
        """`(frequencies * groups, rows, aliases * columns)`, with the layer's singular values."""
        symbols = torch.complex(self._cos @ taps, self._sin @ taps) / self._step
        symbols = symbols.reshape(self._frequencies, self._aliases, self._groups, -1, self._columns)
        return symbols.permute(0, 2, 3, 1, 4).reshape(-1, self._rows, self._aliases * self._columns)

    def kernel_of(self, blocks: Tensor) -> Tensor:
        """The kernel nearest to symbols: the inverse transform, where there are taps."""
        shape = self._frequencies, self._groups, self._rows, self._aliases, self._columns
        symbols = blocks.reshape(shape).permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1)
        symbols = symbols * (self._counts * self._step / self._positions)
        return self._cos.T @ symbols.real + self._sin.T @ symbols.imag

    @property
    def _rows(self) -> int:
        return self._shape[0] // self._groups

    @property
    def _columns(self) -> int:
        return self._shape[1]

    @property
    def flops(self) -> float:
        """Of one round."""
        short, long = sorted((self._rows, self._aliases * self._columns))
        blocks = self._frequencies * self._groups
        transform = 4 * self._cos.numel() * math.prod(self._shape[:2])
        return float(4 * SVD_WORK * blocks * short**2 * long + 2 * transform)


# --- Algorithm 2 --------------------------------------------------------------------------


def algorithm_2(
    module: nn.Module,
    in_shape: Shape,
    limit: float,
    *,
    rate: float,
    averaged: bool = False,
    rounds: int = 60,
    steps: int = 5,
    iterations: int = 10,
) -> Outcome:
    """The paper's Algorithm 2, by `.backward()`: one singular value at a time.

    Every round finds sigma_1 and v_1 by PowerQR from a new random vector, and moves the weight
    by `steps` gradient steps towards `M v_1 = c u_1`; it ends when PowerQR sees no value above
    c. As printed, the loss is half the squared norm. As published (`averaged`), it is without
    the half and the mean over the width of the image, which divides the step by that width.
    """
    weight = movable(module).weight.requires_grad_()
    generator = torch.Generator().manual_seed(0)
    start = weight.detach().norm()
    num_matvecs = products = done = 0
    sigma = math.inf
    while True:
        v, sigma = _power_qr(module, in_shape, iterations, generator)
        num_matvecs += 2 * iterations
        products += 5 * iterations  # also f(0), and gradients in the weight for both
        if not sigma > limit or done == rounds:
            break
        with torch.no_grad():
            target = module(limit / sigma * v)
        for _ in range(steps):
            squares = (module(v) - target).square()
            loss = squares.sum((1, 2)).mean() if averaged else 0.5 * squares.sum()
            loss.backward()
            with torch.no_grad():
                weight -= rate * weight.grad
            weight.grad = None
        num_matvecs += 1 + 2 * steps
        products += 1 + 2 * steps
        done += 1
        if not bool(weight.detach().norm() < 1e3 * start):
            break  # it diverges
    flops = 2.0 * products * multiply_adds(module, in_shape)
    return Outcome(weight.detach(), num_matvecs, flops, done, converged=sigma <= limit)


def _power_qr(
    module: nn.Module, in_shape: Shape, iterations: int, generator: torch.Generator
) -> tuple[Tensor, float]:
    """The paper's Algorithm 1 for one vector, with its shift of 1."""
    x = torch.randn(1, *in_shape, generator=generator)
    length = math.nan
    for _ in range(iterations):
        x.requires_grad_()
        output = module(x) - module(torch.zeros_like(x))
        (0.5 * output.square().sum()).backward()
        with torch.no_grad():
            moved = x + x.grad
            length = float(moved.norm())
            x = moved / length
        module.zero_grad()
    return x, math.sqrt(max(0.0, length - 1)) if math.isfinite(length) else math.nan


BASELINES: dict[str, Method] = {
    "scale": scale,
    "FFT-clip, once": partial(fft_clip, rounds=1),
    "FFT-clip, 20 rounds": partial(fft_clip, rounds=20),
    "Algorithm 2, published": partial(algorithm_2, rate=0.35, averaged=True),
    "Algorithm 2, lambda 0.1": partial(algorithm_2, rate=0.1),
    "Algorithm 2, lambda 1": partial(algorithm_2, rate=1.0),
}
