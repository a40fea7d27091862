"""Which tensors of a checkpoint can be a model's weights: no other kind of number is cast."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy


def why_unfit(value: Tensor, own: Tensor) -> str:
    """Why a tensor of a file cannot take the place of one of a model; empty where it can.

    Shapes are not looked at. Real numbers may be rounded, from float64 to float32 for example.
    Whatever a model keeps as whole numbers or truth values, such as masks and counters, may come in
    any real type that holds the same values.
    """
    for tensor, whose in ((value, ""), (own, " in the model")):
        form = _form(tensor)
        if form:
            return f"{form}{whose}"
    kinds = f"{_name(value)}, not {_name(own)}"
    if own.is_floating_point() or own.is_complex():
        fits = (value.is_floating_point(), value.is_complex()) == (
            own.is_floating_point(),
            own.is_complex(),
        )
        return "" if fits else kinds
    return "" if not value.is_complex() and _same_values(value, own.dtype) else kinds


def _form(tensor: Tensor) -> str:
    """In which form a tensor has no plain array of numbers; empty where it has one."""
    if is_lazy(tensor):
        return "of no size yet"
    if tensor.is_meta:
        return "a meta tensor without values"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return f"a sparse tensor ({str(tensor.layout).removeprefix('torch.')})"
    return f"quantized ({_name(tensor)})" if tensor.is_quantized else ""


def _same_values(value: Tensor, dtype: torch.dtype) -> bool:
    wide = value.double()
    return torch.equal(wide.to(dtype).double(), wide)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
