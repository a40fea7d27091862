"""Gradients against a given vector, without what torch loads for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Paired(torch.autograd.Function):
    """A number that stands for `<y, u>`: its gradient in y is u. The number itself is not used."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return y.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (u,) = ctx.saved_tensors
        return u, None


def pulled_back(
    y: Tensor, inputs: Sequence[Tensor], u: Tensor, *, retain: bool = True, create: bool = False
) -> tuple[Tensor, ...]:
    """`J^T u` for the Jacobian J of y in each of the inputs; zeros where y does not depend on one.

    As `torch.autograd.grad(y, inputs, u)`, which loads sympy on its first call: two seconds.
    """
    with torch.enable_grad():
        pair: Tensor = _Paired.apply(y, u)  # type: ignore[no-untyped-call]
    return torch.autograd.grad(
        pair, inputs, retain_graph=retain or create, create_graph=create, materialize_grads=True
    )
