"""Which parameters move when a layer is clipped, and which stay."""

from __future__ import annotations

import copy

import pytest
import torch
from clip_cases import conv2d, trained_batch_norm
from seeds import seeded
from torch import nn
from torch.nn.utils import parametrizations

import spectralclip._clipping.clip
from oracle import dense_norm
from spectralclip import clip_
from spectralclip._clipping import moving_names


def test_convolution_moves_before_batch_norm() -> None:
    conv, bn = conv2d(3, 4), trained_batch_norm(4)
    saved = copy.deepcopy(bn.state_dict())
    dead = conv.weight[0].clone()
    bound = 0.5 * dense_norm([conv, bn], (3, 6, 6))
    clip_([conv, bn], (3, 6, 6), bound)
    assert dense_norm([conv, bn], (3, 6, 6)) == pytest.approx(bound, rel=5e-3)
    assert all(torch.equal(saved[key], value) for key, value in bn.state_dict().items())
    assert torch.equal(conv.weight[0], dead)
    assert bn.training


class ConvolutionAndNorm(nn.Module):
    """A convolution and its batch norm in one module of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = trained_batch_norm(4), conv2d(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.conv(x))
        return y


def test_batch_norm_gives_way_inside_a_module_too() -> None:
    layer = ConvolutionAndNorm()
    saved, weight = copy.deepcopy(layer.norm.state_dict()), layer.conv.weight.clone()
    bound = 0.5 * dense_norm(layer, (3, 6, 6))
    result = clip_(layer, (3, 6, 6), bound)
    assert result.converged
    assert dense_norm(layer, (3, 6, 6)) == pytest.approx(bound, rel=5e-3)
    assert all(torch.equal(saved[key], value) for key, value in layer.norm.state_dict().items())
    assert not torch.equal(layer.conv.weight, weight)
    clip_(layer, (3, 6, 6), bound / 2, move="all")
    assert not torch.equal(saved["weight"], layer.norm.weight)


def test_batch_norms_inside_a_module_move_in_training() -> None:
    """Their statistics follow a weight that is made smaller, and would undo that."""
    op = spectralclip.as_operator(ConvolutionAndNorm(), (3, 6, 6))
    assert moving_names(op, "first") == ["conv.weight"]
    assert moving_names(op, "first", in_training=True) == ["norm.weight", "conv.weight"]


def test_rounding_is_no_dependence_on_a_bias() -> None:
    """Gradients of `f(v) - f(0)` in a bias cancel, but not always to the last bit."""

    class TwoSums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.shift = nn.Linear(6, 5, bias=False), nn.Parameter(torch.ones(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.linear(x)
            # Rounds differently at zero and elsewhere.
            return y + self.shift * (1 + 1e-7 * torch.sign(x.square().sum(-1, keepdim=True)))

    assert moving_names(spectralclip.as_operator(TwoSums(), (6,)), "all") == ["linear.weight"]


def test_move_all_moves_both() -> None:
    conv, bn = conv2d(3, 4), trained_batch_norm(4)
    weight, gamma = conv.weight.clone(), bn.weight.clone()
    bound = 0.5 * dense_norm([conv, bn], (3, 6, 6))
    clip_([conv, bn], (3, 6, 6), bound, move="all")
    assert dense_norm([conv, bn], (3, 6, 6)) <= 1.001 * bound
    assert not torch.equal(conv.weight, weight) and not torch.equal(bn.weight, gamma)


def test_a_weight_normed_convolution_is_clipped_to_a_tiny_bound() -> None:
    with seeded(0):
        conv = parametrizations.weight_norm(nn.Conv2d(2, 2, 3, padding=1, bias=False))
    result = clip_(conv, (2, 5, 5), 1e-20)
    assert 0.5e-20 < dense_norm(conv, (2, 5, 5)) <= 1.001e-20
    assert result.norm_after <= 1.001e-20


def test_weight_norm_and_low_rank_pairs_are_clipped() -> None:
    with seeded(0):
        normed = parametrizations.weight_norm(nn.Linear(6, 5))
        pair = nn.Sequential(nn.Linear(6, 2, bias=False), nn.Linear(2, 5, bias=False))
    for layer, move in ((normed, "first"), (pair, "all")):
        bound = 0.5 * dense_norm(layer, (6,))
        result = clip_(layer, (6,), bound, move=move)
        assert result.distance_lower_bound is None
        assert 0.995 * bound <= dense_norm(layer, (6,)) <= 1.001 * bound
        with pytest.raises(ValueError, match="exact=True needs a layer that is linear"):
            clip_(layer, (6,), bound / 2, move=move, exact=True)
