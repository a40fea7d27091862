"""`clip_` against dense float64 oracles, and an independent convex solver on small layers."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from cases import (
    CASES,
    HALF_CASES,
    Case,
    modules,
    params,
)
from seeds import seeded
from torch import nn
from torch.nn.utils import parametrizations

import spectralclip._clipping.clip
from oracle import dense_matrix, dense_norm
from spectralclip import clip_, norm_bounds
from spectralclip._clipping import moving_names
from spectralclip._clipping.douglas_rachford import TorusSymbols, clip_on_torus
from spectralclip._clipping.metric import PlainMetric
from spectralclip._operators.maps import ConvGeometry, ConvMap

NOTHING = "nothing to clip"
UNMOVED = "does not follow the scale"
# Every case that is refused, with what the error says.
REFUSED = {
    "identity": NOTHING,
    "batch-norm2d-not-affine": NOTHING,
    "instance-norm-tracked": NOTHING,
    "average-pool1d": NOTHING,
    "average-pool2d": NOTHING,
    "average-pool2d-padded": NOTHING,
    "average-pool2d-padding-not-counted": NOTHING,
    "average-pool2d-ceil": NOTHING,
    "average-pool3d": NOTHING,
    "adaptive-pool2d": NOTHING,
    "global-pool2d": NOTHING,
    "flatten": NOTHING,
    "unflatten": NOTHING,
    "upsample-nearest": NOTHING,
    "upsample-bilinear": NOTHING,
    "pixel-shuffle": NOTHING,
    "pixel-unshuffle": NOTHING,
    "fold": NOTHING,
    "unfold": NOTHING,
    "zero-pad": NOTHING,
    "swap-axes": NOTHING,
    "constant": NOTHING,
    "callable": NOTHING,
    "callable-without-weights": NOTHING,
    "orthogonal": UNMOVED,
    "orthogonal-wide": UNMOVED,
    "spectral-norm": UNMOVED,
    "spectral-norm-linear": UNMOVED,
    "old-spectral-norm": UNMOVED,
}


def snapshot(layer: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for module in modules(layer) for p in module.parameters()]


def conv2d(c_in: int, c_out: int, kernel: int = 3, *, seed: int = 0, **options: Any) -> nn.Conv2d:
    with seeded(seed):
        options.setdefault("padding", kernel // 2)
        return nn.Conv2d(c_in, c_out, kernel, bias=False, **options)


CLIPPED = [case for case in CASES if case.name not in REFUSED]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", params(CLIPPED))
def test_reaches_the_bound(case: Case) -> None:
    layer = case.make()
    before = dense_norm(layer, case.in_shape)
    if before == 0:
        assert clip_(layer, case.in_shape, 1.0).distance == 0
        return
    start = dense_matrix(layer, case.in_shape)
    result = clip_(layer, case.in_shape, 0.6 * before)
    after = dense_matrix(layer, case.in_shape)
    assert 0.995 * 0.6 * before <= np.linalg.norm(after, 2) <= 1.001 * 0.6 * before
    assert result.norm_before == pytest.approx(before, rel=2e-3)
    assert result.norm_after == pytest.approx(0.6 * before, rel=5e-3)
    assert result.distance == pytest.approx(np.linalg.norm(after - start), rel=1e-3)
    if result.distance_lower_bound is not None:
        assert result.distance_lower_bound <= result.distance * (1 + 1e-5)


@pytest.mark.parametrize("case", params([case for case in CASES if case.name in REFUSED]))
def test_refuses_what_cannot_be_clipped(case: Case) -> None:
    layer = case.make()
    before = snapshot(layer)
    with pytest.raises(ValueError, match=REFUSED[case.name]):
        clip_(layer, case.in_shape, 0.6 * dense_norm(layer, case.in_shape) or 1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(layer), strict=True))


@pytest.mark.parametrize("case", params(CLIPPED))
def test_leaves_a_layer_within_the_bound_alone(case: Case) -> None:
    layer = case.make()
    before = snapshot(layer)
    result = clip_(layer, case.in_shape, 1.01 * dense_norm(layer, case.in_shape) + 1e-9)
    assert result.distance == 0 and result.converged and result.rounds == 0
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(layer), strict=True))


@pytest.mark.parametrize("case", params(HALF_CASES))
def test_half_precision_holds_after_rounding(case: Case) -> None:
    layer = case.make()
    before = dense_norm(layer, case.in_shape)
    dtypes = [p.dtype for p in snapshot(layer)]
    clip_(layer, case.in_shape, 0.7 * before)
    assert [p.dtype for p in snapshot(layer)] == dtypes
    assert 0.98 * 0.7 * before <= dense_norm(layer, case.in_shape) <= 1.001 * 0.7 * before


SMALL_CONVOLUTIONS = {
    "zeros": (lambda: conv2d(3, 4), (3, 6, 6)),
    "circular": (lambda: conv2d(3, 4, padding_mode="circular"), (3, 6, 6)),
    "reflect": (lambda: conv2d(3, 4, padding_mode="reflect"), (3, 6, 6)),
    "replicate-stride": (lambda: conv2d(3, 4, stride=2, padding_mode="replicate"), (3, 7, 7)),
    "dilated": (lambda: conv2d(2, 2, dilation=2, padding=2), (2, 8, 8)),
    "groups": (lambda: conv2d(4, 4, groups=2), (4, 6, 6)),
    "conv-bn": (
        lambda: nn.Sequential(conv2d(3, 4), nn.BatchNorm2d(4)).requires_grad_(False),
        (3, 6, 6),
    ),
}


@pytest.mark.parametrize("name", SMALL_CONVOLUTIONS)
@pytest.mark.parametrize("share", [0.4, 0.9])
def test_exact_is_within_one_percent_of_its_bound(name: str, share: float) -> None:
    make, in_shape = SMALL_CONVOLUTIONS[name]
    layer = make()
    bound = share * dense_norm(layer, in_shape)
    result = clip_(layer, in_shape, bound, exact=True)
    assert result.converged and result.distance_lower_bound is not None
    assert result.distance_lower_bound <= result.distance <= 1.01 * result.distance_lower_bound
    assert 0.995 * bound <= dense_norm(layer, in_shape) <= 1.001 * bound


def projection_distance(layer: nn.Module, in_shape: tuple[int, ...], bound: float) -> float:
    """The true distance, by a semidefinite program over the layer's own weights."""
    import cvxpy  # takes a second

    weight = layer.get_parameter("weight")
    start, basis = dense_matrix(layer, in_shape), []
    for index in itertools.product(*[range(size) for size in weight.shape]):
        unit = copy.deepcopy(layer)
        with torch.no_grad():
            unit.get_parameter("weight").zero_()[index] = 1.0
        basis.append(dense_matrix(unit, in_shape))
    weights = cvxpy.Variable(len(basis))
    moved = sum(weights[j] * basis[j] for j in range(len(basis)))
    problem = cvxpy.Problem(
        cvxpy.Minimize(cvxpy.norm(moved - start, "fro")), [cvxpy.sigma_max(moved) <= bound]
    )
    return float(problem.solve(solver=cvxpy.CLARABEL))


