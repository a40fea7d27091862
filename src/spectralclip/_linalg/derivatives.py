"""Gradients against a given vector, without what torch loads for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def gradients_in(value: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of a number in some tensors, by name; zeros where it does not depend on one."""
    found: Sequence[Tensor | None] = [None] * len(leaves)
    if leaves and value.requires_grad:
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if g is None else g for (name, leaf), g in pairs}
