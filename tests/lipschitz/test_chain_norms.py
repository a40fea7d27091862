"""Chains of affine operations are bounded as one operator."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn
from zoo import BY_NAME, lived_in

from oracle import dense_norm
from oracle.slopes import Function
from spectralclip import Interval
from spectralclip._lipschitz.bounds import lipschitz_bounds


@pytest.mark.parametrize("name", ["vgg", "resnet", "densenet", "mobilenet", "convnet_1d"])
def test_chains_as_one_operator_are_tighter_than_their_parts(name: str) -> None:
    bound = lipschitz_bounds(BY_NAME[name].model(), BY_NAME[name].inputs(), local=False)
    assert bound.upper < 0.5 * bound.product


def test_a_linear_network_is_known_up_to_rtol() -> None:
    model = lived_in(
        nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 4, 3, padding_mode="reflect", padding=1),
            nn.Flatten(),
            nn.Linear(64, 20),
        )
    )
    bound = lipschitz_bounds(model, torch.zeros(1, 2, 8, 8))
    truth = dense_norm(model.eval(), (2, 8, 8))
    assert truth * 0.99 <= bound.lower <= truth <= bound.upper <= truth * 1.01
    assert len(bound.steps) == 1 and bound.steps[0].where == "0+1+2+3+4+5"


def test_factors_around_a_chain_are_not_lost() -> None:
    first, second = nn.Linear(5, 6), nn.Linear(6, 4)
    model = Function(lambda x, f, g: -3 * g(f(x / 7).flip(1).flip(1)).flip(1), first, second)
    truth = dense_norm(model, (5,))
    bound = lipschitz_bounds(model, torch.zeros(1, 5), local=False)
    assert truth * (1 - 1e-6) <= bound.upper <= truth * 1.0101
    assert bound.upper < 0.99 * bound.product


def test_a_residual_of_an_affine_layer_is_one_operator() -> None:
    layer = nn.Linear(12, 12)
    with torch.no_grad():
        layer.weight.mul_(3).sub_(0.5 * torch.eye(12))
    model = Function(lambda x, layer: x + layer(x), layer)
    truth = float(torch.linalg.matrix_norm(torch.eye(12) + layer.weight.detach(), ord=2))
    bound = lipschitz_bounds(model, torch.zeros(1, 12))
    apart = 1 + float(torch.linalg.matrix_norm(layer.weight.detach(), ord=2))
    assert truth < 0.95 * apart
    assert bound.upper == pytest.approx(truth, rel=1e-4)
    assert bound.product == pytest.approx(apart, rel=1e-4)


def test_batch_norm_that_undoes_its_convolution_is_seen_as_one() -> None:
    conv, norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
    scales = torch.logspace(-2, 2, 8)
    with torch.no_grad():
        conv.weight.mul_(scales[:, None, None, None])
        norm.running_var.copy_(scales**2)
    model = nn.Sequential(conv, norm, nn.ReLU())
    bound = lipschitz_bounds(model, torch.zeros(1, 3, 6, 6))
    truth = dense_norm(nn.Sequential(conv, norm), (3, 6, 6))
    assert truth <= bound.upper <= 1.011 * truth
    assert bound.product > 20 * bound.upper


def test_intervals_come_from_where_they_are_asked_for() -> None:
    asked: list[tuple[tuple[nn.Module, ...], tuple[int, ...]]] = []

    def interval_of(modules: Sequence[nn.Module], in_shape: tuple[int, ...]) -> Interval:
        asked.append((tuple(modules), in_shape))
        return Interval(0.5, 2.0, "probabilistic", 1e-3)

    model = BY_NAME["vgg"].model()
    bound = lipschitz_bounds(model, BY_NAME["vgg"].inputs(), interval_of=interval_of, local=False)
    conv, norm = model[0], model[1]
    assert ((conv, norm), (3, 8, 8)) in asked and ((conv,), (3, 8, 8)) in asked
    assert len(asked) == len(set(asked))
    assert bound.failure == pytest.approx(1e-3 * len(asked))
    assert bound.upper == 2.0**4 and bound.product == 2.0**6
