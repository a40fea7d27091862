"""Orthogonal layers, their methods, and the package that they are compared with."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from spectralclip import Method, attach
from spectralclip.methods.baselines._swap import SwapMethod
from spectralclip.methods.baselines.aol import AOL
from spectralclip.methods.baselines.cayley import Cayley
from spectralclip.methods.baselines.eco import ECO
from spectralclip.methods.baselines.lot import LOT
from spectralclip.methods.baselines.soc import SOC

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Some of its docstrings are not raw strings.
        from orthogonium.layers.conv.adaptiveSOC import fast_skew_ortho_conv as package_soc
        from orthogonium.layers.conv.AOL.aol import AOLReparametrizer
        from orthogonium.legacy.cayley_ortho_conv import Cayley as PackageCayley

    HAS_PACKAGE = True
except ImportError:
    HAS_PACKAGE = False
    package_soc = AOLReparametrizer = PackageCayley = None
needs_package = pytest.mark.skipif(not HAS_PACKAGE, reason="orthogonium and einops are missing")


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "square": (lambda: nn.Conv2d(3, 3, 3, padding=1), (3, 6, 6)),
    "fewer outputs": (lambda: nn.Conv2d(4, 2, 3, padding=1), (4, 9, 6)),
    "more outputs": (lambda: nn.Conv2d(2, 5, 3, padding=1, bias=False), (2, 5, 6)),
    "reflect": (lambda: nn.Conv2d(2, 2, 5, padding=2, padding_mode="reflect"), (2, 8, 8)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 6, 6)),
    "dilated": (lambda: nn.Conv1d(2, 3, 5, padding=4, dilation=2), (2, 8)),
    "even": (lambda: nn.Conv1d(2, 2, 4, padding="same", dilation=2), (2, 12)),
    "stride": (lambda: nn.Conv2d(2, 5, 3, stride=2, padding=1), (2, 8, 6)),
    "patches": (lambda: nn.Conv2d(2, 5, 3, stride=3), (2, 9, 6)),
    "mixed stride": (lambda: nn.Conv3d(1, 2, 3, padding=1, stride=(1, 2, 1)), (1, 3, 4, 4)),
    "dense": (lambda: nn.Linear(5, 3), (5,)),
    "pointwise": (lambda: nn.Conv2d(4, 6, 1, groups=2, stride=2), (4, 6, 6)),
}


def attached(method: Method, layer: nn.Module, in_shape: tuple[int, ...], **kw: Any) -> Any:
    """A model of this layer alone in float64, and the attachment."""
    model = nn.Sequential(layer.double())
    return model, attach(model, None, torch.zeros(1, *in_shape).double(), method=method, **kw)


def circular(channels: int = 3, **kw: Any) -> nn.Conv2d:
    """Its matrix is square, and a function of it is again that of a circular convolution."""
    return nn.Conv2d(
        channels, channels, 3, padding=1, padding_mode="circular", bias=False, **kw
    ).double()


METHODS: dict[str, Callable[[], SwapMethod]] = {
    "soc": SOC,
    "cayley": Cayley,
    "lot": lambda: LOT(iterations=40),
    "eco": ECO,
}


MARKS = {"cayley": needs_package}


over_methods = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, ())) for name in METHODS]
)


over_all = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, ())) for name in [*METHODS, "aol"]]
)


def method_of(name: str) -> SwapMethod:
    return AOL() if name == "aol" else METHODS[name]()
