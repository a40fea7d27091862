"""Functions that are not affine have the constants that they attain."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lipschitz_cases import spread
from torch import Tensor, nn

from oracle.slopes import Function, jacobian_norms, largest_slope
from spectralclip._lipschitz.bounds import lipschitz_bounds
from spectralclip._lipschitz.factors import adaptive_overlap, overlap

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "relu": (F.relu, 1.0),
    "relu6": (F.relu6, 1.0),
    "leaky": (nn.LeakyReLU(0.2), 1.0),
    "leaky, steep": (nn.LeakyReLU(3.0), 3.0),
    "elu": (F.elu, 1.0),
    "elu, steep": (nn.ELU(alpha=2.5), 2.5),
    "celu": (nn.CELU(alpha=3.0), 1.0),
    "selu": (F.selu, 1.0507009873554805 * 1.6732632423543772),
    "gelu": (F.gelu, 1.1289041451851548),
    "gelu, tanh": (nn.GELU("tanh"), 1.1289930686587718),
    "silu": (F.silu, 1.0998393201288669),
    "mish": (F.mish, 1.0884981612517279),
    "softplus": (F.softplus, 1.0),
    "softplus, sharp": (nn.Softplus(beta=5), 1.0),
    "sigmoid": (torch.sigmoid, 0.25),
    "tanh": (torch.tanh, 1.0),
    "hardswish": (F.hardswish, 1.5),
    "hardtanh": (nn.Hardtanh(-2, 3), 1.0),
    "hardsigmoid": (F.hardsigmoid, 1 / 6),
    "softsign": (F.softsign, 1.0),
    "logsigmoid": (F.logsigmoid, 1.0),
    "softshrink": (F.softshrink, 1.0),
    "tanhshrink": (F.tanhshrink, 1.0),
    "threshold": (nn.Threshold(0.5, 0.5), 1.0),
    "rrelu": (nn.RReLU(2.0, 4.0).eval(), 3.0),
    "abs": (torch.abs, 1.0),
    "clamp": (lambda x: x.clamp(-1, 2), 1.0),
    "clamp_min": (lambda x: x.clamp_min(0.3), 1.0),
    "sin": (torch.sin, 1.0),
    "cos": (torch.cos, 1.0),
    "atan": (torch.atan, 1.0),
    "asinh": (torch.asinh, 1.0),
    "erf": (torch.erf, 2 / math.sqrt(math.pi)),
    "pow of one": (lambda x: x**1, 1.0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_has_its_largest_slope(name: str) -> None:
    function, slope = ACTIVATIONS[name]
    bound = lipschitz_bounds(Function(function), torch.zeros(1, 3), local=False)
    assert bound.upper == pytest.approx(slope, rel=1e-12)
    grid = torch.linspace(-25, 25, 1_000_001, dtype=torch.float64)
    values = function(grid)
    steepest = float(((values[1:] - values[:-1]) / (grid[1:] - grid[:-1])).abs().max())
    assert slope * (1 - 1e-4) <= steepest <= bound.upper * (1 + 1e-8)


def test_prelu_takes_its_own_slopes() -> None:
    layer = nn.PReLU(3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.1, -2.5, 0.7]))
    assert lipschitz_bounds(layer, torch.zeros(1, 3, 4)).upper == pytest.approx(2.5)
    assert largest_slope(layer, (3, 4), 1000) <= 2.5 + 1e-9


@dataclass(frozen=True)
class Bent:
    function: Callable[[Tensor], Any]
    constant: float
    at: Tensor


def peak(*shape: int) -> Tensor:
    """Zeros, and one entry that is larger, in the middle."""
    x = torch.zeros(shape, dtype=torch.float64)
    x[tuple(size // 2 for size in shape)] = 1.0
    return x


GAMMA = torch.tensor([2.0, -2.0, 1.0, 1.5], dtype=torch.float64)


BENT = {
    "max pool 3, stride 2": Bent(lambda x: F.max_pool2d(x, 3, 2), 2.0, peak(1, 9, 9)),
    "max pool 3, stride 1": Bent(lambda x: F.max_pool2d(x, 3, 1), 3.0, peak(1, 9, 9)),
    "max pool 2": Bent(lambda x: F.max_pool2d(x, 2), 1.0, peak(1, 8, 8)),
    "max pool 1d": Bent(lambda x: F.max_pool1d(x, 5, 2, 2), math.sqrt(3), peak(1, 12)),
    "max pool, dilated": Bent(
        lambda x: F.max_pool1d(x, 3, 2, dilation=2), math.sqrt(3), peak(1, 16)
    ),
    "max pool, dilated against the stride": Bent(
        lambda x: F.max_pool1d(x, 4, 2, dilation=3), math.sqrt(2), peak(1, 24)
    ),
    "max pool with one window": Bent(lambda x: F.max_pool1d(x, 5, 1), 1.0, peak(1, 5)),
    "max pool 3d": Bent(lambda x: F.max_pool3d(x, 3, 2), math.sqrt(8), peak(1, 5, 5, 5)),
    "adaptive max pool": Bent(
        lambda x: F.adaptive_max_pool1d(x, 3), math.sqrt(2), peak(1, 7).roll(-1, 1)
    ),
    "adaptive max pool 2d": Bent(lambda x: F.adaptive_max_pool2d(x, (4, 1)), 1.0, peak(1, 8, 3)),
    "softmax": Bent(
        lambda x: x.softmax(1), 0.5, torch.tensor([0.0, 0, -60, -60], dtype=torch.float64)
    ),
    "softmin": Bent(
        lambda x: F.softmin(x, 1), 0.5, torch.tensor([0.0, 0, 60, 60], dtype=torch.float64)
    ),
    "softmax, temperature": Bent(
        lambda x: (x / 0.1).softmax(1), 5.0, torch.tensor([0.0, 0, -9], dtype=torch.float64)
    ),
    "log_softmax": Bent(
        lambda x: x.log_softmax(1), 2.0, torch.tensor([60.0, 0, 0, 0], dtype=torch.float64)
    ),
    "logsumexp": Bent(
        lambda x: x.logsumexp(1), 1.0, torch.tensor([60.0, 0, 0, 0], dtype=torch.float64)
    ),
    "amax": Bent(lambda x: x.amax((1, 2)), 1.0, spread(4, 5)),
    "max": Bent(lambda x: x.max(1).values, 1.0, spread(4, 5)),
    "min of all": Bent(lambda x: x.flatten(1).min(1, keepdim=True).values, 1.0, spread(4, 5)),
    "topk": Bent(lambda x: x.topk(2, 1).values, 1.0, spread(4, 5)),
    "sort": Bent(lambda x: x.sort(1).values, 1.0, spread(4, 5)),
    "median": Bent(lambda x: x.median(1).values, 1.0, spread(5)),
    "kthvalue": Bent(lambda x: x.kthvalue(2, 1).values, 1.0, spread(5)),
    "cummax": Bent(lambda x: x.cummax(1).values, 2.0, torch.tensor([1.0, 0, 0, 0]).double()),
    "norm": Bent(lambda x: x.norm(dim=1), 1.0, spread(5)),
    "norm, p = 1": Bent(lambda x: x.norm(p=1, dim=1), math.sqrt(5), spread(5)),
    "norm, p = 3": Bent(lambda x: x.norm(p=3, dim=1), 1.0, peak(5)),
    "norm, p = inf": Bent(lambda x: x.norm(p=math.inf, dim=1), 1.0, spread(5)),
    "std": Bent(lambda x: x.std(1), 1 / 2, spread(5)),
    "std, biased": Bent(lambda x: x.std(1, correction=0), 1 / math.sqrt(5), spread(5)),
    "layer norm": Bent(
        lambda x: F.layer_norm(x, (4,), GAMMA.to(x), eps=1e-4), 200.0, torch.ones(4).double()
    ),
    "group norm": Bent(
        lambda x: F.group_norm(x, 2, GAMMA.to(x), eps=1e-2), 20.0, torch.ones(4, 3).double()
    ),
    "instance norm": Bent(lambda x: F.instance_norm(x, eps=1e-2), 10.0, torch.ones(4, 3).double()),
    "rms norm": Bent(
        lambda x: F.rms_norm(x, (4,), GAMMA.to(x), eps=1e-4), 200.0, 1e-9 * torch.ones(4).double()
    ),
    "normalize": Bent(lambda x: F.normalize(x, eps=0.1), 10.0, 0.01 * torch.ones(4).double()),
    "dropout in evaluation": Bent(nn.Dropout(0.5), 1.0, spread(4)),
}


@pytest.mark.parametrize("name", BENT)
def test_a_bent_function_has_the_constant_that_it_attains(name: str) -> None:
    case = BENT[name]
    model, shape = Function(case.function).eval(), tuple(case.at.shape)
    bound = lipschitz_bounds(model, torch.zeros(1, *shape), local=False)
    assert bound.unbounded == ()
    assert bound.upper == pytest.approx(case.constant, rel=1e-6)
    assert float(jacobian_norms(model, case.at[None])[0]) == pytest.approx(case.constant, rel=1e-3)
    assert largest_slope(model, shape, 2000) <= bound.upper * (1 + 1e-7)


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_the_overlap_of_windows_is_what_counting_says(
    kernel: int, stride: int, dilation: int
) -> None:
    windows = 9
    counts = [0] * (windows * stride + kernel * dilation)
    for window in range(windows):
        for tap in range(kernel):
            counts[window * stride + tap * dilation] += 1
    assert overlap(kernel, stride, dilation, windows) == max(counts)


@pytest.mark.parametrize("source", [3, 7, 10])
@pytest.mark.parametrize("target", [1, 2, 3, 5, 9])
def test_the_overlap_of_adaptive_windows_is_what_torch_does(source: int, target: int) -> None:
    x = torch.zeros(1, source, source)
    x[0] = torch.eye(source)  # one peak a row
    pooled = F.adaptive_max_pool1d(x, target)
    assert adaptive_overlap(source, target) == int(pooled.sum(-1).max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rms_norm_without_eps_takes_that_of_the_precision_it_sums_in(dtype: torch.dtype) -> None:
    layer = nn.RMSNorm(8, dtype=dtype)
    tiny = torch.full((1, 8), 1e-7, dtype=dtype)
    tiny[0, ::2] *= -1
    with torch.no_grad():
        slope = float(layer(tiny).double().norm() / tiny.double().norm())
    bound = lipschitz_bounds(layer, torch.randn(1, 8).to(dtype), local=False)
    assert 0.5 * slope <= bound.upper
    assert slope <= bound.upper * 1.02
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert bound.upper == pytest.approx(torch.finfo(wide).eps ** -0.5)
