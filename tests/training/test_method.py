"""Methods of every kind: those that project, that penalize and that divide."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from attach_cases import Tried, attached, over_methods, through_a_file
from torch import Tensor, nn
from torch.nn.utils import parametrize
from training_cases import EXAMPLE, loss_of, sgd, small_network, train

from oracle import dense_norm
from spectralclip import FoundLayer, Method, MethodState, attach, find_layers
from spectralclip._training.distributed.sharing import Sharing
from spectralclip.methods import FastClip


class Penalizing(Method):
    """Adds to the loss what is above the bound."""

    def takes(self, layer: FoundLayer) -> bool:
        return isinstance(layer.modules[0], nn.Linear)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        return _Penalties(sharing.mine(), bounds)


class _Penalties(MethodState):
    def __init__(self, layers: Mapping[str, FoundLayer], bounds: Mapping[str, float]) -> None:
        self._weights = {name: layer.modules[0].weight for name, layer in layers.items()}
        self._bounds = dict(bounds)

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        self._bounds = dict(bounds)

    def penalty(self) -> Tensor:
        excess = [
            (torch.linalg.svdvals(self._weights[name]) - bound).relu().sum()
            for name, bound in self._bounds.items()
        ]
        return 10 * torch.stack(excess).sum()

    def norms(self) -> dict[str, float]:
        return {
            name: float(torch.linalg.matrix_norm(weight.detach(), 2))
            for name, weight in self._weights.items()
        }


class _Divided(nn.Module):
    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (self.bound / torch.linalg.matrix_norm(weight, 2)).clamp(max=1.0)


class Dividing(Method):
    """Computes each dense weight from another one."""

    def takes(self, layer: FoundLayer) -> bool:
        return isinstance(layer.modules[0], nn.Linear)

    def start(self, sharing: Sharing, bounds: Mapping[str, float], seed: int) -> MethodState:
        return _Divisions(sharing.mine(), bounds)


class _Divisions(MethodState):
    def __init__(self, layers: Mapping[str, FoundLayer], bounds: Mapping[str, float]) -> None:
        self._modules = {name: layer.modules[0] for name, layer in layers.items()}
        for name, module in self._modules.items():
            parametrize.register_parametrization(module, "weight", _Divided(bounds[name]))

    def after_step(self, step: int, bounds: Mapping[str, float]) -> None:
        pass

    def norms(self) -> dict[str, float]:
        return {
            name: float(torch.linalg.matrix_norm(module.weight.detach(), 2))
            for name, module in self._modules.items()
        }

    def stop(self) -> None:
        for module in self._modules.values():
            if parametrize.is_parametrized(module):
                parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


KINDS: dict[str, Callable[[], Method]] = {
    "projects": lambda: FastClip(lr=1.0, every=1),
    "penalizes": Penalizing,
    "reparametrizes": Dividing,
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_one_loop_carries_every_kind_of_method(make: Callable[[], Method]) -> None:
    model = small_network()
    keys, dense = sorted(model.state_dict()), model[9]
    bound = 0.6 * dense_norm([dense], (150,))
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3)
    attachment = attach(model, optimizer, EXAMPLE, method=make(), max_norm={"9": bound})
    for index in range(40):
        optimizer.zero_grad()
        (loss_of(model, index) + attachment.penalty()).backward()
        optimizer.step()
    assert 0.8 * bound < attachment.norms()["9"] < 1.06 * bound
    before = dense.weight.detach().clone()
    attachment.remove()
    assert sorted(model.state_dict()) == keys
    assert type(dense) is nn.Linear
    assert isinstance(dense.weight, nn.Parameter)
    torch.testing.assert_close(dense.weight.detach(), before)
    assert 0.8 * bound < dense_norm([dense], (150,)) < 1.2 * bound
    train(model, optimizer, 1)
    assert not torch.equal(dense.weight, before)


@over_methods
def test_no_penalty_changes_no_loss(tried: Tried) -> None:
    model = small_network()
    attachment = attached(tried, model, sgd(model))
    penalty = attachment.penalty()
    assert penalty.shape == ()
    assert float(penalty) == 0
    loss = loss_of(model, 0)
    assert torch.equal(loss + penalty, loss)


@pytest.mark.parametrize("make", [Penalizing, Dividing])
def test_methods_without_state_of_their_own_resume_too(make: Callable[[], Method]) -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attach(model, optimizer, EXAMPLE, method=make())
    train(model, optimizer, 2)
    again = attach(small_network(), None, EXAMPLE, method=make())
    again.load_state_dict(through_a_file(attachment.state_dict()))
    assert again.steps == 2
    assert again.norms() == attachment.norms()


def test_finalize_of_a_reparametrized_model() -> None:
    model = small_network()
    attachment = attach(model, sgd(model), EXAMPLE, method=Dividing(), max_norm=0.3)
    assert attachment.finalize()["9"].norm_after <= 0.3003
    assert sorted(model.state_dict()) == sorted(small_network().state_dict())
    assert list(find_layers(model, EXAMPLE)) == list(find_layers(small_network(), EXAMPLE))
