"""Layers that are applied through their own forward and backward."""

from __future__ import annotations

import warnings

import torch
from operator_cases import random_pair
from torch import nn

from spectralclip import as_operator


def scripted() -> tuple[nn.Module, nn.Module]:
    layer = nn.Conv2d(2, 3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return layer, torch.jit.script(layer)


def test_scripted_layer_is_applied() -> None:
    layer, script = scripted()
    torch.testing.assert_close(
        as_operator(script, (2, 5, 5)).to_dense(), as_operator(layer, (2, 5, 5)).to_dense()
    )


def test_scripted_layer_has_its_gradient_or_an_error(generator: torch.Generator) -> None:
    layer, script = scripted()
    op = as_operator(script, (2, 5, 5))
    v, u = random_pair(op, 1, generator)
    expected = as_operator(layer, (2, 5, 5)).pullback(u, v)
    try:
        got = op.pullback(u, v)
    except (ValueError, NotImplementedError):
        return
    torch.testing.assert_close(got, expected)
