"""One version at work: reads names of cases, and prints what each took."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

import spectralclip as sc


class Case(NamedTuple):
    """What is timed: a function of a fresh layer, which returns its result and its value."""

    build: Callable[[], nn.Module]
    run: Callable[[nn.Module], tuple[Any, float]]


def conv(c_in: int, c_out: int, mode: str = "zeros", stride: int = 1) -> Callable[[], nn.Module]:
    """A 3x3 convolution with norm about two."""

    def build() -> nn.Module:
        layer = nn.Conv2d(c_in, c_out, 3, stride, 1, padding_mode=mode, bias=False)
        nn.init.normal_(layer.weight, std=1 / (3 * c_in**0.5))
        return layer

    return build


def dense(n: int) -> Callable[[], nn.Module]:
    """A square dense layer."""
    return lambda: nn.Linear(n, n, bias=False)


def small_residual() -> nn.Module:
    """A network for audits: two convolutions with batch norms, a shortcut, a dense layer."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16))
            self.branch = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
            self.head = nn.Linear(16 * 64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.stem(x))
            x = torch.relu(x + self.branch(x))
            out: torch.Tensor = self.head(x.flatten(1))
            return out

    return Residual().eval()


def values(shape: tuple[int, ...], k: int) -> Callable[[nn.Module], tuple[Any, float]]:
    """`svds`, and its largest value."""

    def run(layer: nn.Module) -> tuple[Any, float]:
        found = sc.svds(layer, shape, k)
        return found, float(found.S[0])

    return run


def bounds(shape: tuple[int, ...], **options: Any) -> Callable[[nn.Module], tuple[Any, float]]:
    """`norm_bounds`, and its upper end."""

    def run(layer: nn.Module) -> tuple[Any, float]:
        found = sc.norm_bounds(layer, shape, **options)
        return found, found.upper

    return run


def clip(shape: tuple[int, ...]) -> Callable[[nn.Module], tuple[Any, float]]:
    """`clip_` to half of the norm, and the distance."""

    def run(layer: nn.Module) -> tuple[Any, float]:
        norm = float(torch.as_tensor(sc.spectral_norm(layer, shape)).detach())
        found = sc.clip_(layer, max_norm=norm / 2, in_shape=shape)
        return found, found.distance

    return run


def audit(model: nn.Module) -> tuple[Any, float]:
    """`audit`, and the upper end of the network's bound."""
    found = sc.audit(model, torch.zeros(1, 3, 8, 8))
    assert found.lipschitz is not None
    return found, found.lipschitz.upper


S16, S32 = (64, 16, 16), (64, 32, 32)
CASES = {
    "svds k=1, 64->64 zeros n16": Case(conv(64, 64), values(S16, 1)),
    "svds k=10, 64->64 zeros n32": Case(conv(64, 64), values(S32, 10)),
    "svds k=1, 64->64 reflect n16": Case(conv(64, 64, "reflect"), values(S16, 1)),
    "svds k=6, 64->128 stride 2 n32": Case(conv(64, 128, stride=2), values(S32, 6)),
    "svds k=6, dense 1024": Case(dense(1024), values((1024,), 6)),
    "norm_bounds, 64->64 zeros n16": Case(conv(64, 64), bounds(S16)),
    "norm_bounds, 64->64 circular n32": Case(conv(64, 64, "circular"), bounds(S32)),
    "norm_bounds, 32->32 reflect n16": Case(conv(32, 32, "reflect"), bounds((32, 16, 16))),
    "norm_bounds deterministic, 32->32 zeros n16": Case(
        conv(32, 32), bounds((32, 16, 16), deterministic=True)
    ),
    "norm_bounds, dense 1024": Case(dense(1024), bounds((1024,))),
    "clip_, 32->32 zeros n16": Case(conv(32, 32), clip((32, 16, 16))),
    "clip_, 32->32 circular n16": Case(conv(32, 32, "circular"), clip((32, 16, 16))),
    "clip_, 16->16 reflect n12": Case(conv(16, 16, "reflect"), clip((16, 12, 12))),
    "clip_, dense 512": Case(dense(512), clip((512,))),
    "audit, small residual network": Case(small_residual, audit),
}


def measure(name: str) -> dict[str, Any]:
    """Processor seconds of a case, its count of products where it has one, and its value."""
    case = CASES[name]
    torch.manual_seed(0)
    layer = case.build()
    began = time.process_time()
    result, value = case.run(layer)
    seconds = time.process_time() - began
    # Before 0.2 the count had another name.
    count = getattr(result, "num_matvecs", getattr(result, "applications", None))
    return {"seconds": seconds, "num_matvecs": count, "value": value}


def main() -> None:
    """Answer one line for each name that is read."""
    torch.set_num_threads(1)
    print(json.dumps({"file": sc.__file__, "version": sc.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(line.strip())), flush=True)


if __name__ == "__main__":
    main()
