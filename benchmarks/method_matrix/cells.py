"""What the method matrix runs over: small layers of all kinds, and the truth about their norms.

Norms come from dense matrices in float64, by code that shares nothing with the library.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

import oracle

Shape = tuple[int, ...]

SIDE = 6
START_NORM = 3.0  # of each layer before a method comes, where its bound is 1
PADDINGS = ("zeros", "circular", "reflect", "replicate")
STRIDES = (1, 2, 3)
# A dilated 5x5 kernel would be larger than the image, and 1x1 kernels have no taps to spread.
KERNELS = ((1, 1), (3, 1), (5, 1), (3, 2))


@dataclass(frozen=True)
class Cell:
    """A layer, or a convolution with the following batch norm.

    Attributes:
        name: As it stands in the page.
        axes: Its place in the matrix.
        build: Makes the modules, with the weights that torch draws.
        in_shape: Of one input.
    """

    name: str
    axes: dict[str, Any]
    build: Callable[[], list[nn.Module]]
    in_shape: Shape

    def modules(self) -> list[nn.Module]:
        """The modules, the same each time, as one map of norm `START_NORM`."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(zlib.crc32(self.name.encode()))
            modules = self.build()
            for module in modules:
                if isinstance(module, nn.BatchNorm2d):
                    module.weight.uniform_(0.5, 1.5)
                    module.running_var.uniform_(0.5, 1.5)
            modules[0].weight.mul_(START_NORM / true_norm(modules, self.in_shape))
        return modules


def true_norm(modules: Iterable[nn.Module], in_shape: Shape) -> float:
    """Of the composition as it is in evaluation; NaN where a weight is not finite."""
    return oracle.true_norm(list(modules), in_shape).value


def kernel_norm(module: nn.Module) -> float | None:
    """Of the kernel as a matrix with a row for each output channel."""
    weight: Any = module.weight
    if weight.ndim < 2:
        return None
    kernel = weight.detach().double().numpy()
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        kernel = kernel.swapaxes(0, 1)
    return float(np.linalg.norm(kernel.reshape(kernel.shape[0], -1), 2))


def _conv2d(
    padding: str, stride: int, kernel: int, dilation: int, groups: int, width: int | None = None
) -> Callable[[], nn.Module]:
    margin = dilation * (kernel // 2) if width is None else width
    return lambda: nn.Conv2d(
        4, 4, kernel, stride, margin, dilation, groups, bias=False, padding_mode=padding
    )


def _axes(**given: Any) -> dict[str, Any]:
    usual = {"kind": "conv2d", "padding": "zeros", "stride": 1, "kernel": 3, "groups": 1}
    return {**usual, "dilation": 1, **given}


def _convolutions() -> Iterator[Cell]:
    """The whole product of paddings, strides, kernels, dilations and groups."""
    for (kernel, dilation), padding, stride, groups in product(KERNELS, PADDINGS, STRIDES, (1, 2)):
        if kernel == 1 and padding != "zeros":
            continue  # nothing is padded
        axes = _axes(
            padding=padding, stride=stride, kernel=kernel, groups=groups, dilation=dilation
        )
        words = [f"{kernel}x{kernel}", padding, f"stride {stride}"]
        words += [f"groups {groups}"] * (groups > 1) + [f"dilation {dilation}"] * (dilation > 1)
        make = _conv2d(padding, stride, kernel, dilation, groups)
        yield Cell(", ".join(words), axes, lambda make=make: [make()], (4, SIDE, SIDE))


def _others() -> Iterator[Cell]:
    image = (4, SIDE, SIDE)
    depthwise, valid = _conv2d("zeros", 1, 3, 1, 4), _conv2d("zeros", 1, 3, 1, 1, width=0)
    yield Cell("depthwise", _axes(groups=4), lambda: [depthwise()], image)
    yield Cell("no padding", _axes(padding="none"), lambda: [valid()], image)
    wide = _conv2d("circular", 1, 3, 1, 1, width=2)  # outputs at one end come again at the other
    yield Cell("circular, padding 2", _axes(padding="wide circular"), lambda: [wide()], image)
    for stride in (1, 2):

        def transposed(stride: int = stride) -> list[nn.Module]:
            return [nn.ConvTranspose2d(4, 4, 3, stride, 1, stride - 1, bias=False)]

        axes = _axes(kind="transposed", stride=stride)
        yield Cell(f"transposed, stride {stride}", axes, transposed, image)
    for padding in ("zeros", "circular"):

        def conv1d(padding: str = padding) -> list[nn.Module]:
            return [nn.Conv1d(4, 4, 3, padding=1, bias=False, padding_mode=padding)]

        yield Cell(f"1d, {padding}", _axes(kind="conv1d", padding=padding), conv1d, (4, 12))
    for rows, columns in ((6, 12), (12, 6)):

        def dense(rows: int = rows, columns: int = columns) -> list[nn.Module]:
            return [nn.Linear(columns, rows, bias=False)]

        yield Cell(f"dense {columns} to {rows}", _plain("dense"), dense, (columns,))
    yield Cell("batch norm", _plain("batch norm"), lambda: [nn.BatchNorm2d(4)], image)
    for padding in PADDINGS:
        conv = _conv2d(padding, 1, 3, 1, 1)

        def composed(conv: Callable[[], nn.Module] = conv) -> list[nn.Module]:
            return [conv(), nn.BatchNorm2d(4)]

        axes = _axes(kind="conv + batch norm", padding=padding)
        yield Cell(f"conv + batch norm, {padding}", axes, composed, image)


def _plain(kind: str) -> dict[str, Any]:
    return {**dict.fromkeys(_axes()), "kind": kind}


CELLS = (*_convolutions(), *_others())
