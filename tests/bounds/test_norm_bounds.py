"""Bounds on norms against NumPy's dense SVD in float64."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from cases import (
    CASES,
    HALF_CASES,
    Case,
    LowRank,
    cumulative_sum,
    dense_singular_values,
    params,
    train_batch_norm,
    with_weight,
)
from drawn_convolutions import EXAMPLES, SAME_EVEN, convolutions
from hypothesis import given
from torch import nn

import spectralclip as sc
from oracle import dense_norm
from spectralclip._bounds import Interval, norm_bounds, norm_bounds_all_sizes
from spectralclip._bounds import exact as _block_norms
from spectralclip._bounds import lanczos as _lanczos_bound

_bounds = importlib.import_module("spectralclip._bounds.norm_bounds")  # not the function

DETERMINISTIC = {"exact", "embedding", "every size", "cholesky"}
# Where torch divides by the norm + 1e-7, the operator divides by the norm.
INEXACT = {"embedding-max-norm": 1e-7}


@pytest.fixture
def iterate_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers go the way of large ones, instead of being decomposed."""
    settings = _block_norms.ExactConstants(dense_side=2, dense_side_deterministic=2)
    monkeypatch.setattr(_bounds, "EXACT", settings)


def assert_holds(interval: Interval, truth: float, error: float = 0.0) -> None:
    """The truth is inside, and the interval is what it says."""
    assert interval.lower <= truth * (1 + error)
    assert truth * (1 - error) <= interval.upper
    assert 0 <= interval.lower <= interval.upper < math.inf
    assert (interval.failure == 0) == (interval.kind in DETERMINISTIC)


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


# --- The probabilistic bound --------------------------------------------------------------

PADDINGS = ["reflect", "replicate"]


@pytest.mark.parametrize("mode", PADDINGS)
@pytest.mark.parametrize(("channels", "side"), [(16, 20), (64, 8)])
def test_one_percent_takes_few_pairs(mode: str, channels: int, side: int) -> None:
    layer = nn.Conv2d(channels, channels, 3, padding=1, padding_mode=mode)
    in_shape = (channels, side, side)
    interval = norm_bounds(layer, in_shape)
    assert interval.kind == "probabilistic"
    assert interval.failure == 1e-6
    assert interval.width <= 0.01
    assert interval.num_matvecs <= 160
    assert float(sc.svds(layer.double(), in_shape, 1, tol=1e-8).S[0]) in interval


