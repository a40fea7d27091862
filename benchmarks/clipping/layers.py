"""What the clipping benchmark runs on: layers with a bound, and the truth about them in float64.

Norms and distances are computed here by code that shares nothing with the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import oracle

Shape = tuple[int, ...]

FRACTIONS = (0.3, 0.5, 0.7, 0.95)
# sigma_1 of trained-like weights. PowerQR's shift of 1 is small beside its square: with weights
# as small as they are drawn, Algorithm 2 would see little of the spectrum in its 10 iterations.
TRAINED_NORM = 6.0


@dataclass(frozen=True)
class ClipCase:
    """A layer, its weights, and how far its norm is to be pulled down."""

    kind: str
    make: Callable[[], nn.Module]
    in_shape: Shape
    weights: str  # "gaussian" or "trained"
    fraction: float  # of sigma_1, that remains
    norm: float | None = None  # sigma_1 after scaling the weights; None leaves them as drawn
    large: bool = False
    family: str = ""  # of large layers: what the targets tell apart
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.weights}, {self.fraction:.2g} sigma_1"

    def build(self) -> Problem:
        """The layer, made from its seed alone, and the bound `c = fraction * sigma_1`."""
        generator = torch.Generator().manual_seed(self.seed)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(self.seed)
            module = self.make()
            conv = movable(module)
            draw = trained_like if self.weights == "trained" else gaussian
            conv.weight.copy_(draw(tuple(conv.weight.shape), generator))
            for norm in module.modules():
                if isinstance(norm, nn.BatchNorm2d):
                    norm.weight.uniform_(0.5, 1.5)
                    norm.running_var.uniform_(0.5, 1.5)
        module.eval().requires_grad_(False)
        sigma = true_norm(module, self.in_shape)
        if self.norm is not None:
            conv.weight.mul_(self.norm / sigma)
            sigma = self.norm
        return Problem(module, self.in_shape, sigma, self.fraction * sigma)


@dataclass(frozen=True)
class Problem:
    """A layer that was built, with its true norm and the bound that it is to get."""

    module: nn.Module
    in_shape: Shape
    sigma: float
    limit: float


def movable(module: nn.Module) -> nn.Module:
    """The layer whose weight moves: the module itself, or the first of a sequence."""
    return module[0] if isinstance(module, nn.Sequential) else module


def row_factors(module: nn.Module) -> Tensor | None:
    """What the following batch norm multiplies its output channels by, in float64."""
    if not isinstance(module, nn.Sequential):
        return None
    norm = module[1]
    return norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()


def multiply_adds(module: nn.Module, in_shape: Shape) -> int:
    """Of one vector through the layer, or back through it."""
    layer = movable(module)
    if isinstance(layer, nn.Linear):
        return layer.weight.numel()
    if isinstance(layer, nn.ConvTranspose2d):
        return layer.weight.numel() * math.prod(in_shape[1:])
    with torch.no_grad():
        outputs = layer(torch.zeros(1, *in_shape)).shape[2:]
    return layer.weight.numel() * math.prod(outputs)


# --- Weights ------------------------------------------------------------------------------


def gaussian(shape: Shape, generator: torch.Generator) -> Tensor:
    """Variance one over the fan: the norm is near 2."""
    return torch.randn(shape, generator=generator) / math.sqrt(math.prod(shape[1:]))


def trained_like(shape: Shape, generator: torch.Generator) -> Tensor:
    """A decaying spectrum: a few strong directions, each near one frequency, above noise.

    Each part is a rank-one matrix on the channels times a cosine on the taps, whose frequency
    is more often low than high, as in trained layers. Strengths fall like `r^-0.7` from 1;
    the noise has a norm of about 0.15.
    """
    rows, columns, *kernel = shape
    weight = torch.zeros(shape)
    places = [torch.arange(size) for size in kernel]
    for rank in range(1, 3 + min(rows, columns) // 4):
        left, right = (torch.randn(size, generator=generator) for size in (rows, columns))
        turns = 0.5 * torch.rand(len(kernel), generator=generator).square()
        phase = torch.rand((), generator=generator)
        for axis, (place, turn) in enumerate(zip(places, turns, strict=True)):
            phase = phase + (turn * place).reshape(-1, *[1] * (len(kernel) - 1 - axis))
        cosine = torch.cos(2 * math.pi * phase)
        cosine = cosine / torch.fft.fft2(cosine, (32, 32)).abs().max()
        outer = torch.outer(left / left.norm(), right / right.norm())
        weight += rank**-0.7 * outer[..., None, None] * cosine
    taps = math.prod(kernel)
    spread = math.sqrt(rows * taps) + math.sqrt(columns * taps)
    return weight + 0.15 / spread * torch.randn(shape, generator=generator)


# --- Truth --------------------------------------------------------------------------------


def true_norm(module: nn.Module, in_shape: Shape) -> float:
    """sigma_1 by the oracle from two random starts, to five digits at least.

    Raises:
        ArithmeticError: The residual does not prove that a singular value is as near.
    """
    dtype = next(module.parameters()).dtype
    return oracle.true_norm(module, in_shape, tol=2e-5, search=dtype, starts=2).value


class TrueDistance:
    """`||M(W') - M(W)||_F` in float64, from the layer with one channel.

    A convolution is a matrix of one-channel convolutions, one for each pair of channels, so
    that the inner product of the operators is one of the taps: `D[t, t']` is the Frobenius
    product of the one-channel layers that have the tap t, or t', alone.
    """

    def __init__(self, module: nn.Module, in_shape: Shape) -> None:
        self._gram = _tap_products(movable(module), in_shape)
        self._rows = row_factors(module)

    def __call__(self, before: Tensor, after: Tensor) -> float:
        change = after.detach().double() - before.detach().double()
        if self._rows is not None:
            change = change * self._rows.reshape(-1, *[1] * (change.ndim - 1))
        if self._gram is None:
            return float(change.norm())
        taps = change.reshape(-1, self._gram.shape[0])
        return math.sqrt(max(0.0, float(torch.sum((taps @ self._gram) * taps))))


def _tap_products(layer: nn.Module, in_shape: Shape) -> Tensor | None:
    if isinstance(layer, nn.Linear):
        return None
    taps = math.prod(layer.kernel_size)
    options = {
        "stride": layer.stride,
        "padding": layer.padding,
        "dilation": layer.dilation,
        "padding_mode": layer.padding_mode,
    }
    if isinstance(layer, nn.ConvTranspose2d):
        options["output_padding"] = layer.output_padding
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        one = type(layer)(1, taps, layer.kernel_size, bias=False, **options).double()
        one.weight.copy_(torch.eye(taps).reshape(one.weight.shape))
        positions = math.prod(in_shape[1:])
        units = torch.eye(positions, dtype=torch.float64).reshape(positions, 1, *in_shape[1:])
        images = one(units).transpose(0, 1).reshape(taps, -1)
    return images @ images.T


# --- The cases ----------------------------------------------------------------------------


def _conv(c_in: int, c_out: int, kernel: int = 3, **options: object) -> Callable[[], nn.Module]:
    options.setdefault("padding", kernel // 2)
    return lambda: nn.Conv2d(c_in, c_out, kernel, bias=False, **options)  # type: ignore[arg-type]


def _conv_bn(channels: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(_conv(channels, channels)(), nn.BatchNorm2d(channels))


KINDS: tuple[tuple[str, Callable[[], nn.Module], Shape], ...] = (
    ("16->16 n8", _conv(16, 16), (16, 8, 8)),
    ("32->32 n8", _conv(32, 32), (32, 8, 8)),
    ("8->16 circular n12", _conv(8, 16, padding_mode="circular"), (8, 12, 12)),
    ("16->16 reflect n8", _conv(16, 16, padding_mode="reflect"), (16, 8, 8)),
    ("8->8 replicate n12", _conv(8, 8, padding_mode="replicate"), (8, 12, 12)),
    ("8->8 5x5 n12", _conv(8, 8, 5), (8, 12, 12)),
    ("16->32 stride 2 n12", _conv(16, 32, stride=2), (16, 12, 12)),
    (
        "16->16 circular stride 2 n16",
        _conv(16, 16, stride=2, padding_mode="circular"),
        (16, 16, 16),
    ),
    (
        "16->16 5x5 replicate stride 2 n16",
        _conv(16, 16, 5, stride=2, padding_mode="replicate"),
        (16, 16, 16),
    ),
    ("16->32 groups 4 n8", _conv(16, 32, groups=4), (16, 8, 8)),
    ("16 depthwise n8", _conv(16, 16, groups=16), (16, 8, 8)),
    ("16->16 dilation 2 n8", _conv(16, 16, dilation=2, padding=2), (16, 8, 8)),
    (
        "16->8 transposed 4x4 stride 2 n8",
        lambda: nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1, bias=False),
        (16, 8, 8),
    ),
    ("16->32 1x1 n8", _conv(16, 32, 1), (16, 8, 8)),
    ("16->16 conv+BN n8", _conv_bn(16), (16, 8, 8)),
)


def small_cases(seed: int = 0) -> list[ClipCase]:
    """60 configurations: every kind with every fraction, half of them with either weights."""
    cases = []
    for row, (kind, make, in_shape) in enumerate(KINDS):
        for column, fraction in enumerate(FRACTIONS):
            weights = "trained" if (row + column) % 2 else "gaussian"
            norm = TRAINED_NORM if weights == "trained" else None
            drawn = seed + len(cases)
            cases.append(ClipCase(kind, make, in_shape, weights, fraction, norm, seed=drawn))
    return cases


def large_cases(seed: int = 100) -> list[ClipCase]:
    """Layers as networks have them: sigma_1 = 6 to c = 1, or random ones to 0.7 sigma_1."""
    zeros16 = ("64->64 n16", _conv(64, 64), (64, 16, 16), "64 channels")
    zeros8 = ("256->256 n8", _conv(256, 256), (256, 8, 8), "256 channels")
    circular = (
        "256->256 circular n8",
        _conv(256, 256, padding_mode="circular"),
        (256, 8, 8),
        "256 channels, circular",
    )
    reflect = (
        "64->128 reflect stride 2 n16",
        _conv(64, 128, stride=2, padding_mode="reflect"),
        (64, 16, 16),
        "reflect",
    )
    trained = (
        zeros16,
        ("64->64 n32", _conv(64, 64), (64, 32, 32), "64 channels"),
        ("64->64 conv+BN n16", _conv_bn(64), (64, 16, 16), "64 channels"),
        zeros8,
        circular,
        reflect,
        ("512->512 n4", _conv(512, 512), (512, 4, 4), "512 channels"),
    )
    chosen = [("trained", 1 / TRAINED_NORM, TRAINED_NORM, layer) for layer in trained]
    chosen += [("gaussian", 0.7, None, layer) for layer in (zeros16,)]
    return [
        ClipCase(kind, make, in_shape, weights, fraction, norm, True, family, seed + index)
        for index, (weights, fraction, norm, (kind, make, in_shape, family)) in enumerate(chosen)
    ]
