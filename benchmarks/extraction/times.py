"""Time: the leading values against PowerQR and ARPACK, whole spectra against FFT + SVD."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor, nn

from benchmarks.common.session import DEFAULT_INITIALIZATION, Session
from benchmarks.extraction.layers import BenchmarkLayer
from benchmarks.extraction.published import (
    fast_iterations,
    iterations_needed,
    published_iterations,
    published_start,
)
from spectralclip import as_operator, singular_values, svds

REQUESTS = ((1, 1e-3), (5, 1e-2), (20, 1e-2))
SEARCH_LIMIT = {1: 800, 5: 300, 20: 300}  # iterations of PowerQR
TIMED_LIMIT = {1: 40, 5: 12, 20: 4}  # of which so many are timed: all cost the same
REPEATS = {1: 5, 5: 3, 20: 3}
LARGE_REPEATS = {1: 3, 5: 1}
SIGMA = 2.0
# At the default initialization, 20 values are timed on these alone.
MANY_AT_DEFAULT = ("3->64 n32", "128->256 stride 2 n16", "256->256 n8")


@dataclass(frozen=True)
class TimeRow:
    """One method on one layer."""

    layer: str
    initialization: str
    method: str
    k: int
    tol: float
    seconds: float  # median
    ratio: float  # to the median of svds
    iterations: int | None = None  # of PowerQR, until an oracle stops it
    iterations_timed: int | None = None
    lower_bound: bool = False  # PowerQR was not within the tolerance at its limit


@dataclass(frozen=True)
class WholeRow:
    """The whole spectrum of a circular convolution."""

    layer: str
    seconds: float
    fft_seconds: float
    ratio: float
    difference: float  # largest difference between the two results, over sigma_1


def measure_times(session: Session, layer: BenchmarkLayer) -> list[TimeRow]:
    rows = []
    gaussian = session.reference(layer)
    scale = SIGMA / gaussian[0]
    for initialization in ("sigma_1 = 2", "default"):
        if initialization == "default":
            if layer.made:
                reason = "its weights are constructed"
                session.skip("times", layer, "all", f"no default initialization: {reason}")
                continue
            module = layer.build_default()
            reference = session.reference(layer, DEFAULT_INITIALIZATION)
        else:
            module, reference = layer.build(0, scale), gaussian * scale
        for k, tol in REQUESTS:
            too_many = layer.name not in MANY_AT_DEFAULT and initialization == "default"
            if k > 5 and (layer.large or too_many):
                reason = "keeps the run short" if too_many else "too slow on the largest layer"
                session.skip("times", layer, f"all at {initialization}", reason, k, tol)
                continue
            if k > 1 and layer.large and initialization == "default":
                session.skip("times", layer, "all at default", "keeps the run short", k, tol)
                continue
            rows += _timed(layer, initialization, module, reference, k, tol)
    return rows


def _timed(
    layer: BenchmarkLayer,
    initialization: str,
    module: nn.Module,
    reference: np.ndarray,
    k: int,
    tol: float,
) -> list[TimeRow]:
    op = as_operator(module, layer.in_shape)
    start = published_start(k, layer.in_shape)
    rows = op.input_rows(start)
    limit = SEARCH_LIMIT[k] // (4 if layer.large and k > 1 else 1)
    needed = iterations_needed(op, rows, 1.0, reference, (tol,), limit)[tol]
    iterations = needed or limit
    timed = min(iterations, TIMED_LIMIT[k])
    trained = copy.deepcopy(module).requires_grad_(True)
    contestants: dict[str, Callable[[], object]] = {
        "svds": lambda: svds(module, layer.in_shape, k, tol=tol),
        "published PowerQR": lambda: published_iterations(trained, start, timed, 1.0),
        "PowerQR, our operator": lambda: fast_iterations(op, rows, timed, 1.0),
        "ARPACK": lambda: _arpack(module, layer.in_shape, k, tol),
        "ARPACK matched": lambda: _arpack(module, layer.in_shape, k, (2 * tol) ** 0.5),
    }
    medians = interleaved_medians(contestants, LARGE_REPEATS[k] if layer.large else REPEATS[k])
    result = []
    for method, seconds in medians.items():
        power = "PowerQR" in method
        seconds *= iterations / timed if power else 1
        result.append(
            TimeRow(
                layer.name,
                initialization,
                method,
                k,
                tol,
                seconds,
                seconds / medians["svds"],
                iterations if power else None,
                timed if power else None,
                power and needed is None,
            )
        )
    return result


def _arpack(module: nn.Module, in_shape: tuple[int, ...], k: int, tol: float) -> None:
    operator = as_operator(module, in_shape).to_scipy()
    start = np.random.default_rng(0).standard_normal(min(operator.shape)).astype(operator.dtype)
    try:
        scipy.sparse.linalg.svds(operator, k, tol=tol, v0=start, solver="arpack", maxiter=100)
    except scipy.sparse.linalg.ArpackNoConvergence:
        return  # its time until it gave up


def interleaved_medians(
    contestants: dict[str, Callable[[], object]], repeats: int
) -> dict[str, float]:
    """Median seconds; each round runs all once, and begins with another one."""
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for run in contestants.values():
        run()
    for repeat in range(repeats):
        shift = repeat % len(names)
        for name in names[shift:] + names[:shift]:
            began = time.perf_counter()
            contestants[name]()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in seconds.items()}


# (inputs, outputs, side, stride)
WHOLE = ((64, 64, 32, 1), (128, 128, 16, 1), (256, 256, 8, 1), (3, 64, 32, 1), (64, 128, 16, 2))


def measure_whole(session: Session) -> list[WholeRow]:
    rows = []
    for c_in, c_out, side, stride in WHOLE[3:4] if session.quick else WHOLE:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            conv = nn.Conv2d(
                c_in, c_out, 3, stride=stride, padding=1, padding_mode="circular", bias=False
            )
        conv.requires_grad_(False)
        in_shape = (c_in, side, side)
        contestants = {
            "ours": lambda conv=conv, in_shape=in_shape: singular_values(conv, in_shape),
            "fft": lambda conv=conv, side=side, stride=stride: fft_values(
                conv.weight, side, stride
            ),
        }
        medians = interleaved_medians(contestants, 3)
        ours, theirs = (run() for run in contestants.values())
        name = f"{c_in}->{c_out} n{side}" + (f" stride {stride}" if stride > 1 else "")
        rows.append(
            WholeRow(
                name,
                medians["ours"],
                medians["fft"],
                medians["fft"] / medians["ours"],
                float((ours - theirs).abs().max() / theirs[0]),
            )
        )
        session.say(f"whole spectrum of {name}")
    return rows


def fft_values(weight: Tensor, side: int, stride: int) -> Tensor:
    """The usual way: the symbol at every frequency, and the SVD of each.

    With a stride, the symbols of the frequencies that fall on the same one of the smaller
    grid stand side by side.
    """
    symbols = torch.fft.fft2(weight, (side, side))
    c_out, c_in = symbols.shape[:2]
    grid = side // stride
    symbols = symbols.reshape(c_out, c_in, stride, grid, stride, grid).permute(3, 5, 0, 1, 2, 4)
    blocks = symbols.reshape(grid, grid, c_out, c_in * stride**2) / stride
    return torch.linalg.svdvals(blocks).flatten().sort(descending=True).values
