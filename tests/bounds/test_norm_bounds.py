"""Bounds on norms against NumPy's dense SVD in float64."""

from __future__ import annotations

import copy
import importlib
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from bounds_cases import DETERMINISTIC, assert_holds
from cases import (
    CASES,
    HALF_CASES,
    Case,
    cumulative_sum,
    dense_singular_values,
    params,
    with_weight,
)
from drawn_convolutions import EXAMPLES, SAME_EVEN, convolutions
from hypothesis import given
from torch import nn

import spectralclip as sc
from oracle import dense_norm
from spectralclip._bounds import Interval, cholesky, norm_bounds, norm_bounds_all_sizes
from spectralclip._bounds import exact as _block_norms

_bounds = importlib.import_module("spectralclip._bounds.norm_bounds")  # not the function

# Where torch divides by the norm + 1e-7, the operator divides by the norm.
INEXACT = {"embedding-max-norm": 1e-7}


@pytest.fixture
def iterate_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers go the way of large ones, instead of being decomposed."""
    settings = _block_norms.ExactConstants(dense_side=2, dense_side_deterministic=2)
    monkeypatch.setattr(_bounds, "EXACT", settings)


# --- Every case ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", params(CASES + HALF_CASES))
def test_the_norm_is_inside(case: Case) -> None:
    interval = norm_bounds(case.make(), case.in_shape)
    assert_holds(interval, dense_singular_values(case)[0], INEXACT.get(case.name, 0.0))
    assert interval.width <= 0.01


@pytest.mark.usefixtures("iterate_always")
@pytest.mark.parametrize("case", params(CASES + HALF_CASES))
def test_the_norm_is_inside_without_forming_matrices(case: Case) -> None:
    interval = norm_bounds(case.make(), case.in_shape)
    assert_holds(interval, dense_singular_values(case)[0], INEXACT.get(case.name, 0.0))
    assert interval.width <= 0.01
    assert interval.failure in (0.0, 1e-6)


@pytest.mark.parametrize("case", params(CASES))
def test_a_deterministic_bound_is_one(case: Case) -> None:
    interval = norm_bounds(case.make(), case.in_shape, deterministic=True)
    assert interval.kind in DETERMINISTIC
    assert_holds(interval, dense_singular_values(case)[0], INEXACT.get(case.name, 0.0))
    assert interval.width <= 0.01


@pytest.mark.usefixtures("iterate_always")
@pytest.mark.parametrize("case", params(CASES[::3]))
def test_certificates_are_asked_for_the_rest(case: Case) -> None:
    interval = norm_bounds(case.make(), case.in_shape, deterministic=True)
    assert interval.kind in DETERMINISTIC
    assert_holds(interval, dense_singular_values(case)[0], INEXACT.get(case.name, 0.0))
    assert interval.width <= 0.01


BLOCKS = [
    *("linear-leading", "linear-bn", "embedding", "batch-norm2d", "bn-linear", "medium-dense"),
    *("conv2d-1x1", "conv2d-1x1-groups", "conv2d-kernel-is-stride", "conv2d-stride-over-kernel"),
    *("conv2d-circular-stride", "conv2d-circular-groups", "conv2d-even-same-circular"),
    *("conv2d-depthwise-multiplier", "transposed2d-1x1", "transposed2d-stride-over-kernel"),
    *("transposed-bn", "conv3d-circular", "repeated-1x1", "weight-norm-linear"),
]


@pytest.mark.usefixtures("iterate_always")
@pytest.mark.parametrize("case", params([c for c in CASES if c.name in BLOCKS]))
def test_blocks_give_the_norm_itself(case: Case) -> None:
    interval = norm_bounds(case.make(), case.in_shape)
    assert interval.kind == "exact"
    assert interval.num_matvecs == 0
    reparametrized = case.name == "weight-norm-linear"  # its weight is known in float32
    assert interval.width < (1e-4 if reparametrized else 1e-8)


def test_the_list_of_blocks_names_cases() -> None:
    assert set(BLOCKS) <= {case.name for case in CASES}


# --- The embedding ------------------------------------------------------------------------


@pytest.mark.filterwarnings(SAME_EVEN)
@pytest.mark.usefixtures("iterate_always")
@EXAMPLES
@given(convolutions(2))
def test_any_convolution(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    layer, in_shape = drawn
    interval = norm_bounds(layer, in_shape)
    assert_holds(interval, dense_norm(layer, in_shape))
    assert interval.width <= 0.01


@pytest.mark.parametrize(("channels", "side"), [(16, 16), (8, 40)])
def test_zero_padding_on_large_images_is_deterministic(channels: int, side: int) -> None:
    layer = nn.Conv2d(channels, channels, 3, padding=1)
    in_shape = (channels, side, side)
    norm = float(sc.svds(layer, in_shape, 1, tol=1e-6).S[0])
    interval = norm_bounds(layer, in_shape)
    assert interval.kind == "embedding"
    assert norm in interval
    assert interval.width <= 0.01
    assert interval.num_matvecs <= 60


def test_a_wide_embedding_gives_way_to_a_narrow_probabilistic_bound() -> None:
    layer = nn.Conv2d(48, 48, 3, padding=1)
    interval = norm_bounds(layer, (48, 4, 4))
    assert interval.kind == "probabilistic"
    assert interval.width <= 0.01
    assert_holds(interval, dense_norm(layer, (48, 4, 4)))


def test_a_wide_embedding_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.import_module("spectralclip._bounds.norm_bounds"), "peak_with_margin", None
    )  # it would fail
    layer = nn.Conv2d(48, 48, 3, padding=1)
    assert norm_bounds(layer, (48, 4, 4)).kind == "probabilistic"


def test_an_embedding_that_costs_too_much_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_block_norms, "EXACT", _block_norms.ExactConstants(cheap=0.0, runs=0.0))
    layer = nn.Conv2d(16, 16, 3, padding=1)
    assert norm_bounds(layer, (16, 16, 16)).kind == "probabilistic"
    assert norm_bounds(layer, (16, 16, 16), deterministic=True).kind == "embedding"


# --- Scale, precision, and what comes in --------------------------------------------------


@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_extreme_scales(mode: str, scale: float) -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode=mode, bias=False)
    with_weight(layer, scale * layer.weight)
    interval = norm_bounds(layer, (4, 8, 8))
    assert_holds(interval, dense_norm(layer, (4, 8, 8)))
    assert interval.width <= 0.01


@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
def test_a_zero_layer(mode: str) -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode=mode)
    interval = norm_bounds(with_weight(layer, torch.zeros(4, 4, 3, 3)), (4, 8, 8))
    assert interval.lower == interval.upper == interval.width == 0
    if mode != "reflect":
        assert norm_bounds_all_sizes(layer).upper == 0


@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
def test_operators_and_their_adjoints(mode: str) -> None:
    layer = nn.Conv2d(3, 5, 3, padding=1, padding_mode=mode)
    op = sc.as_operator(layer, (3, 8, 8))
    truth = dense_norm(layer, (3, 8, 8))
    for each in (op, op.adjoint()):
        interval = norm_bounds(each, each.in_shape)
        assert_holds(interval, truth)
        assert interval.width <= 0.01


def test_a_layer_that_knows_one_precision_only() -> None:
    weight = torch.randn(100, 120)
    interval = norm_bounds(lambda x: x @ weight.T, (120,))
    assert interval.kind == "probabilistic"
    assert float(np.linalg.norm(weight.double().numpy(), 2)) in interval


def test_small_layers_of_any_kind_are_exact() -> None:
    interval = norm_bounds(cumulative_sum, (12,))
    assert interval.kind == "exact"
    assert interval.num_matvecs == 12


def test_same_seed_same_result() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
    state = torch.get_rng_state()
    first, second = (norm_bounds(layer, (4, 8, 8)) for _ in range(2))
    assert first == second
    seeds = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    one, same, other = (norm_bounds(layer, (4, 8, 8), generator=seed) for seed in seeds)
    assert one == same != other
    assert torch.equal(state, torch.get_rng_state())


def test_the_layer_is_untouched() -> None:
    layer = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.AvgPool2d(2))
    before = copy.deepcopy(layer.state_dict())
    norm_bounds(layer, (3, 12, 12))
    norm_bounds_all_sizes(layer[:2])
    assert all(torch.equal(before[key], value) for key, value in layer.state_dict().items())
    assert layer.training
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_inside_other_contexts() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
    plain = norm_bounds(layer, (4, 8, 8))
    with torch.inference_mode():
        assert norm_bounds(layer, (4, 8, 8)) == plain
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert norm_bounds(layer, (4, 8, 8)) == plain


# --- What is refused ----------------------------------------------------------------------


@pytest.mark.parametrize("rtol", [0, -0.1, math.nan, math.inf, "0.01", None])
def test_rtol_out_of_range(rtol: Any) -> None:
    with pytest.raises(ValueError, match=r"tol must be a positive number such as 0.01, got"):
        norm_bounds(nn.Linear(3, 3), (3,), tol=rtol)


@pytest.mark.parametrize("failure", [0, 1, -1e-6, math.nan, "1e-6"])
def test_failure_out_of_range(failure: Any) -> None:
    with pytest.raises(ValueError, match=r"failure must be a probability .* deterministic=True"):
        norm_bounds(nn.Linear(3, 3), (3,), failure=failure)


def test_weights_that_are_not_finite() -> None:
    layer = with_weight(nn.Conv2d(2, 2, 3), torch.full((2, 2, 3, 3), math.nan))
    for bounded in (lambda: norm_bounds(layer, (2, 6, 6)), lambda: norm_bounds_all_sizes(layer)):
        with pytest.raises(ValueError, match=r"'weight' of Conv2d.* NaN or infinite"):
            bounded()


def test_a_shape_that_is_missing() -> None:
    with pytest.raises(ValueError, match=r"in_shape.*norm_bounds_all_sizes"):
        norm_bounds(nn.Conv2d(2, 2, 3))


def test_a_shape_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"Conv2d.* cannot be applied to an input of shape"):
        norm_bounds(nn.Conv2d(2, 2, 3), (3, 6, 6))


def test_no_deterministic_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cholesky, "deterministic_upper", lambda op, lower, rtol: None)
    settings = _block_norms.ExactConstants(dense_side_deterministic=2)
    monkeypatch.setattr(_bounds, "EXACT", settings)
    layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
    refusal = r"Conv2d.*256 x 256 matrix.*Use norm_bounds\(\.\.\., deterministic=False\)"
    with pytest.raises(ValueError, match=refusal):
        norm_bounds(layer, (4, 8, 8), deterministic=True)
    # Zero padding always has its embedding.
    wide = norm_bounds(nn.Conv2d(48, 48, 3, padding=1), (48, 4, 4), deterministic=True)
    assert wide.kind == "embedding"
    assert wide.width > 0.01


def test_a_large_reflected_layer_names_the_probabilistic_bound() -> None:
    layer = nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect").double()
    with pytest.raises(ValueError, match=r"too large .* deterministic=False"):
        _bounds._certified(
            sc.as_operator(layer, (64, 100, 100)),
            Interval(1.0, math.inf, "probabilistic", 0.0),
            0.01,
        )


# --- Many random layers -------------------------------------------------------------------


def random_layer(rng: np.random.Generator) -> tuple[Any, tuple[int, ...]]:
    """A small layer of a random kind, and its input shape."""
    axes = int(rng.integers(1, 3))
    groups = int(rng.integers(1, 3))
    inputs, outputs = (groups * int(rng.integers(1, 4 // groups + 1)) for _ in range(2))
    size = tuple(int(rng.integers(2, 11)) for _ in range(axes))
    options: dict[str, Any] = {
        "kernel_size": tuple(int(rng.integers(1, 5)) for _ in range(axes)),
        "stride": tuple(int(rng.integers(1, 4)) for _ in range(axes)),
        "dilation": tuple(int(rng.integers(1, 4)) for _ in range(axes)),
        "padding": tuple(int(rng.integers(0, 4)) for _ in range(axes)),
        "groups": groups,
        "dtype": [torch.float32, torch.float64][rng.integers(2)],
    }
    kind = (nn.Conv1d, nn.Conv2d)[axes - 1]
    if rng.random() < 0.25:
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d)[axes - 1]
    else:
        modes = ["zeros", "zeros", "reflect", "replicate", "circular"]
        options["padding_mode"] = modes[rng.integers(len(modes))]
    return kind(inputs, outputs, **options), (inputs, *size)


def accepted(layer: nn.Module, in_shape: tuple[int, ...]) -> bool:
    example = torch.zeros(1, *in_shape, dtype=next(layer.parameters()).dtype)
    try:
        with torch.no_grad():
            return layer(example).numel() > 0
    except (RuntimeError, ValueError):
        return False


def check_random_layers(count: int, seed: int) -> Counter[str]:
    rng, kinds = np.random.default_rng(seed), Counter[str]()
    while kinds.total() < count:
        layer, in_shape = random_layer(rng)
        if not accepted(layer, in_shape):
            continue
        seeded = torch.Generator().manual_seed(kinds.total())
        interval = norm_bounds(layer, in_shape, generator=seeded)
        assert_holds(interval, dense_norm(layer, in_shape))
        assert interval.width <= 0.01
        kinds[interval.kind] += 1
    return kinds


@pytest.mark.usefixtures("iterate_always")
def test_random_layers() -> None:
    kinds = check_random_layers(150, seed=1)
    assert min(kinds[kind] for kind in ("exact", "embedding", "probabilistic")) > 5


@pytest.mark.slow
@pytest.mark.usefixtures("iterate_always")
def test_ten_thousand_random_layers() -> None:
    kinds = check_random_layers(10_000, seed=2)
    assert min(kinds[kind] for kind in ("exact", "embedding", "probabilistic")) > 300