@pytest.mark.parametrize(
    ("make", "in_shape"),
    [
        pytest.param(lambda: nn.Conv1d(2, 2, 3, padding=1, bias=False), (2, 5), id="zeros"),
        pytest.param(
            lambda: nn.Conv1d(2, 2, 3, padding=1, padding_mode="reflect", bias=False),
            (2, 5),
            id="reflect",
        ),
        pytest.param(
            lambda: nn.Conv1d(2, 3, 2, padding=1, padding_mode="circular", bias=False),
            (2, 5),
            id="circular",
        ),
        pytest.param(lambda: nn.Conv2d(1, 2, 2, stride=2, padding=1), (1, 4, 4), id="stride"),
        pytest.param(lambda: nn.Linear(4, 5, bias=False), (4,), id="dense"),
    ],
)
def test_distance_against_a_convex_solver(make: Any, in_shape: tuple[int, ...]) -> None:
    with seeded(3):
        layer = make()
    bound = 0.6 * dense_norm(layer, in_shape)
    truth = projection_distance(layer, in_shape, bound)
    exact = clip_(copy.deepcopy(layer), in_shape, bound, exact=True)
    assert exact.distance_lower_bound is not None
    assert exact.distance_lower_bound <= truth * (1 + 1e-4)
    assert truth * (1 - 2e-3) <= exact.distance <= 1.01 * truth
    default = clip_(layer, in_shape, bound)
    assert truth * (1 - 2e-3) <= default.distance <= 1.15 * truth


