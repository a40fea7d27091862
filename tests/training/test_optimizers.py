"""Optimizers of all kinds beside a method: those of torch, third parties' and wrappers of others.

Everything here goes through `attach` and looks at weights alone, against the plain optimizer and a
float64 oracle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from optimizer_cases import X, backward, largest_change, network, norms_of
from torch import Tensor, nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from spectralclip import NormWarning, attach
from spectralclip.methods import Delattre, Gouk, Parametrize, SpectralClip, Virmaux

# --- Optimizers around optimizers ------------------------------------------------------------


class Sharpness(optim.Optimizer):
    """As SAM is commonly written: two half-steps, the second with a step of another optimizer."""

    def __init__(
        self, params: Iterable[Tensor], base: Any, rho: float = 0.05, **settings: Any
    ) -> None:
        super().__init__(params, {"rho": rho, **settings})
        self.base_optimizer = base(self.param_groups, **settings)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        gradients = [p.grad.norm() for g in self.param_groups for p in g["params"]]
        total = torch.stack(gradients).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                p.add_(p.grad * group["rho"] / total)

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base_optimizer.step()

    def step(self, closure: Any = None) -> None:
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


class Ahead(optim.Optimizer):
    """As Lookahead is commonly written: every third step it goes back half of the way."""

    def __init__(self, inner: optim.Optimizer, hooked: bool = True) -> None:
        if hooked:
            super().__init__(inner.param_groups, {})
        self.optimizer, self.param_groups, self._steps = inner, inner.param_groups, 0
        self._slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.optimizer.step(closure)
        self._steps += 1
        if self._steps % 3 == 0:
            fast = [p for g in self.param_groups for p in g["params"]]
            for slow, p in zip(self._slow, fast, strict=True):
                slow.lerp_(p, 0.5)
                p.data.copy_(slow)


@pytest.mark.parametrize("driven", ["by half-steps", "by closures"])
def test_two_half_steps_are_one_step(driven: str) -> None:
    model = network(clipped=False)
    optimizer = Sharpness(model.parameters(), optim.SGD, lr=0.05, momentum=0.9)
    attachment = attach(model, optimizer, X[:1], method=SpectralClip())
    for step in range(4):
        optimizer.zero_grad()
        backward(model, step)
        if driven == "by half-steps":
            optimizer.first_step()
            optimizer.zero_grad()
            backward(model, step)
            optimizer.second_step()
        else:
            optimizer.step(lambda step=step: [optimizer.zero_grad(), backward(model, step)])
        assert max(norms_of(model).values()) <= 1.02
    assert attachment.steps == 4


def test_weights_that_a_wrapper_moves_after_the_step_are_held() -> None:
    """Its slow weights began far outside."""
    model = network(clipped=False)
    optimizer = Ahead(optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    attachment = attach(model, optimizer, X[:1], method=SpectralClip())
    for step in range(6):
        optimizer.optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        assert max(norms_of(model).values()) <= 1.02
    assert attachment.steps == 6


def test_a_wrapper_that_runs_no_hooks_is_refused() -> None:
    model = network()
    wrapper = Ahead(optim.SGD(model.parameters(), lr=0.01), hooked=False)
    with pytest.raises(ValueError, match=r"Ahead does not run the hooks .* optimizer=None"):
        attach(model, wrapper, X[:1], method=SpectralClip())


class WithoutSchedule(optim.SGD):
    """What schedule-free optimizers have in common: they switch between two sets of weights."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


@pytest.mark.parametrize("method", [SpectralClip(), Gouk(), Delattre(use="rescale")])
def test_optimizers_that_evaluate_other_weights_are_refused(method: Any) -> None:
    model = network()
    optimizer = WithoutSchedule(model.parameters(), lr=0.01)
    with pytest.raises(ValueError, match=r"WithoutSchedule evaluates other weights .*Parametrize"):
        attach(model, optimizer, X[:1], method=method)
    assert not optimizer._optimizer_step_post_hooks
    for harmless in (Parametrize(), Virmaux(), Delattre(use="penalty")):
        attach(model, optimizer, X[:1], method=harmless).remove()


