"""Operators of the cases, and random vectors on both of their sides."""

from __future__ import annotations

from typing import Any

import torch
from cases import Case
from torch import Tensor

from spectralclip import LinearOperator, as_operator


def random_pair(op: LinearOperator, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, *op.in_shape, dtype=op.dtype, generator=generator)
    y = torch.randn(rows, *op.out_shape, dtype=op.dtype, generator=generator)
    return x, y


def operator(case: Case, **options: Any) -> LinearOperator:
    return as_operator(case.make(), case.in_shape, **options)
