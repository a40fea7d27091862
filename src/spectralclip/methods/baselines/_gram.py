"""Gram iteration: upper bounds on norms by squaring matrices, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip._linalg import grid_kernel
from spectralclip._operators import CONVS
from spectralclip.methods._domain import DENSE, check_count
from spectralclip.methods.baselines._circulant import kernel_of, torus_symbols

PaddingForm: TypeAlias = Literal["circular", "zeros"]

# As in the experiments of the paper, and in the code of the authors.
ITERATIONS: dict[PaddingForm, int] = {"circular": 6, "zeros": 4}


def check_form(form: str, iterations: int | None) -> None:
    """Raise unless this is a form of the bound, with a number of iterations."""
    if iterations is not None:
        check_count(1, iterations=iterations)
    if form not in ITERATIONS:
        raise ValueError(f'padding_form must be "circular" or "zeros", got {form!r}.')


def layer_bound(
    module: nn.Module,
    in_shapes: Sequence[Shape],
    padding_form: PaddingForm = "circular",
    iterations: int | None = None,
) -> Tensor:
    """The largest bound over the shapes of a layer's inputs, with a gradient in its weight.

    Args:
        module: A dense layer or a convolution.
        in_shapes: The shapes of its inputs.
        padding_form: Which bound to take for a convolution.
        iterations: None for what is usual.
    """
    kernel = kernel_of(module)
    usual = ITERATIONS["circular" if isinstance(module, DENSE) else padding_form]
    count = usual if iterations is None else iterations
    if isinstance(module, DENSE):
        return gram_bounds(kernel[None], count)[0]
    if padding_form == "zeros":
        return zero_padding_bound(kernel, count)
    bounds = [circular_bound(kernel, shape[1:], count) for shape in in_shapes]
    return torch.stack(bounds).max()


def gram_bounds(blocks: Tensor, iterations: int) -> Tensor:
    """Upper bounds on the norms of matrices, of at most `rank^(1 / 2^(t + 1))` times the norm.

    Args:
        blocks: `(f, m, n)`, real or complex.
        iterations: t.

    Returns:
        `(f,)`, in the precision of the blocks.
    """
    if blocks.shape[-2] < blocks.shape[-1]:
        blocks = blocks.mH
    # What is divided by is multiplied with in the end, so its gradient would add up to zero.
    sizes = _positive(blocks.detach().abs().amax((-2, -1)))
    logs = torch.zeros_like(sizes)
    for _ in range(iterations):
        blocks = blocks / sizes[:, None, None]
        blocks = blocks.mH @ blocks
        logs = 2 * (logs + sizes.log())
        sizes = _largest(blocks).amax(-1)
    norms = torch.linalg.matrix_norm(blocks)
    return _root(norms, logs, iterations)


def circular_bound(kernel: Tensor, sides: Shape, iterations: int) -> Tensor:
    """The bound of 2023, for a convolution with circular padding and stride 1.

    Args:
        kernel: `(c_out, c_in, *taps)`.
        sides: Of the image, none below the kernel's.
        iterations: t.
    """
    blocks = _symbols(kernel, sides)
    with torch.no_grad():
        worst = gram_bounds(blocks, iterations).argmax()
    # Only the largest bound has a gradient: the others need not be kept for it.
    return gram_bounds(blocks[worst][None], iterations)[0]


def zero_padding_bound(kernel: Tensor, iterations: int) -> Tensor:
    """The bound of 2024, for a convolution with zero padding on images of any size.

    The kernel of `M M^T` is that of M, convolved with itself; after t iterations it has
    `2^t (k - 1) + 1` taps along an axis. On a torus of that size nothing wraps around, so that the
    convolutions are done at its frequencies. The norm of a symmetric matrix is at most the
    largest sum of magnitudes in a row, and those of a row are, at the borders some of, the
    taps of an output channel.

    Either of `M M^T` and `M^T M` will do. Here it is the one with fewer channels, which costs less
    and adds up shorter rows; the code of the authors takes the other.

    Args:
        kernel: `(c_out, c_in, *taps)`.
        iterations: t, at least 1.
    """
    if kernel.shape[0] > kernel.shape[1]:
        kernel = kernel.transpose(0, 1)
    sides = tuple(2**iterations * (taps - 1) + 1 for taps in kernel.shape[2:])
    blocks = _symbols(kernel, sides)
    size = _positive(blocks.detach().abs().amax())
    logs = torch.zeros_like(size)
    for _ in range(iterations):
        blocks = blocks / size
        blocks = blocks @ blocks.mH
        logs = 2 * (logs + size.log())
        size = _largest(blocks).amax()
    taps = grid_kernel(blocks.unflatten(0, (*sides[:-1], -1)), sides, (1,) * len(sides))
    rows = taps.abs().flatten(1).sum(1)
    return _root(rows.max(), logs, iterations)


def _symbols(kernel: Tensor, sides: Shape) -> Tensor:
    """All symbols on a torus, `(f, c_out, c_in)`."""
    return torus_symbols(kernel, sides, (1,) * len(sides)).flatten(0, -3).contiguous()


def _largest(grams: Tensor) -> Tensor:
    """The diagonals of Gram matrices, where their largest entries are."""
    return _positive(grams.detach().diagonal(dim1=-2, dim2=-1).real)


def _root(norms: Tensor, logs: Tensor, iterations: int) -> Tensor:
    """Undo the squaring and the scaling."""
    power = 0.5**iterations
    return _positive(norms) ** power * torch.exp(power * logs)


def _positive(sizes: Tensor) -> Tensor:
    """Keep zeros away from divisions, logarithms and the gradients of roots."""
    return sizes.clamp_min(torch.finfo(sizes.dtype).tiny)


def is_part_of_circulant(module: nn.Module) -> bool:
    """Whether the rows of a layer's matrix are some of the circulant one's."""
    if not isinstance(module, CONVS):
        return isinstance(module, DENSE)
    wraps = module.padding_mode == "circular"
    if isinstance(module.padding, str):
        return wraps or module.padding == "valid"
    pairs = zip(module.kernel_size, module.padding, strict=True)
    return all(2 * width <= (taps - 1 if wraps else 0) for taps, width in pairs)


def pads_with_zeros(module: nn.Module) -> bool:
    """Whether the form of 2024 is for a layer; dense ones have no border."""
    return getattr(module, "padding_mode", "zeros") == "zeros"