@pytest.mark.parametrize("name", SMALL_CONVOLUTIONS)
def test_idempotent(name: str) -> None:
    make, in_shape = SMALL_CONVOLUTIONS[name]
    layer = make()
    bound = 0.5 * dense_norm(layer, in_shape)
    clip_(layer, in_shape, bound)
    before = snapshot(layer)
    assert clip_(layer, in_shape, bound).distance == 0
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(layer), strict=True))


@pytest.mark.parametrize("name", ["zeros", "circular", "reflect"])
@pytest.mark.parametrize("scale", [2.0**-60, 2.0**60])
def test_scale_equivariance(name: str, scale: float) -> None:
    make, in_shape = SMALL_CONVOLUTIONS[name]
    layer, scaled = make(), make()
    with torch.no_grad():
        scaled.weight.mul_(scale)
    bound = 0.5 * dense_norm(layer, in_shape)
    clip_(layer, in_shape, bound)
    clip_(scaled, in_shape, scale * bound)
    torch.testing.assert_close(scaled.weight / scale, layer.weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["zeros", "reflect"])
def test_permuting_channels_permutes_the_result(name: str) -> None:
    make, in_shape = SMALL_CONVOLUTIONS[name]
    layer, permuted = make(), make()
    order, sign = torch.tensor([2, 0, 3, 1]), torch.tensor([1.0, -1.0, -1.0, 1.0])
    with torch.no_grad():
        permuted.weight.copy_(layer.weight[order] * sign[:, None, None, None])
    bound = 0.5 * dense_norm(layer, in_shape)
    first = clip_(layer, in_shape, bound, exact=True)
    second = clip_(permuted, in_shape, bound, exact=True)
    assert second.distance == pytest.approx(first.distance, rel=0.01)
    expected = layer.weight[order] * sign[:, None, None, None]
    torch.testing.assert_close(permuted.weight, expected, rtol=0.05, atol=0.01)


def full_size_kernel(seed: int) -> nn.Conv1d:
    """A circular convolution whose kernel is as long as its input: every symbol is free."""
    with seeded(seed):
        return nn.Conv1d(2, 3, 5, padding=2, padding_mode="circular", bias=False)


def test_full_size_kernels_are_clipped_symbol_by_symbol() -> None:
    conv = full_size_kernel(0)
    bound = 0.5 * dense_norm(conv, (2, 5))
    symbols = np.fft.fft(conv.weight.detach().double().numpy(), axis=-1).transpose(2, 0, 1)
    U, S, Vh = np.linalg.svd(symbols, full_matrices=False)
    clipped = (U * np.minimum(S, bound)[:, None, :]) @ Vh
    expected = np.fft.ifft(clipped.transpose(1, 2, 0), axis=-1).real
    clip_(conv, (2, 5), bound, exact=True)
    np.testing.assert_allclose(conv.weight.detach().numpy(), expected, atol=5e-3)


def test_translation_equivariance() -> None:
    conv, moved = full_size_kernel(1), full_size_kernel(1)
    with torch.no_grad():
        moved.weight.copy_(conv.weight.roll(2, -1))
    bound = 0.5 * dense_norm(conv, (2, 5))
    clip_(conv, (2, 5), bound, exact=True)
    clip_(moved, (2, 5), bound, exact=True)
    torch.testing.assert_close(moved.weight, conv.weight.roll(2, -1), rtol=0.02, atol=5e-3)


def trained_batch_norm(channels: int) -> nn.BatchNorm2d:
    bn = nn.BatchNorm2d(channels)
    generator = torch.Generator().manual_seed(0)
    for tensor in (bn.weight.data, bn.running_var):
        tensor.copy_(torch.rand(channels, generator=generator) + 0.5)
    bn.weight.data[0] = 0.0  # a dead channel: the convolution's part stays as it was
    return bn


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


