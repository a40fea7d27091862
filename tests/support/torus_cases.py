"""What the tests of methods on a torus share: random layers, and oracles by their dense matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from oracle import dense_matrix
from spectralclip import attach

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def random_conv(
    c_in: int, c_out: int, kernel: Any, *, seed: int = 0, axes: int = 2, **options: Any
) -> Any:
    """A convolution with normal weights, by default with circular padding that keeps the size."""
    sizes = (kernel,) * axes if isinstance(kernel, int) else kernel
    options = {"padding": tuple(k // 2 for k in sizes), "padding_mode": "circular", **options}
    conv = CONVS[axes](c_in, c_out, sizes, bias=False, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        conv.weight.normal_(generator=generator)
    return conv


def random_linear(n_in: int, n_out: int, seed: int = 0) -> nn.Linear:
    """A dense layer with normal weights."""
    layer = nn.Linear(n_in, n_out)
    with torch.no_grad():
        layer.weight.normal_(generator=torch.Generator().manual_seed(seed))
    return layer


def clipped_by_matrix(conv: Any, in_shape: tuple[int, ...], bound: float) -> np.ndarray:
    """Clip the singular values of a circular convolution's matrix, and read off its taps.

    The nearest matrix within the bound is a convolution again, with more taps; those that the
    kernel has are found in the rows of any one output position.
    """
    U, S, Vh = np.linalg.svd(dense_matrix(conv, in_shape), full_matrices=False)
    clipped = (U * np.minimum(S, bound)) @ Vh
    sides = in_shape[1:]
    grid = [n // s for n, s in zip(sides, conv.stride, strict=True)]
    origin = tuple(0 for _ in sides)
    rows = clipped.reshape(conv.out_channels, *grid, conv.in_channels, *sides)
    row = rows[(slice(None), *origin)]
    for axis, (taps, width) in enumerate(zip(conv.kernel_size, conv.padding, strict=True)):
        row = np.take(row, np.arange(-width, taps - width), axis=2 + axis, mode="wrap")
    return row


def step_once(method: Any, module: nn.Module, in_shape: tuple[int, ...], bound: float) -> Any:
    """Attach, and do what comes after one step of training; returns the attachment."""
    example = torch.zeros(1, *in_shape, dtype=next(module.parameters()).dtype)
    attachment = attach(module, None, example, method=method, max_norm=bound)
    attachment.step()
    return attachment


class TwoSizes(nn.Module):
    """One convolution on 3 pixels and then on 8, with the symbol `1 - cos w`.

    Its norm is 1.5 on 3 pixels, at `w = 2 pi / 3`, and 2 on 8, at `w = pi`.
    """

    in_shape = (1, 8)

    def __init__(self) -> None:
        super().__init__()
        self.conv = random_conv(1, 1, 3, axes=1)
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor([[[-0.5, 1.0, -0.5]]]))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x[..., :3]).sum() + self.conv(x)
