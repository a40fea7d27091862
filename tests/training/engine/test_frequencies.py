"""Where the Fourier modes of a kernel are looked for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spectralclip._training.engine.frequencies import Frequencies, Taps


def largest(weight: Tensor, positions: Tensor, angles: Tensor) -> Tensor:
    """The norms of the symbols of a kernel at some frequencies, in float64."""
    phases = torch.polar(torch.ones(()).double(), angles @ positions.T)
    return torch.linalg.matrix_norm(torch.einsum("ft,oit->foi", phases, weight.to(phases)), 2)


@pytest.mark.parametrize("dilation", [(1, 1), (2, 2), (3, 1), (1, 4)])
def test_cells_cover_all_that_a_dilated_kernel_does_as_finely_as_if_it_were_not(
    dilation: tuple[int, int],
) -> None:
    taps = Taps.of((3, 3), (1, 1), dilation)
    plain = Frequencies.everywhere(Taps.of((3, 3), (1, 1), (1, 1)))
    found = Frequencies.everywhere(taps)
    assert len(found.centers) == len(plain.centers)
    torch.testing.assert_close(found.centers * torch.tensor(dilation).double(), plain.centers)

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, 9, generator=generator, dtype=torch.float64)
    axis = torch.linspace(-math.pi, math.pi, 121, dtype=torch.float64)
    everywhere = largest(weight, taps.steps, torch.cartesian_prod(axis, axis))
    within = torch.cartesian_prod(*(r * torch.linspace(-1, 1, 9).double() for r in found.reach))
    near = (found.centers[:, None] + within).reshape(-1, 2)
    assert largest(weight, taps.steps, near).max() >= 0.999 * everywhere.max()


def test_a_kernel_of_one_tap_needs_one_cell() -> None:
    assert len(Frequencies.everywhere(Taps.of((1, 1), (1, 1), (1, 1))).centers) == 1


def test_taps_that_a_stride_tells_apart_do_not_repeat() -> None:
    """With stride 2, taps 0 and 2 are one step apart, and tap 1 has another remainder."""
    found = Frequencies.everywhere(Taps.of((3,), (2,), (1,)))
    assert found.reach[0] * len({round(float(c), 6) for c in found.centers}) > math.pi / 2
