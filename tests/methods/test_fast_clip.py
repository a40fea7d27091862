"""FastClip does what the paper prints, at the cost of what it prints."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from cases import linear_with_values, train_batch_norm
from torch import Tensor, nn
from training_cases import (
    EXAMPLE,
    assert_identical,
    loss_of,
    sgd,
    small_network,
    snapshot,
    train,
    true_norms,
)

from oracle import dense_matrix, dense_norm
from spectralclip import NormWarning, attach
from spectralclip.methods import FastClip, _followed, paper_clip_

# --- The algorithm as printed, on dense matrices and by torch's own gradients ----------------


def random_vectors(in_shape: tuple[int, ...]) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(math.prod(in_shape))
    while True:
        yield torch.randn(1, *in_shape, generator=generator, dtype=torch.float64)


class Printed:
    """Algorithm 3 on modules in float64 and evaluation mode, by way of their matrix."""

    def __init__(
        self, modules: Sequence[nn.Module], in_shape: tuple[int, ...], lr: float, every: int
    ) -> None:
        self.modules, self.in_shape = list(modules), in_shape
        self.lr, self.every = lr, every
        self.vectors = random_vectors(in_shape)
        self.v: Tensor | None = None
        self.sigma = 0.0

    def power_qr(self, start: Tensor, iterations: int) -> None:
        matrix = dense_matrix(self.modules, self.in_shape)
        X = start.reshape(1, -1).numpy().T
        for _ in range(iterations):
            X, R = np.linalg.qr(X + matrix.T @ (matrix @ X))
        self.sigma = math.sqrt(abs(R[0, 0]) - 1)
        self.v = torch.from_numpy(X.T.copy()).reshape(1, *self.in_shape)

    def f(self, x: Tensor) -> Tensor:
        for module in self.modules:
            x = module(x)
        return x

    def after_step(self, step: int, c: float, inner_steps: int) -> None:
        if self.v is None:
            self.power_qr(next(self.vectors), 10)
        self.power_qr(self.v, 1)
        if step % self.every or self.sigma <= c:
            return
        zero = torch.zeros_like(self.v)
        with torch.no_grad():
            target = self.f(c / self.sigma * self.v) - self.f(zero)
        for _ in range(inner_steps):
            loss = (self.f(self.v) - self.f(zero) - target).square().sum() / 2
            weights = [module.weight for module in self.modules]
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.sub_(gradient, alpha=self.lr)
        self.power_qr(next(self.vectors), 10)


class Scaled(nn.Module):
    """A layer of no known type, with an offset that depends on what is no bias by name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 6))
        self.register_buffer("scale", torch.rand(6) + 0.5)
        self.register_buffer("offset", torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale) @ self.weight.T + self.offset


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dense": (lambda: [nn.Linear(9, 7)], (9,)),
    "conv": (lambda: [nn.Conv2d(3, 4, 3, padding=1, stride=2)], (3, 7, 7)),
    "reflect": (lambda: [nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")], (3, 9, 9)),
    "conv1d": (lambda: [nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular")], (3, 11)),
    "transposed": (lambda: [nn.ConvTranspose2d(3, 4, 3, stride=2)], (3, 5, 5)),
    "custom": (lambda: [Scaled()], (6,)),
    "conv-bn": (lambda: [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)], (3, 8, 8)),
    "dense-bn": (lambda: [nn.Linear(9, 7), nn.BatchNorm1d(7)], (9,)),
}


def made(name: str) -> tuple[nn.Sequential, tuple[int, ...]]:
    make, in_shape = CASES[name]
    layers = make()
    for layer in layers[1:]:
        train_batch_norm(layer)
    return nn.Sequential(*layers).double(), in_shape


def same_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the method draw what `Printed` draws."""
    sources: dict[Any, Iterator[Tensor]] = {}

    def fresh(followed: Any) -> Tensor:
        shape = followed.function.in_shape
        return next(sources.setdefault(followed, random_vectors(shape)))

    monkeypatch.setattr(_followed.FollowedLayer, "_fresh_vector", fresh)


@pytest.mark.parametrize("inner_steps", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_algorithm_3_as_printed(
    name: str, inner_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_vectors(monkeypatch)
    model, in_shape = made(name)
    twin = copy.deepcopy(model).eval()
    c = 0.7 * dense_norm(model, in_shape)
    method = FastClip(
        lr=0.05, inner_steps=inner_steps, every=4, concat=True, concat_lr=0.02, concat_every=3
    )
    attachment = attach(model, None, torch.zeros(2, *in_shape).double(), method=method, max_norm=c)
    (layer,) = attachment.layers
    printed = [Printed(twin[:1], in_shape, 0.05, 4)]
    if len(twin) > 1:
        printed.insert(0, Printed(twin, in_shape, 0.02, 3))
    weight = model[0].weight.detach().clone()
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 14):
        moved = 0.02 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            for each in (model, twin):
                each[0].weight.add_(moved)
        attachment.step()
        for each in printed:
            each.after_step(step, c, inner_steps)
        assert attachment.norms()[layer] == pytest.approx(printed[0].sigma, rel=1e-9)
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert printed[0].sigma > 0


def test_a_round_is_one_of_paper_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same vector, with the same settings."""
    same_vectors(monkeypatch)
    model = nn.Sequential(linear_with_values([3.0], 7, 5))
    twin = copy.deepcopy(model[0])
    attachment = attach(
        model,
        None,
        torch.zeros(1, 5).double(),
        method=FastClip(lr=0.3, inner_steps=4, every=1),
        max_norm=1.2,
    )
    attachment.step()
    paper_clip_(twin, (5,), 1.2, lr=0.3, inner_steps=4, power_iterations=11, rounds=1)
    torch.testing.assert_close(model[0].weight, twin.weight, rtol=1e-4, atol=1e-4)
    assert torch.equal(model[0].bias, twin.bias)


def test_published_constants() -> None:
    with_norm, without = FastClip.published(batch_norm=True), FastClip.published(batch_norm=False)
    assert (with_norm.lr, with_norm.inner_steps, with_norm.every) == (0.35, 5, 50)
    assert (without.lr, without.inner_steps, without.every) == (0.35, 1, 100)
    assert with_norm.compose == "none"
    concat = FastClip.published(concat=True)
    assert concat.compose == "conv_bn"
    assert (concat.concat_lr, concat.concat_every) == (0.01, 500)
    printed = FastClip()
    assert (printed.inner_steps, printed.every, printed.power_iterations) == (1, 100, 10)
    assert printed.shift == 1.0


@pytest.mark.parametrize(("name", "factor"), [("conv", 2 / 4), ("conv1d", 2.0), ("dense", 2.0)])
def test_averaged_loss(name: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`||M v - target||^2`, averaged over the width of a 4x4 output."""
    same_vectors(monkeypatch)
    moved = []
    for averaged in (True, False):
        torch.manual_seed(0)
        model, in_shape = made(name)
        before = model[0].weight.detach().clone()
        method = FastClip(lr=1e-3, every=1, averaged=averaged)
        bound = 0.5 * dense_norm(model, in_shape)
        attach(
            model, None, torch.zeros(1, *in_shape).double(), method=method, max_norm=bound
        ).step()
        moved.append(model[0].weight.detach() - before)
    torch.testing.assert_close(moved[0], factor * moved[1])


# --- What it reaches -------------------------------------------------------------------------


def test_lowers_norms_in_training() -> None:
    """Less than without it, and more than the bound: between rounds nothing holds them."""
    worst = {}
    for bound in (1e6, 0.7):
        model = small_network()
        optimizer = sgd(model)
        method = FastClip(lr=0.1, inner_steps=2, every=5)
        attachment = attach(model, optimizer, EXAMPLE, method=method, max_norm=bound)
        train(model, optimizer, 60)
        worst[bound] = true_norms(attachment)
    for name, norm in worst[0.7].items():
        assert norm < 0.8 * worst[1e6][name]
    assert max(worst[0.7].values()) > 1.05 * 0.7


def test_concat_leaves_batch_norms_alone_but_for_compositions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)).double()
    train_batch_norm(model[1])
    method = FastClip(lr=0.01, every=2, concat=True, concat_lr=1e-3, concat_every=3)
    attachment = attach(model, None, torch.zeros(1, 3, 8, 8).double(), method=method, max_norm=0.1)
    moved = []
    for _ in range(6):
        before = snapshot(model)
        attachment.step()
        after = model.state_dict()
        moved.append({key for key in before if not torch.equal(before[key], after[key])})
    alone, together = {"0.weight"}, {"0.weight", "1.weight"}
    assert moved == [set(), alone, together, alone, set(), together]


def test_concat_without_batch_norms_is_fast_clip() -> None:
    runs = []
    for concat in (True, False):
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(400, 10)
        )
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
        optimizer = sgd(model, lr=1e-3)
        method = FastClip(lr=0.1, every=2, concat=concat)
        attachment = attach(model, optimizer, EXAMPLE, method=method)
        train(model, optimizer, 5)
        runs.append([model.state_dict(), attachment.state_dict()])
    assert_identical(*runs)


class TwoSizes(nn.Module):
    """One convolution, used at two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        small: Tensor = self.conv(self.conv(x)[..., ::2, ::2])
        return small


def test_norm_of_a_layer_used_at_two_sizes_is_the_larger_one() -> None:
    model = TwoSizes()
    sizes = [dense_norm([model.conv], shape) for shape in ((2, 10, 10), (2, 5, 5))]
    assert sizes[0] > 1.01 * sizes[1]
    attachment = attach(model, None, torch.zeros(1, 2, 10, 10), method=FastClip(), max_norm=1e6)
    for _ in range(99):
        attachment.step()
    assert attachment.norms()["conv"] == pytest.approx(max(sizes), rel=3e-3)


def test_layer_used_at_two_sizes() -> None:
    model = TwoSizes()
    attachment = attach(
        model, None, torch.zeros(1, 2, 10, 10), method=FastClip(lr=0.05, every=1), max_norm=0.3
    )
    for _ in range(80):
        attachment.step()
    sizes = [dense_norm([model.conv], shape) for shape in ((2, 10, 10), (2, 5, 5))]
    assert max(sizes) <= 1.3 * 0.3
    assert 0.7 * max(sizes) <= attachment.norms()["conv"] <= max(sizes) * (1 + 1e-5)
    assert len(attachment.state_dict()["layers"]["conv"]) == 2


# --- Where it fails --------------------------------------------------------------------------


def test_weights_that_are_not_finite_are_reported_once() -> None:
    model = small_network()
    attachment = attach(model, None, EXAMPLE, method=FastClip(), max_norm={"3": 1.0})
    attachment.step()
    good = snapshot(model)
    known = attachment.norms()["3"]
    with torch.no_grad():
        model[3].weight[0, 0, 0, 0] = math.nan
    with pytest.warns(NormWarning, match="'3': Weights are NaN, infinite, or too large"):
        attachment.step()
    attachment.step()
    assert math.isnan(attachment.norms()["3"])
    model.load_state_dict(good)
    attachment.step()
    assert attachment.norms()["3"] == pytest.approx(known, rel=0.02)


def test_weights_that_are_not_finite_at_the_first_look() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    good = snapshot(model)
    attachment = attach(model, None, torch.zeros(1, 4), method=FastClip())
    with torch.no_grad():
        model[0].weight.fill_(math.inf)
    with pytest.warns(NormWarning):
        attachment.step()
    attachment.step()
    model.load_state_dict(good)
    attachment.step()
    assert attachment.norms()["0"] == pytest.approx(dense_norm(model, (4,)), rel=0.05)


def test_running_variance_that_makes_no_sense_is_reported() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    attachment = attach(model, None, torch.zeros(2, 4), method=FastClip(concat=True))
    attachment.step()
    model[1].running_var.fill_(math.nan)
    with pytest.warns(NormWarning, match=r"'0\+1': .*running variance"):
        attachment.step()
    attachment.step()
    model[1].running_var.fill_(1.0)
    attachment.step()
    assert attachment.norms()["0+1"] == pytest.approx(dense_norm(model, (4,)), rel=0.15)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_zero_weights(shift: float) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    good = snapshot(model)
    with torch.no_grad():
        model[0].weight.zero_()
    attachment = attach(model, None, torch.zeros(1, 4), method=FastClip(shift=shift))
    attachment.step()
    assert attachment.norms()["0"] == pytest.approx(0.0, abs=1e-3)
    model.load_state_dict(good)
    for _ in range(20):
        attachment.step()
    assert attachment.norms()["0"] == pytest.approx(dense_norm(model, (4,)), rel=1e-2)


# --- Rules -----------------------------------------------------------------------------------


def test_frozen_parts_of_a_composition_stay() -> None:
    for frozen, free in ((0, 1), (1, 0)):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        train_batch_norm(model[1])
        model[frozen].requires_grad_(False)
        before = snapshot(model)
        method = FastClip(lr=0.01, every=1, concat=True, concat_lr=0.001, concat_every=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        attachment = attach(model, optimizer, torch.zeros(2, 3, 6, 6), method=method, max_norm=0.1)
        optimizer.step()
        after = model.state_dict()
        changed = [key for key in before if not torch.equal(before[key], after[key])]
        assert changed == [f"{free}.weight"]
        attachment.remove()


def test_half_precision() -> None:
    model = nn.Sequential(nn.Linear(12, 8)).to(torch.bfloat16)
    bound = 0.6 * dense_norm(model, (12,))
    method = FastClip(lr=1.0, every=1, power_iterations=30)
    attachment = attach(
        model, None, torch.zeros(1, 12, dtype=torch.bfloat16), method=method, max_norm=bound
    )
    for _ in range(20):
        attachment.step()
    assert model[0].weight.dtype == torch.bfloat16
    assert dense_norm(model, (12,)) <= 1.03 * bound
    norms = attachment.norms()["0"]
    assert norms == pytest.approx(dense_norm(model, (12,)), rel=0.05)


def test_same_seed_same_run() -> None:
    runs = []
    for seed in (1, 1, 2):
        model = small_network()
        optimizer = sgd(model)
        method = FastClip(lr=0.1, every=2)
        attachment = attach(model, optimizer, EXAMPLE, method=method, max_norm=0.6, seed=seed)
        train(model, optimizer, 4)
        runs.append([model.state_dict(), attachment.state_dict()])
    assert_identical(runs[0], runs[1])
    assert not torch.equal(runs[0][0]["9.weight"], runs[2][0]["9.weight"])


def test_state_of_other_settings_is_refused() -> None:
    model = small_network()
    attachment = attach(model, None, EXAMPLE, method=FastClip(concat=True))
    saved = attachment.state_dict()
    short = {name: states[:1] for name, states in saved["layers"].items()}
    with pytest.raises(ValueError, match=r"layer '0\+1' was saved .* for 1 uses, expected 2"):
        attachment.load_state_dict({**saved, "layers": short})


BAD = {
    "lr": [0.0, -1.0, math.nan, math.inf, None],
    "concat_lr": [0.0, "1"],
    "inner_steps": [0, 1.5],
    "every": [0, 2.0, None],
    "power_iterations": [0],
    "concat_every": [-1],
    "shift": [-1.0, math.nan, math.inf],
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, vs in BAD.items() for v in vs])
def test_bad_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{name} must be"):
        FastClip(**{name: value})


def test_loss_goes_down_beside_it() -> None:
    model = small_network()
    optimizer = sgd(model)
    attach(model, optimizer, EXAMPLE, method=FastClip.published(True))
    before = float(loss_of(model, 0).detach())
    train(model, optimizer, 120)
    assert float(loss_of(model, 0).detach()) < 0.7 * before
