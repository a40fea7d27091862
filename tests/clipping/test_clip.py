"""`clip_` against dense float64 oracles, and an independent convex solver on small layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, HALF_CASES, Case, params
from clip_cases import SMALL_CONVOLUTIONS, conv2d, snapshot, trained_batch_norm
from seeds import seeded
from torch import nn

import spectralclip._clipping.clip
from oracle import dense_matrix, dense_norm
from spectralclip import clip_, norm_bounds

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