@pytest.mark.parametrize("rtol", [0.1, 1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_width_is_what_was_asked_for(rtol: float, dtype: torch.dtype) -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", dtype=dtype)
    interval = norm_bounds(layer, (4, 6, 6), tol=rtol)
    assert interval.width <= rtol
    assert_holds(interval, dense_norm(layer, (4, 6, 6)))


def test_the_rate_of_failures_is_the_nominal_one() -> None:
    """At a nominal rate so large that failures are seen; it is nearly reached, not exceeded."""
    layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect").double()
    truth, nominal, runs = dense_norm(layer, (4, 8, 8)), 0.2, 400
    failures = 0
    for seed in range(runs):
        seeded = torch.Generator().manual_seed(seed)
        interval = norm_bounds(layer, (4, 8, 8), tol=0.02, failure=nominal, generator=seeded)
        assert interval.lower <= truth
        failures += truth > interval.upper
    assert 0.5 * nominal <= failures / runs <= nominal + 2 * math.sqrt(nominal / runs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_a_basis_that_ends_early(rank: int, dtype: torch.dtype) -> None:
    """Nothing more can be learned from an invariant subspace than how far the start reached."""
    layer = LowRank(150, rank, 120).to(dtype)
    interval = norm_bounds(layer, (150,))
    assert interval.kind == "probabilistic"
    assert_holds(interval, dense_norm(layer, (150,)))
    assert interval.width <= 0.01


def test_too_few_steps_give_a_wide_interval_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lanczos_bound, "SEARCH", _lanczos_bound.SearchConstants(steps=12))
    layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
    interval = norm_bounds(layer, (4, 8, 8), tol=1e-3)
    assert 1e-3 < interval.width < 1
    assert_holds(interval, dense_norm(layer, (4, 8, 8)))


# --- Every input size ---------------------------------------------------------------------

SIZELESS: dict[str, Any] = {
    "zeros": lambda: nn.Conv1d(2, 3, 3, padding=1),
    "valid": lambda: nn.Conv1d(3, 2, 4),
    "stride": lambda: nn.Conv1d(2, 3, 5, stride=2, padding=2),
    "stride-over-kernel": lambda: nn.Conv1d(2, 3, 2, stride=3),
    "dilation": lambda: nn.Conv1d(2, 2, 3, dilation=2, padding=2),
    "dilation-stride": lambda: nn.Conv1d(2, 2, 4, dilation=2, stride=4, padding=3),
    "dilation-stride-coprime": lambda: nn.Conv1d(2, 2, 3, dilation=3, stride=2, padding=3),
    "groups": lambda: nn.Conv1d(4, 6, 3, groups=2, padding=1),
    "over-padded": lambda: nn.Conv1d(2, 2, 2, padding=3),
    "same-even": lambda: nn.Conv1d(2, 2, 4, padding="same"),
    "circular": lambda: nn.Conv1d(2, 3, 5, padding=2, padding_mode="circular"),
    "circular-stride": lambda: nn.Conv1d(2, 3, 3, padding=1, stride=2, padding_mode="circular"),
    "transposed": lambda: nn.ConvTranspose1d(3, 2, 4, stride=2, padding=1),
    "transposed-bn": lambda: [nn.ConvTranspose1d(3, 2, 3), nn.BatchNorm1d(2)],
    "conv-bn": lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.BatchNorm1d(3)),
    "bn-conv": lambda: [nn.BatchNorm1d(2), nn.Conv1d(2, 3, 3, padding=1)],
    "weight-norm": lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 3, padding=1)),
}


def made(name: str) -> Any:
    layer = SIZELESS[name]()
    for part in layer if isinstance(layer, (list, nn.Sequential)) else [layer]:
        if isinstance(part, nn.BatchNorm1d):
            train_batch_norm(part)
    return layer


@pytest.mark.filterwarnings(SAME_EVEN)
@pytest.mark.parametrize("name", SIZELESS)
def test_a_bound_for_every_size(name: str) -> None:
    layer = made(name)
    interval = norm_bounds_all_sizes(layer)
    assert interval.kind == "every size"
    first = layer[0] if isinstance(layer, (list, nn.Sequential)) else layer
    channels = getattr(first, "in_channels", None) or first.num_features
    norms = [dense_norm(layer, (channels, size)) for size in (*range(4, 25), 96)]
    assert max(norms) <= interval.upper
    # The lower end is approached as the size grows.
    assert norms[-1] >= 0.99 * interval.lower
    if name != "circular-stride":
        assert interval.width <= 0.01
    assert dataclasses.replace(interval, failure=0.0, num_matvecs=0) == interval


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Conv2d(2, 3, (3, 5), stride=(1, 2), padding=2),
        nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1),
        nn.Conv2d(2, 2, 3, padding=2, dilation=2, padding_mode="circular"),
    ],
    ids=["zeros", "uneven", "transposed", "circular-dilated"],
)
def test_a_bound_for_every_size_2d(layer: nn.Module) -> None:
    interval = norm_bounds_all_sizes(layer)
    norms = [dense_norm(layer, (2, n, n + 1)) for n in (4, 5, 8, 13, 16)]
    assert max(norms) <= interval.upper
    assert max(norms) >= 0.9 * interval.lower
    assert interval.width <= 0.01
    large = float(sc.svds(layer, (2, 60, 60), 1, tol=1e-6).S[0])
    assert 0.99 * interval.lower <= large <= interval.upper


