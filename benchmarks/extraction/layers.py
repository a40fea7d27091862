"""The layers that the extraction benchmark runs on, made from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class BenchmarkLayer:
    """A layer that is made anew from a seed, with Gaussian weights or as torch initializes it."""

    name: str
    make: Callable[[], nn.Module]
    in_shape: tuple[int, ...]
    kind: str = "resnet18"  # or "other", "repeated"
    large: bool = False  # too large for the slow methods at tight tolerances
    made: bool = False  # its weights are constructed: it has no default initialization

    def build(self, seed: int = 0, scale: float = 1.0) -> nn.Module:
        """Gaussian weights of variance `scale^2 / fan`: at scale 1 the norm is near 2.

        The seed alone decides on everything but the scale, so that singular values are
        proportional to it.
        """
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            layer = self.make()
            for module in layer.modules():
                if self.made and isinstance(module, nn.Conv2d):
                    module.weight.mul_(scale)
                elif isinstance(module, nn.Conv2d):
                    fan = module.weight[0].numel()
                    nn.init.normal_(module.weight, std=scale / math.sqrt(fan))
                elif isinstance(module, nn.BatchNorm2d):
                    nn.init.uniform_(module.weight, 0.5, 1.5)
                    nn.init.uniform_(module.running_var, 0.5, 1.5)
        return layer.eval().requires_grad_(False)

    def build_default(self, seed: int = 0) -> nn.Module:
        """As torch initializes it."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make().eval().requires_grad_(False)


def _conv(c_in: int, c_out: int, kernel: int = 3, **options: object) -> Callable[[], nn.Module]:
    options.setdefault("padding", kernel // 2)
    return lambda: nn.Conv2d(c_in, c_out, kernel, **options)  # type: ignore[arg-type]


def _conv_bn(channels: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
    )


def _plateau(channels: int, side: int) -> Callable[[], nn.Module]:
    """A zero-padded convolution after clipping every frequency: hundreds of close values.

    Its symbols are clipped at 0.6 of the largest value and cut back to 3x3; a few rounds of
    that leave a plateau of values within about a percent of each other.
    """

    def make() -> nn.Module:
        kernel = torch.randn(channels, channels, 3, 3).double() / math.sqrt(9 * channels)
        bound = None
        for _ in range(20):
            symbol = torch.fft.fft2(kernel, (side, side)).permute(2, 3, 0, 1)
            U, S, Vh = torch.linalg.svd(symbol, full_matrices=False)
            bound = 0.6 * float(S.max()) if bound is None else bound
            clipped = U @ (S.clamp_max(bound).to(U.dtype)[..., None] * Vh)
            kernel = torch.fft.ifft2(clipped.permute(2, 3, 0, 1)).real[..., :3, :3]
        conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        conv.weight = nn.Parameter(kernel.float())
        return conv

    return make


LAYERS = [
    BenchmarkLayer("3->64 n32", _conv(3, 64), (3, 32, 32)),
    BenchmarkLayer("64->64 n32", _conv(64, 64), (64, 32, 32)),
    BenchmarkLayer("64->128 stride 2 n32", _conv(64, 128, stride=2), (64, 32, 32)),
    BenchmarkLayer("64->128 1x1 stride 2 n32", _conv(64, 128, 1, stride=2), (64, 32, 32)),
    BenchmarkLayer("128->128 n16", _conv(128, 128), (128, 16, 16)),
    BenchmarkLayer("128->256 stride 2 n16", _conv(128, 256, stride=2), (128, 16, 16)),
    BenchmarkLayer("128->256 1x1 stride 2 n16", _conv(128, 256, 1, stride=2), (128, 16, 16)),
    BenchmarkLayer("256->256 n8", _conv(256, 256), (256, 8, 8)),
    BenchmarkLayer("256->512 stride 2 n8", _conv(256, 512, stride=2), (256, 8, 8)),
    BenchmarkLayer("256->512 1x1 stride 2 n8", _conv(256, 512, 1, stride=2), (256, 8, 8)),
    BenchmarkLayer("512->512 n4", _conv(512, 512), (512, 4, 4)),
    BenchmarkLayer(
        "256->256 reflect n8", _conv(256, 256, padding_mode="reflect"), (256, 8, 8), "other"
    ),
    BenchmarkLayer(
        "128->128 replicate n16", _conv(128, 128, padding_mode="replicate"), (128, 16, 16), "other"
    ),
    BenchmarkLayer("128->128 conv+BN n16", _conv_bn(128), (128, 16, 16), "other"),
    BenchmarkLayer(
        "64->64 circular n16", _conv(64, 64, padding_mode="circular"), (64, 16, 16), "repeated"
    ),
    BenchmarkLayer("64->64 plateau n16", _plateau(64, 16), (64, 16, 16), "repeated", made=True),
    BenchmarkLayer(
        "3->64 7x7 stride 2 n224", _conv(3, 64, 7, stride=2), (3, 224, 224), "other", large=True
    ),
]
