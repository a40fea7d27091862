"""Layers and compositions, each small enough that its dense matrix costs nothing.

`CASES` is what the tests run over, `HALF_CASES` holds the few in half precision. `dense(case)` is
the matrix of a case's layer as the oracle has it, which shares no code with the library.
"""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from seeds import seeded
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from oracle import dense_matrix
from oracle.matrix import evaluate
from spectralclip._operators import Rows


@dataclass(frozen=True)
class Case:
    """A layer to test.

    Attributes:
        name: Unique, for pytest.
        make: Builds the same layer each time, and leaves the global RNG alone.
        in_shape: Shape of one input.
        tags: "warns" (torch itself warns in forward), "callable" (parts whose weights are out of
            reach), "no-pullback" (torch's own gradient leaves out a factor).
    """

    name: str
    make: Callable[[], Any]
    in_shape: tuple[int, ...]
    tags: frozenset[str] = frozenset()


def case(name: str, build: Callable[[], Any], *in_shape: int, tags: str = "") -> Case:
    """A case whose layer is drawn from a seed of its own, its batch norms as if trained."""

    def make() -> Any:
        with seeded(zlib.crc32(name.encode())):
            layer = build()
            for module in modules(layer):
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    train_batch_norm(module)
            return layer

    return Case(name, make, in_shape, frozenset(tags.split()))


def params(cases: list[Case]) -> list[Any]:
    """The cases for `pytest.mark.parametrize`; torch's own warnings are let through."""
    ignored = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
    return [pytest.param(c, id=c.name, marks=[ignored] * ("warns" in c.tags)) for c in cases]


def parts(layer: Any) -> list[Any]:
    return list(layer) if isinstance(layer, (list, tuple)) else [layer]


def modules(layer: Any) -> Iterator[nn.Module]:
    """All modules of a layer or a sequence of layers, each once."""
    seen = set()
    for part in parts(layer):
        for module in part.modules() if isinstance(part, nn.Module) else ():
            if id(module) not in seen:
                seen.add(id(module))
                yield module


def train_batch_norm(norm: Any) -> None:
    """Statistics and weights as training leaves them: uneven, and some weights negative."""
    if norm.running_mean is not None:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.3, 3.0)
        norm.num_batches_tracked.fill_(7)
    if norm.affine:
        with torch.no_grad():
            norm.weight.normal_(0.5, 1.0)
            norm.bias.normal_()


# --- The oracle ---------------------------------------------------------------------------


def reference(case: Case) -> Any:
    """The case's layer in float64 and in evaluation mode."""
    layer = case.make()
    for part in parts(layer):
        if isinstance(part, nn.Module):
            part.double().eval()
    return layer


@cache
def dense(case: Case) -> np.ndarray:
    """The matrix of a case's layer in float64, read-only."""
    matrix = dense_matrix(case.make(), case.in_shape)
    matrix.setflags(write=False)
    return matrix


def smaller_side(case: Case) -> int:
    """The smaller of the numbers of inputs and outputs, without the matrix."""
    inputs = torch.zeros(1, *case.in_shape, dtype=torch.float64)
    with torch.no_grad():
        return min(inputs.numel(), evaluate(reference(case), inputs).numel())


@cache
def dense_singular_values(case: Case) -> np.ndarray:
    return np.linalg.svd(dense(case), compute_uv=False)


# --- Layers that torch does not have ------------------------------------------------------


class LowRank(nn.Module):
    """Computes its weight in forward."""

    def __init__(self, n: int, rank: int, m: int) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(m, rank))
        self.right = nn.Parameter(torch.randn(rank, n))
        self.bias = nn.Parameter(torch.randn(m))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.left @ self.right, self.bias)


class Residual(nn.Module):
    """`x + f(x)`."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class ScaledConv(nn.Module):
    """A convolution inside a module of the user's own, between other arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.7))
        self.inner = nn.ModuleDict({"conv": nn.Conv2d(2, 3, 3, padding=1)})
        self.register_buffer("mask", (torch.rand(3, 1, 1) > 0.3).float())

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 - self.gain * self.inner["conv"](x.flip(-1)) * self.mask


class HalvedConv(nn.Conv2d):
    """A subclass that does not compute what its base does."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * super().forward(x)


class CausalConv(nn.Conv1d):
    """A subclass that changes the inner step alone."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(F.pad(input, (2, 0)), weight, bias)