def test_a_bound_for_every_size_3d() -> None:
    layer = nn.Conv3d(1, 2, (2, 3, 2), padding=1)
    interval = norm_bounds_all_sizes(layer, tol=0.05)
    assert interval.width <= 0.05
    assert dense_norm(layer, (1, 6, 7, 6)) <= interval.upper


def test_windows_closer_than_a_stride_across_the_seam() -> None:
    """At a size that the stride does not divide, two windows of ones see the same three pixels."""
    layer = nn.Conv1d(1, 1, 3, stride=2, padding=1, padding_mode="circular")
    layer = with_weight(layer, torch.ones(1, 1, 3))
    interval = norm_bounds_all_sizes(layer)
    assert dense_norm(layer, (1, 3)) > math.sqrt(5) * 1.05  # above all sizes that it divides
    assert dense_norm(layer, (1, 3)) <= interval.upper
    assert interval.lower == pytest.approx(math.sqrt(5), rel=1e-2)


@pytest.mark.parametrize("degree", [1, 2, 5])
@pytest.mark.parametrize("rtol", [1e-3, 0.01, 0.3])
def test_between_the_points_of_the_grid(degree: int, rtol: float) -> None:
    """One channel: the symbol's maximum from a grid a thousand times finer."""
    layer = nn.Conv1d(1, 1, degree + 1).double()
    taps = layer.weight.detach().numpy()[0, 0]
    finest = np.abs(np.fft.fft(taps, 50_000)).max()
    interval = norm_bounds_all_sizes(layer, tol=rtol)
    assert interval.lower <= finest * (1 + 1e-8)
    assert finest <= interval.upper
    assert interval.width <= rtol


@pytest.mark.parametrize(
    ("layer", "in_shape"),
    [
        (nn.Linear(7, 5), (7,)),
        (nn.BatchNorm2d(4, affine=False), (4, 3, 3)),
        (nn.BatchNorm1d(4), (4,)),
        (nn.BatchNorm3d(4), (4, 2, 2, 2)),
        (nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5)), (7,)),
    ],
    ids=["linear", "batch-norm2d", "batch-norm1d", "batch-norm3d", "linear-bn"],
)
def test_layers_without_a_size(layer: nn.Module, in_shape: tuple[int, ...]) -> None:
    interval = norm_bounds_all_sizes(layer)
    assert interval.kind == "exact"
    assert dense_norm(layer, in_shape) in interval


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


def test_an_interval() -> None:
    interval = Interval(2.0, 2.5, "probabilistic", 1e-6)
    assert 2.0 in interval
    assert torch.tensor(2.5) in interval
    assert 1.99 not in interval
    assert 2.51 not in interval
    assert interval.width == 0.25
    assert Interval(0.0, 0.0, "exact", 0.0).width == 0
    assert Interval(0.0, 1.0, "exact", 0.0).width == math.inf
    with pytest.raises(dataclasses.FrozenInstanceError):
        interval.upper = 3.0  # type: ignore[misc]


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


REFUSED: dict[str, Any] = {
    "reflect": nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
    "replicate": nn.Conv2d(2, 2, 3, padding=1, padding_mode="replicate"),
    "repeated-windows": nn.Conv2d(2, 2, 3, padding=3, padding_mode="circular"),
    "pool": nn.AvgPool2d(2),
    "two-convs": [nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3)],
    "conv-linear": [nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(2, 2)],
    "callable": cumulative_sum,
    "empty": [],
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_bound_for_every_size(name: str) -> None:
    refusal = r"at every input size is known for .* Use norm_bounds\(layer, in_shape"
    with pytest.raises(ValueError, match=refusal):
        norm_bounds_all_sizes(REFUSED[name])


def test_no_deterministic_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = pytest.importorskip("spectralclip._bounds.cholesky")
    monkeypatch.setattr(certificates, "deterministic_upper", lambda op, lower, rtol: None)
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
