"""Large layers are bounded on parts of the image, or without their matrix.

Times differ from machine to machine, so that the way taken is seen by counts: symbols looked at,
entries sent through convolutions, the largest tensor made, the dense algebra called.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from large_layers import Recorder, renewed, slow_where
from torch import nn

import spectralclip as sc
from oracle import symbol_norms, true_norm
from spectralclip._bounds import exact as _block_norms
from spectralclip._bounds.views import View

# --- norm_bounds: convolutions -------------------------------------------------------------


LARGE_IMAGES = [
    (nn.Conv2d(1, 1, 3, padding=1), (1, 90, 110)),
    (nn.Conv2d(2, 3, 5, stride=2, padding=2), (2, 190, 180)),
    (nn.Conv1d(1, 2, 9, padding=4), (1, 900)),
    (nn.ConvTranspose2d(3, 2, 4, stride=2, padding=1), (3, 44, 50)),
    (nn.Conv2d(2, 2, 3, padding=2, dilation=2, groups=2), (2, 180, 190)),
]


@pytest.mark.parametrize(
    ("layer", "in_shape"), slow_where(LARGE_IMAGES, {1, 4}), ids=lambda value: str(value)[:50]
)
def test_bounds_from_smaller_images_hold(layer: nn.Module, in_shape: tuple[int, ...]) -> None:
    layer = renewed(layer)
    small = View(layer, in_shape).cropped(0.05 / 8)
    assert small is not None
    interval = sc.norm_bounds(layer, in_shape, tol=0.05)
    truth = true_norm(layer, in_shape).value
    assert interval.lower <= truth * (1 + 1e-6) and truth <= interval.upper
    assert interval.kind == "embedding" and interval.width <= 0.05


@pytest.mark.parametrize(("layer", "in_shape"), LARGE_IMAGES, ids=lambda value: str(value)[:50])
def test_bounds_are_found_on_smaller_images(layer: nn.Module, in_shape: tuple[int, ...]) -> None:
    in_shape = (in_shape[0], *(4 * n for n in in_shape[1:]))
    layer = renewed(layer)
    with Recorder() as recorder:
        interval = sc.norm_bounds(layer, in_shape)
    assert interval.kind == "embedding" and interval.width <= 0.01
    # The layer is tried out on the image when it is read in; a Lanczos run would take twenty more.
    assert recorder.convolved <= 10 * math.prod(in_shape)


def test_narrow_bounds_on_large_images_begin_with_waves() -> None:
    interval = sc.norm_bounds(nn.Conv2d(1, 1, 3, padding=1), (1, 500, 500), tol=1e-4)
    assert interval.kind == "embedding" and interval.width <= 1e-4
    assert interval.num_matvecs <= 60


def test_a_million_pixels_take_little_memory() -> None:
    conv = nn.Conv2d(1, 1, 3, padding=1)
    with Recorder() as recorder:
        interval = sc.norm_bounds(conv, (1, 1024, 1024))
    # The image counts, not the frequencies of its torus times the taps.
    assert recorder.largest <= 3 * 1024 * 1024
    supremum = symbol_norms(conv, (2048, 2048)).max()
    assert interval.lower <= supremum <= interval.upper * (1 + 1e-5)
    assert interval.width <= 0.01


def test_a_large_circular_layer_is_bounded_exactly() -> None:
    conv = nn.Conv2d(1, 1, 5, padding=2, padding_mode="circular")
    with Recorder() as recorder:
        interval = sc.norm_bounds(conv, (1, 512, 640))
    assert interval.kind == "exact" and interval.width < 1e-8
    assert symbol_norms(conv, (512, 640)).max() in interval
    assert recorder.largest <= 520 * 650


def test_the_part_of_an_image_has_no_larger_norm() -> None:
    """What makes a lower bound on the one a lower bound on the other."""
    for layer, in_shape in [
        (nn.Conv2d(2, 2, 3, stride=2, padding=1, dtype=torch.float64), (2, 60, 60)),
        (nn.ConvTranspose1d(2, 3, 5, stride=2, padding=2, dtype=torch.float64), (2, 300)),
        (nn.Conv1d(2, 2, 3, 2, 1, padding_mode="circular", dtype=torch.float64), (2, 720)),
    ]:
        view = View(layer, in_shape)
        small = view.cropped(0.02)
        assert small is not None and 4 * small.op.shape[1] <= view.op.shape[1]
        part, whole = (true_norm(layer, shape).value for shape in (small.op.in_shape, in_shape))
        assert 0.98 * whole <= part <= whole * (1 + 1e-6)


def test_no_smaller_image_stands_for_other_paddings_or_layers() -> None:
    reflect = nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")
    assert View(reflect, (1, 400, 400)).cropped(0.01) is None
    prime = nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular")
    assert View(prime, (1, 1009)).cropped(0.01) is None
    assert View(nn.Linear(900, 2), 900).cropped(0.01) is None
    op = sc.as_operator(nn.Conv2d(1, 1, 3, padding=1), (1, 400, 400))
    assert View(op, op.in_shape).cropped(0.01) is None
    assert sc.norm_bounds(op).width <= 0.01


# --- norm_bounds: matrices -----------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_large_matrix_is_not_decomposed(deterministic: bool) -> None:
    layer = nn.Linear(1400, 1300)
    with Recorder() as recorder:
        interval = sc.norm_bounds(layer, deterministic=deterministic)
    truth = true_norm(layer, (1400,)).value
    assert interval.lower <= truth * (1 + 1e-9) and truth <= interval.upper
    assert interval.width <= 0.01
    assert interval.kind == ("cholesky" if deterministic else "probabilistic")
    assert interval.failure == (0.0 if deterministic else 1e-6)
    assert recorder.calls["linalg_cholesky_ex"] <= 1 + interval.num_matvecs
    # Eigenvalues are those of the recurrence's small matrices alone.
    assert recorder.largest <= 1400 * 1300
    assert not any("eigvalsh" in name for name in recorder.calls)


def normalized_linear() -> nn.Module:
    norm = nn.BatchNorm1d(40)
    norm.running_var = torch.linspace(0.5, 1.5, 40)
    return nn.Sequential(nn.Linear(70, 40), norm).eval()


@pytest.mark.usefixtures("matrices_are_dear")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("layer", "in_shape"),
    [
        (nn.Linear(80, 70), (80,)),
        (nn.Linear(40, 90), (5, 3, 40)),
        (nn.Embedding(90, 30), (90,)),
        (normalized_linear(), (70,)),
        (nn.Conv2d(60, 40, 1), (60, 4, 4)),
        (nn.Conv2d(60, 40, 2, stride=2, groups=4), (60, 6, 6)),
        (nn.ConvTranspose2d(40, 30, 2, stride=2), (40, 3, 3)),
        (nn.Conv2d(12, 12, 3, padding=1, padding_mode="circular"), (12, 7, 7)),
        (nn.Linear(80, 70).double(), (80,)),
        (nn.Linear(80, 70).bfloat16(), (80,)),
        (torch.nn.utils.parametrizations.weight_norm(nn.Linear(80, 70)), (80,)),
    ],
    ids=lambda value: str(value)[:50],
)
def test_blocks_by_iteration(
    layer: nn.Module, in_shape: tuple[int, ...], deterministic: bool
) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    interval = sc.norm_bounds(layer, in_shape, deterministic=deterministic)
    dense = sc.as_operator(copy.deepcopy(layer).double(), in_shape).to_dense().numpy()
    truth = float(np.linalg.norm(dense, 2))
    assert interval.lower <= truth * (1 + 1e-6) and truth <= interval.upper * (1 + 1e-6)
    assert interval.width <= 0.01
    assert (interval.failure == 0) == deterministic
    circular = isinstance(layer, nn.Conv2d) and layer.padding_mode == "circular"
    assert interval.kind == (
        ("exact" if circular else "cholesky") if deterministic else "probabilistic"
    )


def test_copies_of_a_matrix_are_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_block_norms, "EXACT", _block_norms.ExactConstants(cheap=0.0, runs=0.0))
    layer = nn.Linear(64, 64)
    with Recorder() as recorder:
        sc.norm_bounds(layer, (1000, 64))
    once = 1000 * 64  # the layer is applied when it is read in, and not again
    assert recorder.largest <= once
    assert recorder.calls["addmm"] <= 8