@pytest.mark.parametrize("name", SMALL_CONVOLUTIONS)
@pytest.mark.parametrize("certify", [True, "deterministic"])
def test_certified(name: str, certify: Any) -> None:
    make, in_shape = SMALL_CONVOLUTIONS[name]
    layer = make()
    bound = 0.5 * dense_norm(layer, in_shape)
    result = clip_(layer, in_shape, bound, certify=certify)
    bounds = norm_bounds(layer, in_shape, deterministic=certify == "deterministic")
    assert bounds.upper <= bound and result.norm_after <= bound
    assert bounds.lower >= 0.985 * bound
    assert dense_norm(layer, in_shape) <= bound


def test_same_seed_same_result() -> None:
    layers = [conv2d(3, 4, padding_mode="reflect") for _ in range(2)]
    for layer in layers:
        clip_(layer, (3, 6, 6), 0.3, generator=torch.Generator().manual_seed(5))
    assert torch.equal(layers[0].weight, layers[1].weight)


def test_leaves_everything_else_as_it_was() -> None:
    conv = conv2d(3, 4).train()
    conv.weight.grad = torch.ones_like(conv.weight)
    keys, state = list(conv.state_dict()), torch.random.get_rng_state()
    clip_(conv, (3, 6, 6), 0.1)
    assert list(conv.state_dict()) == keys and conv.training
    assert torch.equal(conv.weight.grad, torch.ones_like(conv.weight))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert conv.weight.requires_grad and conv.weight.is_leaf


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failing_clip_leaves_the_layer_as_it_was(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    conv = conv2d(3, 4)
    before = conv.weight.clone()
    monkeypatch.setattr(spectralclip._clipping.clip, "norm_bounds", fail)
    with pytest.raises(error):
        clip_(conv, (3, 6, 6), 0.1, certify=True)
    assert torch.equal(conv.weight, before)


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_norm": 0.0}, "max_norm must be a positive number.*got 0.0"),
        ({"max_norm": -1}, "max_norm must be a positive number"),
        ({"max_norm": float("nan")}, "max_norm must be a positive number.*got nan"),
        ({"max_norm": float("inf")}, "max_norm must be a positive number.*got inf"),
        ({"tol": 0.0}, "tol must be a number between 0 and 0.1"),
        ({"tol": 0.5}, "tol must be a number between 0 and 0.1"),
        ({"move": "last"}, 'move must be "first" or "all", got \'last\''),
        ({"certify": "yes"}, 'certify must be False, True or "deterministic"'),
        ({"in_shape": (4, 6, 6)}, "cannot be applied to an input of shape"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    conv = conv2d(3, 4)
    before = conv.weight.clone()
    call = {"max_norm": 0.1, "in_shape": (3, 6, 6), **arguments}
    with pytest.raises(ValueError, match=message):
        clip_(conv, call.pop("in_shape"), call.pop("max_norm"), **call)
    assert torch.equal(conv.weight, before)


def test_bad_layers() -> None:
    conv = conv2d(3, 4)
    with torch.no_grad():
        conv.weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        clip_(conv, (3, 6, 6), 1.0)
    with pytest.raises(ValueError, match="not affine"):
        clip_(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (3,), 1.0)
    with pytest.raises(TypeError, match="give the layer, not its operator"):
        clip_(spectralclip.as_operator(nn.Linear(3, 3), (3,)), (3,), 1.0)  # type: ignore[arg-type]


class Wrapped(nn.Module):
    """A layer that only its own forward knows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scale", [1e2, 1e4, 1e8])
@pytest.mark.parametrize("kind", ["dense", "zeros", "reflect", "conv-bn", "wrapped"])
def test_when_little_is_left(kind: str, scale: float) -> None:
    with seeded(0):
        conv = conv2d(3, 4, padding_mode="reflect" if kind == "reflect" else "zeros")
        bn = trained_batch_norm(4)
        layer = {"dense": nn.Linear(20, 20), "conv-bn": nn.Sequential(conv, bn)}.get(kind, conv)
        layer = Wrapped(conv) if kind == "wrapped" else layer
    in_shape = (20,) if kind == "dense" else (3, 8, 8)
    with torch.no_grad():
        (layer.weight if kind == "dense" else conv.weight).mul_(scale)
    clip_(layer, in_shape, 1.0)
    assert 0.99 <= dense_norm(layer, in_shape) <= 1.001


@pytest.mark.parametrize("scale", [1e-20, 1e-10, 1e10])
def test_layers_without_an_explicit_form_at_any_scale(scale: float) -> None:
    layer = Wrapped(conv2d(4, 4))
    with torch.no_grad():
        layer.inner.weight.mul_(scale)
    bound = 0.5 * dense_norm(layer, (4, 8, 8))
    clip_(layer, (4, 8, 8), bound)
    assert 0.99 * bound <= dense_norm(layer, (4, 8, 8)) <= 1.001 * bound


@pytest.mark.parametrize("gamma", [1e-44, 1e-40, 1e-20, 1e-7, 0.0])
@pytest.mark.parametrize("kernel", [1, 3])
def test_dead_channels_stay_as_they_are(gamma: float, kernel: int) -> None:
    conv, bn = conv2d(8, 8, kernel), nn.BatchNorm2d(8)
    with torch.no_grad():
        bn.weight[:2] = gamma
    dead = conv.weight[:2].clone()
    bound = 0.5 * dense_norm([conv, bn], (8, 8, 8))
    clip_([conv, bn], (8, 8, 8), bound)
    assert torch.equal(conv.weight[:2], dead)
    assert dense_norm([conv, bn], (8, 8, 8)) <= 1.001 * bound


@pytest.mark.parametrize("seed", range(20))
def test_half_precision_is_certified_after_rounding(seed: int) -> None:
    with seeded(seed):
        dense = nn.Linear(3, 2, bias=False).bfloat16()
    bound = 0.5 * dense_norm(dense, (3,))
    clip_(dense, (3,), bound, certify="deterministic")
    assert 0.97 * bound <= dense_norm(dense, (3,)) <= bound


def test_with_another_default_device() -> None:
    layers = [nn.Linear(5, 4), conv2d(3, 4), conv2d(3, 4, padding_mode="reflect")]
    torch.set_default_device("meta")
    try:
        for layer, in_shape in zip(layers, [(5,), (3, 8, 8), (3, 8, 8)], strict=True):
            clip_(layer, in_shape, 0.1)
    finally:
        torch.set_default_device(None)
    assert dense_norm(layers[0], (5,)) <= 0.1001
    assert all(dense_norm(layer, (3, 8, 8)) <= 0.1001 for layer in layers[1:])


# --- the parts -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_metric_is_the_frobenius_norm(mode: str, stride: int, dilation: int) -> None:
    conv = conv2d(2, 3, stride=stride, dilation=dilation, padding=2, padding_mode=mode, seed=stride)
    geometry = ConvGeometry((stride,) * 2, (dilation,) * 2, (2, 2), (2, 2), 1, mode)
    map_ = ConvMap(conv.weight.detach(), geometry, (2, 7, 6), channels_last=False)
    metric = PlainMetric(map_)
    expected = np.linalg.norm(dense_matrix(conv, (2, 7, 6)))
    assert metric.norm(conv.weight.detach()) == pytest.approx(expected, rel=1e-6)
    back = metric.apply(metric.solve(conv.weight.detach().double()))
    torch.testing.assert_close(back, conv.weight.detach().double())


@pytest.mark.parametrize("stride", [1, 2])
def test_clipping_on_a_torus(stride: int) -> None:
    conv = conv2d(3, 4, stride=stride, padding_mode="circular")
    geometry = ConvGeometry((stride,) * 2, (1, 1), (1, 1), (1, 1), 1, "circular")
    map_ = ConvMap(conv.weight.detach(), geometry, (3, 8, 8), channels_last=False)
    symbols = TorusSymbols(map_, (8, 8))
    weight = conv.weight.detach()
    torch.testing.assert_close(symbols.adjoint(symbols.forward(weight)), symbols.gain * weight)
    bound = 0.6 * dense_norm(conv, (3, 8, 8))
    with torch.no_grad():
        conv.weight.copy_(clip_on_torus(map_, (8, 8), bound, 60).point)
    assert dense_norm(conv, (3, 8, 8)) == pytest.approx(bound, rel=5e-3)
