"""Gram iteration: its bounds and their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torus_cases import random_conv, random_linear

from oracle import dense_norm, symbol_norms
from spectralclip.methods.baselines._gram import circular_bound, gram_bounds, zero_padding_bound


def by_convolutions(kernel: Tensor, iterations: int) -> float:
    """The kernel of `M M^T`, and so on, by torch's own convolution."""
    if kernel.shape[0] > kernel.shape[1]:
        kernel = kernel.transpose(0, 1)
    for _ in range(iterations):
        kernel = F.conv2d(kernel, kernel, padding=[k - 1 for k in kernel.shape[2:]])
    return float(kernel.abs().sum((1, 2, 3)).max() ** (0.5**iterations))


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("shape", [(3, 5, 3), (5, 3, 3), (2, 2, (2, 3)), (4, 4, 1)])
def test_the_zero_padding_form_convolves_the_kernel_with_itself(
    shape: tuple[Any, ...], iterations: int
) -> None:
    kernel = random_conv(*shape).weight.detach().double()
    found = float(zero_padding_bound(kernel, iterations))
    assert found == pytest.approx(by_convolutions(kernel, iterations), rel=1e-12)


@pytest.mark.parametrize("channels", [(5, 1), (1, 5), (2, 6), (3, 3)])
def test_it_is_close_to_the_number_of_the_authors_code(channels: tuple[int, int]) -> None:
    package = pytest.importorskip("orthogonium.layers.conv.singular_values.delattre24")
    ratios = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        kernel = torch.randn(*channels, 3, 3, generator=generator, dtype=torch.float64)
        ours, theirs = float(zero_padding_bound(kernel, 4)), package.compute_delattre2024(kernel)
        conv = nn.Conv2d(channels[1], channels[0], 3, padding=1, bias=False).double()
        for mode in ("circular", "zeros"):
            conv.padding_mode = mode
            with torch.no_grad():
                conv.weight.copy_(kernel)
            truth = dense_norm(conv, (channels[1], 7, 7))
            assert truth <= min(ours, float(theirs)) * (1 + 1e-12)
        ratios.append(float(theirs) / ours)
    if channels[0] == channels[1]:
        assert ratios == pytest.approx([1.0] * 3, rel=1e-12)
    else:  # the other of the two products, whose rows are longer
        assert 1 < sorted(ratios)[1] < 1.05 and min(ratios) > 0.98


@pytest.mark.parametrize("iterations", [1, 3, 5])
def test_its_distance_from_the_norm_on_an_endless_image(iterations: int) -> None:
    # A row has at most `c (2^t (k - 1) + 1)^2` entries, and its sum of magnitudes is at most the
    # square root of that many times its length.
    conv = random_conv(3, 4, 3)
    kernel, norm = conv.weight.detach().double(), symbol_norms(conv, (200, 200)).max()
    bound = float(zero_padding_bound(kernel, iterations))
    entries = 3 * (2**iterations * 2 + 1) ** 2
    assert norm <= bound <= entries ** (1 / 2 ** (iterations + 1)) * norm * (1 + 1e-3)


@pytest.mark.parametrize("iterations", [1, 4])
def test_gradients_are_those_of_finite_differences(iterations: int) -> None:
    kernel = random_conv(2, 3, 3).weight.detach().double().requires_grad_()
    assert torch.autograd.gradcheck(lambda k: circular_bound(k, (5, 4), iterations), kernel)
    assert torch.autograd.gradcheck(lambda k: zero_padding_bound(k, iterations), kernel)
    matrix = random_linear(3, 4).weight.detach().double()[None].requires_grad_()
    assert torch.autograd.gradcheck(lambda m: gram_bounds(m, iterations), matrix)


def test_a_layer_of_zeros_has_a_finite_gradient() -> None:
    kernel = torch.zeros(3, 3, 3, 3, requires_grad=True)
    for bound in (circular_bound(kernel, (5, 5), 6), zero_padding_bound(kernel, 4)):
        assert 0 <= float(bound.detach()) < 1e-30
        (gradient,) = torch.autograd.grad(bound, kernel)
        assert bool(gradient.isfinite().all())