@pytest.mark.slow
def test_a_schedule_free_training_under_the_method_that_is_advised() -> None:
    schedulefree = pytest.importorskip("schedulefree")
    model = network()
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.05)
    with pytest.raises(ValueError, match="AdamWScheduleFree evaluates other weights"):
        attach(model, optimizer, X[:1], method=SpectralClip())
    attachment = attach(model, optimizer, X[:1], method=Parametrize())
    for step in range(20):
        optimizer.train()
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    optimizer.eval()
    attachment.remove()
    assert max(norms_of(model).values()) <= 1.02


def test_averages_of_weights_within_the_bound_are_within_it() -> None:
    """The norm is convex in the weights of a layer: so are EMA and SWA of layers, one by one."""
    model = network()
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    attach(model, optimizer, X[:1], method=SpectralClip())
    averages = [AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7))]
    for step in range(8):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        for average in averages:
            average.update_parameters(model)
    for average in averages:
        assert max(norms_of(average.module).values()) <= 1.01


# --- Several optimizers, and layers of none --------------------------------------------------


def test_several_optimizers_each_with_weights_of_its_own() -> None:
    model = network(clipped=False)
    first = optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9)
    second = optim.Adam([*model[2].parameters(), *model[5].parameters()], lr=0.05)
    attachment = attach(model, [first, second], X[:1], method=SpectralClip())
    assert list(attachment.layers) == ["0", "2", "5"] and not attachment.uncovered
    for step in range(4):
        for optimizer in (first, second) if step % 2 else (second,):
            model.zero_grad()
            backward(model, step)
            optimizer.step()
        norms = norms_of(model)
        assert max(norms["2"], norms["5"]) <= 1.02
        assert norms["0"] <= 1.02 or step == 0
    assert attachment.steps == 4
    resumed = attachment.state_dict()
    assert resumed["steps"] == [2, 4]
    with pytest.raises(ValueError, match="of 2 optimizers"):
        other = network()
        attach(other, sgd(other), X[:1], method=SpectralClip()).load_state_dict(resumed)
    attachment.load_state_dict(resumed)
    assert max(norms_of(model).values()) <= 1.02
    assert list(attachment.finalize()) == ["0", "2", "5"]


def sgd(model: nn.Module) -> optim.SGD:
    return optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def test_a_layer_that_another_optimizer_holds_is_named() -> None:
    model = network()
    first = optim.SGD(model[0].parameters(), lr=0.05)
    with pytest.warns(NormWarning, match=r"\['2', '5'\] are not held: .* parameters of SGD"):
        attachment = attach(model, first, X[:1], method=SpectralClip())
    assert list(attachment.layers) == list(attachment.max_norms) == ["0"]
    assert list(attachment.uncovered) == ["2", "5"]
    assert "2 uncovered" in repr(attachment)
    attachment.remove()
    attach(
        model, first, X[:1], method=SpectralClip(), max_norm={"0": 1.0}
    )  # so it is meant: no warning


def test_attaching_again_is_noticed() -> None:
    model = network()
    optimizer = sgd(model)
    first = attach(model, optimizer, X[:1], method=SpectralClip())
    with pytest.warns(NormWarning, match="is held by .* already, at the same optimizer"):
        attach(model, optimizer, X[:1], method=SpectralClip()).remove()
    first.remove()
    attach(model, optimizer, X[:1], method=SpectralClip())


@pytest.mark.parametrize("given", ["sgd", [], ["sgd"], 3])
def test_what_is_no_optimizer_is_refused(given: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="optimizer must be"):
        attach(network(), given, X[:1], method=SpectralClip())


def test_one_optimizer_twice_is_refused() -> None:
    model = network()
    optimizer = sgd(model)
    with pytest.raises(ValueError, match="different optimizers"):
        attach(model, [optimizer, optimizer], X[:1], method=SpectralClip())


def test_training_with_another_optimizer_is_noticed_at_the_end() -> None:
    model = network()
    attachment = attach(model, sgd(model), X[:1], method=SpectralClip())
    largest_change(model, sgd(model), 1)
    with pytest.warns(NormWarning, match="no step of SGD was seen"):
        attachment.finalize()
