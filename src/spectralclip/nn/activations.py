"""Activations that sort: they lose nothing of a value's length, nor of its gradient's.

ReLU drops what is negative, and with it about half of the energy in each layer; a network with
layers of norm one has little left at its end. Sorting moves the same numbers to other channels. It
is 1-Lipschitz, and its Jacobian is a permutation wherever no two numbers are alike.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.jit import is_scripting, is_tracing  # type: ignore[attr-defined]


@final
class GroupSort(nn.Module):
    """Channels in groups, each group sorted, the largest first.

    Of c channels in groups of g, a group has those that are `c / g` apart: channel i is with
    `i + c / g`, `i + 2 c / g`, and so on. The first `c / g` channels of the result are the largest
    of each group, the next ones the second largest. The Lipschitz constant is 1.

    Args:
        group_size: The number of channels in a group, which has to divide that of all.
        dim: The axis of the channels.

    Example:
        >>> import torch
        >>> from spectralclip.nn import GroupSort
        >>> GroupSort(3)(torch.tensor([[1.0, 5.0, 2.0, 6.0, 3.0, 4.0]]))
        tensor([[3., 6., 2., 5., 1., 4.]])
    """

    def __init__(self, group_size: int, dim: int = 1) -> None:
        """Sort in groups of that size."""
        super().__init__()
        if not _is_whole(group_size) or group_size < 1:
            raise ValueError(f"group_size must be an integer of at least 1, got {group_size!r}.")
        self.group_size, self.dim = group_size, _checked_dim(dim)

    def forward(self, x: Tensor) -> Tensor:
        """The value with the channels of each group in descending order."""
        dim = _axis(x, self.dim, self.group_size, "GroupSort")
        groups = x.unflatten(dim, (self.group_size, x.shape[dim] // self.group_size))
        ordered: Tensor = groups.sort(dim=dim, descending=True).values
        return ordered.flatten(dim, dim + 1)

    def extra_repr(self) -> str:
        """What it was made with."""
        return f"group_size={self.group_size}, dim={self.dim}"


@final
class MaxMin(nn.Module):
    """The larger of each pair of channels, and then the smaller ones: `GroupSort(2)`, faster.

    Channel i is compared with channel `i + c / 2`. The first half of the result has the maxima, the
    second half the minima. The Lipschitz constant is 1.

    Args:
        dim: The axis of the channels, whose number has to be even.

    Example:
        >>> import torch
        >>> from spectralclip.nn import MaxMin
        >>> MaxMin()(torch.tensor([[1.0, 5.0, 2.0, 4.0]]))
        tensor([[2., 5., 1., 4.]])
    """

    def __init__(self, dim: int = 1) -> None:
        """Compare along that axis."""
        super().__init__()
        self.dim = _checked_dim(dim)

    def forward(self, x: Tensor) -> Tensor:
        """The maxima, and then the minima."""
        dim = _axis(x, self.dim, 2, "MaxMin")
        a, b = x.chunk(2, dim)
        # Compilers know torch's own alone, and fuse what they consist of.
        if is_scripting() or is_tracing() or torch.compiler.is_compiling():
            return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], dim)
        return torch.cat(_Sorted.apply(a, b), dim)  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        """What it was made with."""
        return f"dim={self.dim}"


class _Sorted(Function):
    """The maxima and the minima of two tensors, with derivatives that go where the numbers went.

    Those of torch's own share out the gradient between equal numbers, and forward and backward pass
    take three times as long together (128 x 32 x 16 x 16 numbers on a CPU: 22 ms, and 8 here).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return torch.maximum(a, b), torch.minimum(a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Any) -> None:
        kept = inputs[0] >= inputs[1]  # which pairs are in order already
        ctx.save_for_backward(kept)
        ctx.save_for_forward(kept)

    @staticmethod
    def backward(ctx: Any, maxima: Tensor, minima: Tensor) -> tuple[Tensor, Tensor]:
        return _swapped(ctx.saved_tensors[0], maxima, minima)

    @staticmethod
    def jvp(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return _swapped(ctx.saved_tensors[0], a, b)


def _swapped(kept: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors, exchanged where they are not kept."""
    return torch.where(kept, first, second), torch.where(kept, second, first)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _checked_dim(dim: int) -> int:
    if not _is_whole(dim):
        raise ValueError(f"dim must be an integer, the axis of the channels, got {dim!r}.")
    return dim


def _axis(x: Tensor, dim: int, group_size: int, name: str) -> int:
    """The axis of the channels, which has to be there and to fall into groups."""
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(
            f"{name} got a tensor of shape {list(x.shape)}, which has no axis {dim}. Pass the axis "
            "of the channels as dim."
        )
    if x.shape[dim] % group_size != 0:
        raise ValueError(
            f"{name} needs a multiple of {group_size} channels, got {x.shape[dim]} along axis "
            f"{dim} of shape {list(x.shape)}. Change the number of channels of the layer before it."
        )
    return dim % x.ndim
