"""Layers that look harmless are found out, and every case of the tests is affine."""

from __future__ import annotations

import pytest
import torch
from cases import CASES, Case, params
from torch import Tensor, nn

import spectralclip as sc
from spectralclip import check_affine


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class PartlyDetached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + (5 * x).detach()


@pytest.mark.parametrize("layer", [Encoder(), PartlyDetached()], ids=["no_grad", "detach"])
def test_a_cut_backward_pass_is_refused(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"backward pass of .* is not the transpose"):
        sc.svds(layer, (6,), 1)


@pytest.mark.parametrize("case", params(CASES))
def test_every_case_is_affine(case: Case) -> None:
    check_affine(case.make(), case.in_shape)
