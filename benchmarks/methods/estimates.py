"""What methods take for the norm of random convolutions: how far off, and in what time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn

from benchmarks.clipping.layers import true_norm
from benchmarks.common.session import Session

SIDE = 16
KERNELS = (3, 5, 7)
CHANNELS = (1, 4, 16, 64)
PADDINGS = ("zeros", "circular", "reflect", "replicate")
STRIDES = (1, 2)
SEEDS = 3  # filters of each setting; one of the widest, on which power methods take seconds
QUICK = {"kernels": (3,), "channels": (1, 4)}
Shape = tuple[int, ...]
Estimator = Callable[..., Any]


@dataclass(frozen=True)
class EstimateRow:
    """One method on the convolutions of one setting; None where it is not defined for them."""

    method: str
    kernel: int
    channels: int
    padding: str
    stride: int
    ratio: float | None = None  # to the true norm: mean over the filters
    error: float | None = None  # |ratio - 1|: largest over the filters
    seconds: float | None = None  # median
    reason: str = ""


def contestants() -> dict[str, Estimator]:
    """The estimates of all methods, their other forms, and ours."""
    from spectralclip import spectral_norm
    from spectralclip.methods import estimators

    def ours(module: nn.Module, in_shape: Shape, *, generator: torch.Generator) -> float:
        return float(spectral_norm(module, in_shape, generator=generator))

    found = estimators()
    found.pop("farnia", None)  # the same function as that of gouk
    if "delattre" in found:
        zeros = partial(found["delattre"], padding_form="zeros", iterations=3)
        found["delattre, zero form"] = zeros
    return {"spectral_norm": ours, **found}


def measure(session: Session) -> dict[str, Any]:
    """All settings; each filter is shown to all methods in turns, and another one begins."""
    rows: list[EstimateRow] = []
    kernels = QUICK["kernels"] if session.quick else KERNELS
    channels = QUICK["channels"] if session.quick else CHANNELS
    for count, kernel in product(channels, kernels):
        for padding, stride in product(PADDINGS, STRIDES):
            rows += _setting(session, kernel, count, padding, stride)
        session.say(f"estimates of {kernel}x{kernel}, {count} channels")
    return {"side": SIDE, "rows": [asdict(row) for row in rows]}


def _setting(
    session: Session, kernel: int, channels: int, padding: str, stride: int
) -> Iterator[EstimateRow]:
    methods = contestants()
    names, in_shape = list(methods), (channels, SIDE, SIDE)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    reasons: dict[str, str] = {}
    seeds = 1 if session.quick or channels == CHANNELS[-1] else SEEDS
    for seed in range(seeds):
        conv = _conv(kernel, channels, padding, stride, seed)
        truth = true_norm(conv, in_shape)
        for name in names[seed % len(names) :] + names[: seed % len(names)]:
            try:
                estimate, seconds = _timed(methods[name], conv, in_shape)
                found[name].append((estimate / truth, seconds))
            except Exception as error:  # refusals are part of the comparison
                reasons[name] = f"{type(error).__name__}: {error}"
    setting = (kernel, channels, padding, stride)
    for name in names:
        if found[name]:
            ratios, times = zip(*found[name], strict=True)
            error = max(abs(ratio - 1) for ratio in ratios)
            mean, median = statistics.mean(ratios), statistics.median(times)
            yield EstimateRow(name, *setting, mean, error, median)
        else:
            yield EstimateRow(name, *setting, reason=reasons.get(name, "no estimate"))


def _conv(kernel: int, channels: int, padding: str, stride: int, seed: int) -> nn.Conv2d:
    """A filter from a normal distribution, as the paper has it, scaled to a norm near 2."""
    conv = nn.utils.skip_init(
        nn.Conv2d, channels, channels, kernel, stride, kernel // 2, padding_mode=padding, bias=False
    )
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(conv.weight.shape, generator=generator)
    with torch.no_grad():
        conv.weight.copy_(weight / (kernel * channels**0.5))
    return conv.requires_grad_(False).eval()


def _timed(estimate: Estimator, conv: nn.Conv2d, in_shape: Shape) -> tuple[float, float]:
    generator = torch.Generator().manual_seed(7)
    began = time.perf_counter()
    found = estimate(conv, in_shape, generator=generator)
    seconds = time.perf_counter() - began
    if found is None or found is NotImplemented:
        raise ValueError("no estimate")
    return float(found), seconds
