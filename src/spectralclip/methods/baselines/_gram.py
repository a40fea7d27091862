"""Gram iteration: upper bounds on norms by squaring matrices, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip._linalg import grid_kernel
from spectralclip._operators import CONVS, conv_paddings
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
    """The largest bound over the shapes of a layer's inputs, with a gradient in its weight."""
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

    From `(f, m, n)`, real or complex, to `(f,)`, in the same precision.
    """
    blocks, logs = _squared(blocks, iterations, (-2, -1))
    return _root(torch.linalg.matrix_norm(blocks), logs.flatten(), iterations)


def _squared(blocks: Tensor, iterations: int, scaled: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """`G <- G G^H` on the smaller side, t times, and the logarithms of what it was divided by.

    The axes in `scaled` are divided by one number. As it is multiplied with in the end, its
    gradient would add up to zero.
    """
    if blocks.shape[-2] > blocks.shape[-1]:
        blocks = blocks.mH
    sizes = _positive(blocks.detach().abs().amax(scaled, keepdim=True))
    logs = torch.zeros_like(sizes)
    for _ in range(iterations):
        blocks = blocks / sizes
        blocks = blocks @ blocks.mH
        logs = 2 * (logs + sizes.log())
        # The largest entries of Gram matrices are on their diagonals.
        diagonal = blocks.detach().diagonal(dim1=-2, dim2=-1).real[..., None]
        sizes = _positive(diagonal.amax(scaled, keepdim=True))
    return blocks, logs


def circular_bound(kernel: Tensor, sides: Shape, iterations: int) -> Tensor:
    """The bound of 2023, for circular padding and stride 1 on images not below the kernel."""
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
    """
    sides = tuple(2**iterations * (taps - 1) + 1 for taps in kernel.shape[2:])
    blocks, logs = _squared(_symbols(kernel, sides), iterations, (-3, -2, -1))
    taps = grid_kernel(blocks.unflatten(0, (*sides[:-1], -1)), sides, (1,) * len(sides))
    rows = taps.abs().flatten(1).sum(1)
    return _root(rows.max(), logs.squeeze(), iterations)


def _symbols(kernel: Tensor, sides: Shape) -> Tensor:
    """All symbols on a torus, `(f, c_out, c_in)`."""
    return torus_symbols(kernel, sides, (1,) * len(sides)).flatten(0, -3).contiguous()


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
    axes = zip(module.kernel_size, conv_paddings(module), strict=True)
    return all(low + high <= (taps - 1 if wraps else 0) for taps, (low, high) in axes)


def pads_with_zeros(module: nn.Module) -> bool:
    """Whether the form of 2024 is for a layer; dense ones have no border."""
    return getattr(module, "padding_mode", "zeros") == "zeros"