class TiedPair(nn.Module):
    """One weight under two names: `W^T W x`."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(6, 4)
        self.up = nn.Linear(6, 4)
        self.up.weight = self.down.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.down(x), self.up.weight.T)


class SwapAxes(nn.Module):
    """Returns a view that is not contiguous."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Constant(nn.Module):
    """Affine, with a linear part of zero: its output does not depend on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(x.shape[0], 5)


def with_weight(layer: Any, weight: Tensor) -> Any:
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def linear_with_values(values: list[float], m: int, n: int) -> nn.Linear:
    """A dense layer with given singular values, the rest zero."""
    left, _ = torch.linalg.qr(torch.randn(m, len(values), dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(n, len(values), dtype=torch.float64))
    weight = (left * torch.tensor(values, dtype=torch.float64)) @ right.T
    return with_weight(nn.Linear(n, m).double(), weight)


def materialized(layer: nn.Module, *shape: int) -> nn.Module:
    layer(torch.zeros(1, *shape))
    return layer


def partly_frozen() -> nn.Module:
    layer = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    layer[0].weight.requires_grad_(False)
    return layer


def shared_twice() -> list[nn.Module]:
    conv = nn.Conv2d(3, 3, 3, padding=1)
    return [conv, nn.BatchNorm2d(3), conv]


def shared_weight() -> list[nn.Module]:
    """Two layers, one weight, at two input sizes."""
    first, second = nn.Conv1d(2, 2, 3), nn.Conv1d(2, 2, 3, stride=2)
    second.weight = first.weight
    return [first, second]


def affine_callable() -> Callable[[Tensor], Tensor]:
    weight, bias = torch.randn(3, 2, 3, 3), torch.randn(3)
    return lambda x: F.conv2d(x, weight.to(x.dtype), bias.to(x.dtype), stride=2) * 3 - 1


def cumulative_sum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def hooked() -> nn.Module:
    """A hook changes the output."""
    layer = nn.Conv2d(2, 3, 3)
    layer.register_forward_hook(lambda module, args, output: -2 * output)
    return layer


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Conv2d(2, 3, 3))


def mixed_modes() -> nn.Module:
    layer = nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    layer[0].eval()
    return layer


def conv2d_with(weight: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> nn.Module:
    layer = nn.Conv2d(*args, **kwargs)
    return with_weight(layer, weight(layer.weight))


# --- The cases ----------------------------------------------------------------------------

_DENSE = [
    case("linear-square", lambda: nn.Linear(12, 12), 12),
    case("linear-wide", lambda: nn.Linear(40, 7), 40),
    case("linear-tall", lambda: nn.Linear(5, 33), 5),
    case("linear-no-bias", lambda: nn.Linear(9, 14, bias=False), 9),
    case("linear-one-by-one", lambda: nn.Linear(1, 1), 1),
    case("linear-one-output", lambda: nn.Linear(8, 1), 8),
    case("linear-one-input", lambda: nn.Linear(1, 8), 1),
    case("linear-leading", lambda: nn.Linear(6, 4), 5, 6),
    case("linear-two-leading", lambda: nn.Linear(4, 5), 2, 3, 4),
    case("linear-float64", lambda: nn.Linear(10, 8).double(), 10),
    case("rows", lambda: Rows(nn.LSTM(7, 5).weight_ih_l0, slice(5, 10), "", ""), 7),
    case("rows-leading", lambda: Rows(nn.GRU(4, 9).weight_ih_l0, slice(18, 27), "", ""), 3, 4),
    case("identity", lambda: nn.Identity(), 3, 4),
    case("bilinear-pair", lambda: [nn.Linear(20, 3, bias=False), nn.Linear(3, 15)], 20),
    case("low-rank-in-forward", lambda: LowRank(14, 3, 9), 14),
    case("tied-pair", lambda: TiedPair(), 6),
    case("embedding", lambda: nn.Embedding(11, 6), 11),
    case("embedding-sequence", lambda: nn.Embedding(7, 4), 3, 7),
    # torch gives a padding row no gradient, though the output depends on it.
    case("embedding-padding-idx", lambda: nn.Embedding(7, 4, padding_idx=2), 7, tags="no-pullback"),
    case("embedding-max-norm", lambda: nn.Embedding(8, 5, max_norm=1.5), 8, tags="no-pullback"),
    case("embedding-linear", lambda: [nn.Embedding(9, 6), nn.Linear(6, 4)], 2, 9),
    case("embedding-bag-sum", lambda: nn.EmbeddingBag(8, 5, mode="sum"), 3, 8),
    case("embedding-bag-mean", lambda: nn.EmbeddingBag(8, 5, mode="mean"), 3, 8),
    # A bag leaves its padding row out, whatever that row holds.
    case(
        "embedding-bag-padding-idx",
        lambda: with_weight(nn.EmbeddingBag(8, 5, mode="sum", padding_idx=2), torch.randn(8, 5)),
        *(3, 8),
    ),
]

_CONV1D = [
    case("conv1d", lambda: nn.Conv1d(3, 4, 3), 3, 12),
    case("conv1d-padded", lambda: nn.Conv1d(2, 5, 5, padding=2), 2, 11),
    case("conv1d-stride", lambda: nn.Conv1d(3, 4, 4, stride=3, padding=1), 3, 14),
    case("conv1d-dilation", lambda: nn.Conv1d(2, 3, 3, dilation=3, padding=2), 2, 13),
    case("conv1d-groups", lambda: nn.Conv1d(4, 6, 3, groups=2), 4, 9),
    case("conv1d-depthwise", lambda: nn.Conv1d(4, 8, 3, groups=4, padding=1), 4, 8),
    case(
        "conv1d-circular-same",
        lambda: nn.Conv1d(3, 3, 5, padding="same", padding_mode="circular"),
        *(3, 10),
    ),
    case("conv1d-reflect", lambda: nn.Conv1d(2, 3, 7, padding=3, padding_mode="reflect"), 2, 6),
    case(
        "conv1d-replicate-stride",
        lambda: nn.Conv1d(2, 3, 3, padding=4, stride=2, padding_mode="replicate"),
        *(2, 7),
    ),
    case("conv1d-even-same", lambda: nn.Conv1d(2, 3, 4, padding="same"), 2, 9, tags="warns"),
    case("conv1d-causal-subclass", lambda: CausalConv(2, 3, 3), 2, 8),
    case("conv1d-float64", lambda: nn.Conv1d(2, 3, 3, padding=1).double(), 2, 8),
]

_CONV2D = [
    case("conv2d", lambda: nn.Conv2d(3, 4, 3), 3, 8, 8),
    case("conv2d-no-bias", lambda: nn.Conv2d(2, 3, 3, padding=1, bias=False), 2, 6, 6),
    case("conv2d-rectangular-input", lambda: nn.Conv2d(2, 3, 3, padding=1), 2, 5, 11),
    case("conv2d-rectangular-kernel", lambda: nn.Conv2d(2, 3, (1, 5), padding=(0, 2)), 2, 6, 7),
    case("conv2d-valid", lambda: nn.Conv2d(2, 3, 3, padding="valid"), 2, 7, 6),
    case("conv2d-same", lambda: nn.Conv2d(2, 3, (3, 5), padding="same"), 2, 6, 7),
    case("conv2d-same-dilated", lambda: nn.Conv2d(2, 2, 3, padding="same", dilation=2), 2, 7, 7),
    case(
        "conv2d-even-same", lambda: nn.Conv2d(2, 3, (2, 4), padding="same"), 2, 6, 7, tags="warns"
    ),
    case(
        "conv2d-even-same-circular",
        lambda: nn.Conv2d(2, 3, 4, padding="same", padding_mode="circular"),
        *(2, 5, 6),
    ),
    case(
        "conv2d-even-same-reflect",
        lambda: nn.Conv2d(2, 2, (4, 2), padding="same", padding_mode="reflect"),
        *(2, 6, 5),
    ),
    case("conv2d-even", lambda: nn.Conv2d(3, 2, 2, padding=1), 3, 6, 6),
    case("conv2d-stride", lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), 3, 8, 8),
    case("conv2d-stride-left-over", lambda: nn.Conv2d(2, 3, 3, stride=3), 2, 11, 10),
    case("conv2d-two-strides", lambda: nn.Conv2d(2, 3, 3, stride=(1, 3), padding=1), 2, 6, 9),
    case("conv2d-kernel-is-stride", lambda: nn.Conv2d(3, 6, 4, stride=4), 3, 12, 12),
    case("conv2d-stride-over-kernel", lambda: nn.Conv2d(2, 4, 2, stride=3), 2, 9, 9),
    case("conv2d-dilation", lambda: nn.Conv2d(2, 3, 3, dilation=(2, 3), padding=(1, 2)), 2, 8, 9),
    case(
        "conv2d-stride-dilation",
        lambda: nn.Conv2d(2, 3, 3, stride=2, dilation=2, padding=3),
        *(2, 9, 8),
    ),
    case("conv2d-groups", lambda: nn.Conv2d(6, 4, 3, groups=2, padding=1), 6, 5, 5),
    case("conv2d-depthwise", lambda: nn.Conv2d(5, 5, 3, groups=5, padding=1), 5, 6, 6),
    case(
        "conv2d-depthwise-multiplier",
        lambda: nn.Conv2d(3, 6, 3, groups=3, stride=2, padding=1, padding_mode="circular"),
        *(3, 6, 8),
    ),
    case(
        "conv2d-circular", lambda: nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular"), 3, 6, 6
    ),
    case(
        "conv2d-circular-wide",
        lambda: nn.Conv2d(3, 5, 5, padding=2, padding_mode="circular"),
        *(3, 5, 7),
    ),
    case(
        "conv2d-circular-stride",
        lambda: nn.Conv2d(2, 4, 3, padding=1, stride=2, padding_mode="circular"),
        *(2, 8, 6),
    ),
    case(
        "conv2d-circular-dilation",
        lambda: nn.Conv2d(2, 3, 3, padding=2, dilation=2, padding_mode="circular"),
        *(2, 7, 6),
    ),
    case(
        "conv2d-circular-groups",
        lambda: nn.Conv2d(4, 4, 3, padding=1, groups=2, padding_mode="circular"),
        *(4, 5, 5),
    ),
    # Circular padding of the whole axis: each input is seen three times.
    case(
        "conv2d-circular-full-axis",
        lambda: nn.Conv2d(2, 2, 3, padding=3, padding_mode="circular"),
        *(2, 3, 3),
    ),
    # Circular padding, but not of the size that keeps the shape.
    case(
        "conv2d-circular-under-padded",
        lambda: nn.Conv2d(2, 3, 5, padding=1, padding_mode="circular"),
        *(2, 6, 6),
    ),
    case("conv2d-reflect", lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), 3, 7, 6),
    case(
        "conv2d-reflect-stride",
        lambda: nn.Conv2d(2, 3, 5, padding=(2, 3), stride=2, padding_mode="reflect"),
        *(2, 7, 8),
    ),
    case(
        "conv2d-replicate",
        lambda: nn.Conv2d(2, 4, 3, padding=2, dilation=2, padding_mode="replicate"),
        *(2, 6, 6),
    ),
    case("conv2d-one-axis-padded", lambda: nn.Conv2d(2, 3, 3, padding=(0, 1)), 2, 6, 6),
    case("conv2d-over-padded", lambda: nn.Conv2d(2, 3, 2, padding=3), 2, 4, 5),
    case("conv2d-1x1", lambda: nn.Conv2d(6, 4, 1), 6, 5, 5),
    case("conv2d-1x1-padded", lambda: nn.Conv2d(3, 4, 1, padding=1), 3, 4, 4),
    case("conv2d-1x1-stride", lambda: nn.Conv2d(4, 5, 1, stride=2), 4, 6, 7),
    case("conv2d-1x1-groups", lambda: nn.Conv2d(6, 4, 1, groups=2), 6, 4, 4),
    case("conv2d-on-one-pixel", lambda: nn.Conv2d(3, 4, 3, padding=1), 3, 1, 1),
    case("conv2d-kernel-is-input", lambda: nn.Conv2d(3, 7, 5), 3, 5, 5),
    case("conv2d-large-weight", lambda: conv2d_with(lambda w: 1e4 * w, 2, 3, 3), 2, 6, 6),
    case("conv2d-small-weight", lambda: conv2d_with(lambda w: 1e-6 * w, 2, 3, 3), 2, 6, 6),
    case("conv2d-float64", lambda: nn.Conv2d(3, 4, 3, padding=1).double(), 3, 6, 6),
    case(
        "conv2d-reflect-float64",
        lambda: nn.Conv2d(2, 4, 3, padding=1, stride=2, padding_mode="reflect").double(),
        *(2, 7, 7),
    ),
    case("conv2d-subclass", lambda: HalvedConv(2, 3, 3), 2, 6, 6),
    case("conv2d-hooked", hooked, 2, 6, 6),
    case("conv2d-in-a-module", lambda: ScaledConv(), 2, 6, 6),
    case(
        "conv2d-channels-last",
        lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
        *(3, 6, 6),
    ),
]

_CONV3D = [
    case("conv3d", lambda: nn.Conv3d(2, 3, 3, padding=1), 2, 4, 4, 5),
    case(
        "conv3d-stride-groups", lambda: nn.Conv3d(2, 4, (1, 3, 2), stride=2, groups=2), 2, 4, 5, 6
    ),
    case(
        "conv3d-circular",
        lambda: nn.Conv3d(2, 2, 3, padding=1, padding_mode="circular"),
        2,
        3,
        4,
        3,
    ),
    case(
        "conv3d-reflect", lambda: nn.Conv3d(1, 3, 3, padding=1, padding_mode="reflect"), 1, 4, 5, 4
    ),
    case(
        "conv3d-replicate",
        lambda: nn.Conv3d(1, 2, 3, padding=2, stride=2, dilation=2, padding_mode="replicate"),
        *(1, 5, 4, 6),
    ),
    case("conv3d-same", lambda: nn.Conv3d(2, 2, (1, 3, 5), padding="same"), 2, 3, 4, 4),
]

_TRANSPOSED = [
    case("transposed1d", lambda: nn.ConvTranspose1d(3, 2, 4, stride=2, padding=1), 3, 7),
    case("transposed1d-dilated", lambda: nn.ConvTranspose1d(2, 3, 3, dilation=3), 2, 6),
    case("transposed2d", lambda: nn.ConvTranspose2d(3, 4, 3), 3, 5, 5),
    case("transposed2d-stride", lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1), 4, 4, 5),
    case(
        "transposed2d-output-padding",
        lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1),
        *(4, 4, 4),
    ),
    case(
        "transposed2d-groups",
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, output_padding=(0, 1)),
        *(4, 3, 4),
    ),
    case(
        "transposed2d-depthwise", lambda: nn.ConvTranspose2d(3, 3, 2, stride=2, groups=3), 3, 4, 4
    ),
    # Dilation over stride admits an output padding of a stride or more.
    case(
        "transposed2d-dilation-over-stride",
        lambda: nn.ConvTranspose2d(2, 3, 3, stride=1, dilation=3, padding=1, output_padding=2),
        *(2, 4, 5),
    ),
    case(
        "transposed2d-output-padding-over-stride",
        lambda: nn.ConvTranspose2d(2, 2, 2, stride=2, dilation=4, output_padding=3),
        *(2, 3, 4),
    ),
    case("transposed2d-1x1", lambda: nn.ConvTranspose2d(4, 3, 1), 4, 4, 4),
    case("transposed2d-stride-over-kernel", lambda: nn.ConvTranspose2d(2, 2, 2, stride=3), 2, 3, 3),
    case("transposed2d-float64", lambda: nn.ConvTranspose2d(2, 3, 3).double(), 2, 5, 4),
    case("transposed3d", lambda: nn.ConvTranspose3d(2, 3, 2, stride=2, padding=1), 2, 3, 3, 4),
]

_FIXED = [
    case("batch-norm1d", lambda: nn.BatchNorm1d(9), 9),
    case("batch-norm1d-sequence", lambda: nn.BatchNorm1d(4), 4, 6),
    case("batch-norm2d", lambda: nn.BatchNorm2d(5), 5, 4, 3),
    case("batch-norm2d-not-affine", lambda: nn.BatchNorm2d(4, affine=False), 4, 3, 3),
    case("batch-norm2d-eps", lambda: nn.BatchNorm2d(4, eps=0.5), 4, 3, 3),
    case("batch-norm3d", lambda: nn.BatchNorm3d(3), 3, 2, 3, 2),
    case("batch-norm2d-float64", lambda: nn.BatchNorm2d(3).double(), 3, 4, 4),
    case("instance-norm-tracked", lambda: nn.InstanceNorm2d(3, track_running_stats=True), 3, 4, 4),
    case("average-pool1d", lambda: nn.AvgPool1d(3, stride=2, padding=1), 2, 9),
    case("average-pool2d", lambda: nn.AvgPool2d(2), 3, 6, 6),
    case("average-pool2d-padded", lambda: nn.AvgPool2d(3, stride=2, padding=1), 2, 7, 6),
    case(
        "average-pool2d-padding-not-counted",
        lambda: nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        *(2, 7, 6),
    ),
    case("average-pool2d-ceil", lambda: nn.AvgPool2d(3, stride=2, ceil_mode=True), 2, 8, 6),
    case("average-pool3d", lambda: nn.AvgPool3d(2), 1, 4, 4, 6),
    case("adaptive-pool2d", lambda: nn.AdaptiveAvgPool2d((3, 2)), 2, 7, 5),
    case("global-pool2d", lambda: nn.AdaptiveAvgPool2d(1), 3, 5, 5),
    case("flatten", lambda: nn.Flatten(), 2, 3, 4),
    case("unflatten", lambda: nn.Unflatten(1, (2, 3)), 6, 2),
    case("upsample-nearest", lambda: nn.Upsample(scale_factor=2, mode="nearest"), 2, 4, 3),
    case(
        "upsample-bilinear",
        lambda: nn.Upsample(size=(7, 5), mode="bilinear", align_corners=False),
        *(2, 4, 3),
    ),
    case("pixel-shuffle", lambda: nn.PixelShuffle(2), 8, 3, 4),
    case("pixel-unshuffle", lambda: nn.PixelUnshuffle(2), 2, 4, 6),
    case("fold", lambda: nn.Fold((5, 5), 3), 18, 9),
    case("unfold", lambda: nn.Unfold(3, padding=1), 2, 4, 4),
    case("zero-pad", lambda: nn.ZeroPad2d((1, 2, 0, 3)), 2, 3, 4),
    case("swap-axes", lambda: SwapAxes(), 4, 6),
]

_REPARAMETRIZED = [
    case("weight-norm", lambda: parametrizations.weight_norm(nn.Conv2d(2, 4, 3)), 2, 6, 6),
    case("weight-norm-linear", lambda: parametrizations.weight_norm(nn.Linear(9, 5)), 9),
    case("orthogonal", lambda: parametrizations.orthogonal(nn.Linear(8, 8)), 8),
    case("orthogonal-wide", lambda: parametrizations.orthogonal(nn.Linear(12, 5)), 12),
    case("spectral-norm", lambda: parametrizations.spectral_norm(nn.Conv2d(2, 4, 3)), 2, 6, 6),
    case("spectral-norm-linear", lambda: parametrizations.spectral_norm(nn.Linear(9, 6)), 9),
    case("old-weight-norm", old_weight_norm, 2, 6, 6),
    case("old-spectral-norm", lambda: nn.utils.spectral_norm(nn.Linear(7, 9)), 7),
    case(
        "weight-norm-batch-norm",
        lambda: [parametrizations.weight_norm(nn.Conv2d(2, 4, 3)), nn.BatchNorm2d(4)],
        *(2, 6, 6),
    ),
    case("lazy-linear", lambda: materialized(nn.LazyLinear(5), 8), 8),
    case("lazy-conv2d", lambda: materialized(nn.LazyConv2d(4, 3), 2, 6, 6), 2, 6, 6),
]

_COMPOSED = [
    case("conv-bn", lambda: [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)], 3, 6, 6),
    case(
        "conv-bn-groups",
        lambda: [nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6)],
        *(4, 6, 6),
    ),
    case("bn-conv", lambda: [nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1)], 3, 6, 6),
    case("bn-conv-groups", lambda: [nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, groups=2)], 4, 6, 6),
    case("bn-conv-bn", lambda: [nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)], 3, 6, 6),
    case(
        "conv-bn-conv",
        lambda: [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 3, padding=1)],
        *(2, 7, 6),
    ),
    case(
        "conv-reflect-bn",
        lambda: (
            nn.Conv2d(2, 4, 3, stride=2, padding=1, padding_mode="reflect"),
            nn.BatchNorm2d(4),
        ),
        *(2, 8, 8),
    ),
    case("conv1d-bn", lambda: [nn.Conv1d(3, 4, 3, stride=2), nn.BatchNorm1d(4)], 3, 11),
    case("conv3d-bn", lambda: [nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3)], 2, 3, 4, 3),
    case(
        "transposed-bn", lambda: [nn.ConvTranspose2d(3, 4, 2, stride=2), nn.BatchNorm2d(4)], 3, 4, 4
    ),
    case("bn-transposed", lambda: [nn.BatchNorm2d(3), nn.ConvTranspose2d(3, 4, 3)], 3, 4, 4),
    case("linear-bn", lambda: [nn.Linear(8, 6), nn.BatchNorm1d(6)], 8),
    case("bn-linear", lambda: [nn.BatchNorm1d(8), nn.Linear(8, 6)], 8),
    # The batch norm's channels are the leading axis here, not the features.
    case("linear-leading-bn", lambda: [nn.Linear(5, 5), nn.BatchNorm1d(4)], 4, 5),
    case("bn-linear-leading", lambda: [nn.BatchNorm1d(4), nn.Linear(4, 6)], 4, 4),
    case("bn-bn", lambda: [nn.BatchNorm2d(3), nn.BatchNorm2d(3)], 3, 4, 4),
    case(
        "conv-bn-float64",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).double(),
        2,
        6,
        6,
    ),
    case(
        "conv-flatten-linear",
        lambda: [nn.Conv2d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(75, 6)],
        *(2, 5, 5),
    ),
    case(
        "linear-unflatten-conv",
        lambda: [nn.Linear(6, 48), nn.Unflatten(1, (3, 4, 4)), nn.Conv2d(3, 4, 3, padding=1)],
        6,
    ),
    case(
        "conv-pool-flatten-linear",
        lambda: [
            nn.Conv2d(2, 3, 3, padding=1),
            nn.AvgPool2d(2),
            nn.BatchNorm2d(3),
            nn.Flatten(),
            nn.Linear(27, 5),
        ],
        *(2, 6, 6),
    ),
    case("conv-swap-linear", lambda: [nn.Conv1d(3, 5, 3), SwapAxes(), nn.Linear(5, 4)], 3, 8),
    case("conv1d-linear-on-length", lambda: [nn.Conv1d(3, 4, 3), nn.Linear(6, 5)], 3, 8),
    case(
        "conv-identity-dropout-bn",
        lambda: [nn.Conv2d(2, 3, 3), nn.Identity(), nn.Dropout2d(), nn.BatchNorm2d(3)],
        2,
        6,
        6,
    ),
    case("pool-conv", lambda: [nn.AvgPool2d(2), nn.Conv2d(2, 4, 3, padding=1)], 2, 8, 8),
    case(
        "upsample-conv",
        lambda: [nn.Upsample(scale_factor=2), nn.Conv2d(2, 3, 3, padding=1)],
        2,
        4,
        4,
    ),
    case(
        "conv-pixel-shuffle", lambda: [nn.Conv2d(2, 8, 3, padding=1), nn.PixelShuffle(2)], 2, 4, 5
    ),
    case("zero-pad-conv", lambda: [nn.ZeroPad2d((1, 2, 3, 0)), nn.Conv2d(2, 3, 3)], 2, 5, 5),
    case("reflection-pad-conv", lambda: [nn.ReflectionPad2d(2), nn.Conv2d(2, 3, 5)], 2, 5, 6),
    case("sequential", lambda: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 7)), 6),
    case(
        "sequential-nested",
        lambda: nn.Sequential(
            nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)),
            nn.Sequential(nn.Sequential(nn.Conv2d(3, 2, 1))),
        ),
        *(2, 6, 6),
    ),
    case(
        "list-of-sequentials",
        lambda: [nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)), nn.Linear(4, 6)],
        6,
    ),
    case("residual", lambda: Residual(nn.Conv2d(3, 3, 3, padding=1)), 3, 5, 5),
    case(
        "residual-bn-in-sequence",
        lambda: [
            Residual(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2))),
            nn.AvgPool2d(2),
        ],
        *(2, 6, 6),
    ),
    case("callable", affine_callable, 2, 7, 7, tags="callable"),
    case("callable-without-weights", lambda: cumulative_sum, 12, tags="callable"),
    case("callable-then-linear", lambda: [cumulative_sum, nn.Linear(7, 5)], 7, tags="callable"),
    case("dropout-linear", lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 6)), 8),
    case(
        "dropout-linear-evaluating",
        lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 6)).eval(),
        8,
    ),
    case("mixed-modes", mixed_modes, 2, 6, 6),
    case("partly-frozen", partly_frozen, 2, 6, 6),
    case("shared-module-twice", shared_twice, 3, 5, 5),
    case("shared-weight-two-sizes", shared_weight, 2, 11),
]

_SPECTRA = [
    case("zero-linear", lambda: with_weight(nn.Linear(6, 4), torch.zeros(4, 6)), 6),
    case("zero-conv2d", lambda: conv2d_with(torch.zeros_like, 2, 3, 3, padding=1), 2, 4, 4),
    case("zero-float64", lambda: with_weight(nn.Linear(4, 6).double(), torch.zeros(6, 4)), 4),
    case("constant", lambda: Constant(), 4),
    case("rank-one", lambda: linear_with_values([3.0], 12, 9).float(), 9),
    case("rank-two-float64", lambda: linear_with_values([2.0, 0.5], 9, 12), 12),
    case(
        "zero-rows",
        lambda: conv2d_with(
            lambda w: w * torch.tensor([1.0, 0, 0, 1])[:, None, None, None], 2, 4, 3
        ),
        2,
        6,
        6,
    ),
    case(
        "dead-input-channel",
        lambda: conv2d_with(
            lambda w: w * torch.tensor([1.0, 0, 1])[:, None, None], 3, 4, 3, padding=1
        ),
        3,
        5,
        5,
    ),
    case(
        "one-delta",
        lambda: conv2d_with(
            lambda w: F.pad(torch.ones(1, 1, 1, 1), (1, 1, 1, 1)), 1, 1, 3, padding=1
        ),
        1,
        5,
        5,
    ),
    case(
        "repeated-values", lambda: linear_with_values([2.0, 2.0, 2.0, 1.0, 1.0], 10, 8).float(), 8
    ),
    case(
        "repeated-1x1",
        lambda: conv2d_with(
            lambda w: (
                torch.eye(4)[:, :, None, None] * torch.tensor([3.0, 2, 1, 0])[:, None, None, None]
            ),
            4,
            4,
            1,
        ),
        4,
        4,
        4,
    ),
    case(
        "clustered",
        lambda: linear_with_values([1.0, 0.9999, 0.9998, 0.9997, 0.9996, 0.5, 0.1], 30, 25).float(),
        25,
    ),
    case(
        "clustered-float64",
        lambda: linear_with_values([1 - 1e-6 * i for i in range(8)], 20, 30),
        30,
    ),
    case("graded", lambda: linear_with_values([10.0**-i for i in range(12)], 16, 12), 12),
    case("separated", lambda: linear_with_values([4.0, 2.0, 1.0, 0.5], 20, 16).float(), 16),
    case(
        "hadamard",
        lambda: with_weight(
            nn.Linear(8, 8),
            torch.tensor(
                np.array([[(-1) ** bin(i & j).count("1") for i in range(8)] for j in range(8)])
            ),
        ),
        8,
    ),
    case(
        "smoothing",
        lambda: conv2d_with(
            lambda w: torch.full_like(w, 1 / 9), 1, 1, 3, padding=1, padding_mode="circular"
        ),
        1,
        12,
        12,
    ),
    case("medium-dense", lambda: nn.Linear(300, 200), 300),
    case("medium-conv", lambda: nn.Conv2d(8, 8, 3, padding=1), 8, 8, 8),
    case(
        "medium-conv-bn",
        lambda: [
            nn.Conv2d(6, 8, 3, stride=2, padding=1, padding_mode="reflect"),
            nn.BatchNorm2d(8),
        ],
        6,
        12,
        12,
    ),
]

CASES: list[Case] = [
    *(_DENSE + _CONV1D + _CONV2D + _CONV3D + _TRANSPOSED),
    *(_FIXED + _REPARAMETRIZED + _COMPOSED + _SPECTRA),
]


def _half(name: str, build: Callable[[], Any], *in_shape: int) -> list[Case]:
    def cast(dtype: torch.dtype) -> Callable[[], Any]:
        return lambda: build().to(dtype)

    return [
        case(f"{name}-{short}", cast(dtype), *in_shape)
        for short, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16))
    ]


HALF_CASES: list[Case] = [
    *_half("linear", lambda: nn.Linear(12, 9), 12),
    *_half("conv2d", lambda: nn.Conv2d(3, 4, 3, padding=1), 3, 6, 6),
    *_half(
        "conv2d-reflect", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), 2, 6, 6
    ),
    *_half("conv-bn", lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), 2, 6, 6),
    *_half("weight-norm", lambda: parametrizations.weight_norm(nn.Conv2d(2, 4, 3)), 2, 6, 6),
    *_half("low-rank-in-forward", lambda: LowRank(10, 3, 8), 10),
    *_half("residual", lambda: Residual(nn.Conv2d(2, 2, 3, padding=1)), 2, 5, 5),
]


def own_parameters(layer: Any) -> dict[str, Tensor]:
    return {
        f"{index}.{name}": parameter
        for index, part in enumerate(parts(layer))
        if isinstance(part, nn.Module)
        for name, parameter in part.named_parameters()
    }


def double(layer: Any) -> Any:
    """A copy in float64 and evaluation, for the oracle."""
    twin = copy.deepcopy(layer)
    for module in modules(twin):
        module.double().eval()
    return twin
