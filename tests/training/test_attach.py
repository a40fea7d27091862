"""An attachment beside the optimizer, with any method: what users do while they train."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from attach_cases import TRIED, Tried, assert_held, assert_known, attached, over_methods
from seeds import seeded
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

from oracle import dense_norm
from spectralclip import FoundLayer, NormWarning, attach
from spectralclip.methods import (
    AOL,
    LOT,
    ClipBatchNorm,
    Farnia,
    FastClip,
    Gouk,
    Miyato,
    Parametrize,
    SpectralClip,
)

# --- Beside other things that people do ------------------------------------------------------


def test_two_methods_beside_each_other() -> None:
    model = small_network()
    optimizer = sgd(model, lr=1e-3)
    first = attached(TRIED["FastClip"], model, optimizer, 0.6)
    second = attached(TRIED["ClipBatchNorm"], model, optimizer, 0.9)
    assert not set(first.layers) & set(second.layers)
    train(model, optimizer, TRIED["FastClip"].steps)
    assert_held(TRIED["FastClip"], first)
    assert_held(TRIED["ClipBatchNorm"], second)


# --- Which layers ----------------------------------------------------------------------------


def small_dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))


RIVALS = [
    (SpectralClip, Miyato),
    (SpectralClip, Parametrize),
    (Gouk, Parametrize),
    (LOT, SpectralClip),
    (LOT, Parametrize),
    (AOL, Parametrize),
    (Miyato, Gouk),
    (Parametrize, Parametrize),
]
LEFT_ALONE = [(LOT, Parametrize), (AOL, Parametrize), (Miyato, Gouk), (Parametrize, Parametrize)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("first", "second"), RIVALS)
def test_two_methods_on_one_layer(first: Any, second: Any) -> None:
    """Refused where one of them computes with another weight; nothing has changed by then."""
    model, example = small_dense(), torch.ones(2, 6)
    optimizer = sgd(model)
    held = attach(model, optimizer, example, method=first(), max_norm={"0": 0.5})
    before, hooks = snapshot(model), len(optimizer._optimizer_step_post_hooks)
    names = f"Layer '0' is held by {first.__name__}, and {second.__name__} cannot be attached"
    if (first, second) in LEFT_ALONE:  # outside of the domain of the second, which has the rest
        other = attach(model, optimizer, example, method=second(), max_norm=100.0)
        assert list(other.layers) == ["2"]
        other.remove()
        with pytest.raises(ValueError, match=names):
            attach(nn.Sequential(model[0]), optimizer, example, method=second())
    else:
        with pytest.raises(ValueError, match=names):
            attach(model, optimizer, example, method=second())
    assert_identical(snapshot(model), before)
    assert len(optimizer._optimizer_step_post_hooks) == hooks
    model(example).square().mean().backward()
    optimizer.step()
    other = attach(model, optimizer, example, method=second(), max_norm={"2": 0.5})
    held.remove()
    attach(model, optimizer, example, method=second(), max_norm={"0": 0.5}).remove()
    other.remove()
    assert list(model.state_dict()) == list(small_dense().state_dict())


def test_two_methods_that_project_may_have_the_same_layer() -> None:
    model = small_dense()
    first = attach(model, None, torch.ones(2, 6), method=SpectralClip(), max_norm=0.5)
    second = attach(model, None, torch.ones(2, 6), method=Gouk(power_iterations=50), max_norm=0.4)
    first.step(), second.step()
    assert dense_norm([model[0]], (6,)) <= 0.41


def test_attachments_that_are_forgotten_are_in_nobodys_way() -> None:
    model, example = small_dense(), torch.ones(2, 6)
    attach(model, sgd(model), example, method=SpectralClip())
    attach(model, sgd(model), example, method=Miyato()).remove()


@pytest.mark.parametrize("make", [Farnia, Gouk, FastClip, SpectralClip, Parametrize])
def test_a_layer_that_is_not_finite_at_the_start_is_named(make: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Conv1d(3, 3, 3, padding=1))
    with torch.no_grad():
        model[2].weight[0, 0, 0] = math.nan
    before = snapshot(model)
    with pytest.raises(ValueError, match=rf"{make.__name__} cannot start on layer '2': its 'weigh"):
        attach(model, None, torch.zeros(1, 3, 4), method=make())
    assert list(model.state_dict()) == list(before)
    assert list(
        attach(model, None, torch.zeros(1, 3, 4), method=make(), max_norm={"0": 1.0}).layers
    ) == ["0"]


@over_methods
def test_layers_are_held(tried: Tried) -> None:
    """Training moves them little here, so that what is left is the method's doing."""
    model = small_network()
    optimizer = sgd(model, lr=1e-3)
    attachment = attached(tried, model, optimizer)
    assert max(true_norms(attachment).values()) > 1.4 * 0.6
    train(model, optimizer, tried.steps)
    assert_held(tried, attachment)
    assert_known(tried, attachment)


@over_methods
def test_parameter_groups(tried: Tried) -> None:
    """Each with its own learning rate; what is in none is left alone, bit for bit."""
    model = small_network()
    groups = [
        {"params": model[0].parameters(), "lr": 1e-3},
        {"params": model[1].parameters(), "lr": 0.0},
        {"params": [*model[6].parameters(), *model[9].parameters()], "lr": 2e-3},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    with pytest.warns(NormWarning, match="are not held: .* not among the parameters of SGD"):
        attachment = attached(tried, model, optimizer)
    left_out = [copy.deepcopy(model[3].state_dict()), model[4].weight.detach().clone()]
    train(model, optimizer, tried.steps)
    assert_identical([model[3].state_dict(), model[4].weight.detach()], left_out)
    assert len(attachment.layers) > 0 and list(attachment.max_norms) == list(attachment.layers)
    assert set(attachment.uncovered) == set(attachment.found) - set(attachment.layers) != set()
    for layer in attachment.layers.values():
        assert dense_norm(layer.modules[: tried.parts], layer.in_shapes[0]) <= tried.margin * 0.6


@over_methods
def test_frozen_layers_stay_until_they_are_freed(tried: Tried) -> None:
    model = small_network()
    for parameter in model[:6].parameters():
        parameter.requires_grad_(False)
    model[0].eval(), model[1].eval(), model[3].eval(), model[4].eval()
    optimizer = sgd(model, lr=1e-3)
    attachment = attached(tried, model, optimizer)
    assert set(attachment.uncovered.values()) == {"frozen"}
    before = snapshot(model[:6])
    train(model, optimizer, 6)
    assert_identical(model[:6].state_dict(), before)
    for parameter in model[:6].parameters():
        parameter.requires_grad_(True)
    train(model, optimizer, tried.steps, first=6)
    assert_held(tried, attachment)


@over_methods
def test_parameters_added_later(tried: Tried) -> None:
    model = small_network()
    optimizer = torch.optim.SGD([{"params": model[9].parameters(), "lr": 1e-3}])
    with pytest.warns(NormWarning, match="are not held"):
        attachment = attached(tried, model, optimizer)
    before = [parameter.detach().clone() for parameter in model[:7].parameters()]
    train(model, optimizer, 6)
    assert_identical([p.detach() for p in model[:7].parameters()], before)
    optimizer.add_param_group({"params": model[:7].parameters(), "lr": 1e-3})
    train(model, optimizer, tried.steps, first=6)
    assert not attachment.uncovered
    assert_held(tried, attachment)


@pytest.mark.sampled(4)
@over_methods
def test_targets_by_name_and_by_function(tried: Tried) -> None:
    model = small_network()
    names = list(attached(tried, model, None).layers)
    chosen, other = names[0], names[1]
    optimizer = sgd(model, lr=1e-3)
    by_name = attached(tried, model, optimizer, {chosen: 0.6})
    assert list(by_name.layers) == [chosen]
    assert by_name.max_norms == {chosen: 0.6}
    train(model, optimizer, tried.steps)
    assert_held(tried, by_name)

    def wish(name: str, layer: FoundLayer) -> float | None:
        assert layer.name == name
        return {chosen: 0.6, other: 0.7}.get(name)

    model = small_network()
    optimizer = sgd(model, lr=1e-3)
    by_function = attached(tried, model, optimizer, wish)
    assert by_function.max_norms == {chosen: 0.6, other: 0.7}
    train(model, optimizer, tried.steps)
    assert_held(tried, by_function)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_schedules_that_make_no_sense(factor: float) -> None:
    model = small_network()
    optimizer = sgd(model)
    with pytest.raises(ValueError, match=r"schedule\(0\) must be a positive number"):
        attached(TRIED["FastClip"], model, optimizer, schedule=lambda step: factor)
    attached(TRIED["FastClip"], model, optimizer, schedule=lambda step: factor if step else 1.0)
    loss_of(model, 0).backward()
    with pytest.raises(ValueError, match=r"schedule\(1\) must be a positive number"):
        optimizer.step()


# --- Accidents -------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0, -1.0, math.nan, math.inf, "1"])
def test_bounds_that_make_no_sense(bound: Any) -> None:
    model = small_network()
    optimizer = sgd(model)
    for wish in (bound, {"0": bound}, lambda name, layer: bound):
        with pytest.raises(ValueError, match=r"max_norm( of layer '0')? must be a positive"):
            attach(model, optimizer, EXAMPLE, method=FastClip(), max_norm=wish)
    assert not optimizer._optimizer_step_post_hooks


def test_bad_requests() -> None:
    model = small_network()
    with pytest.raises(TypeError, match=r"method must be a Method such as SpectralClip\(\)"):
        attach(model, None, EXAMPLE, method="fast_clip")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="method must be a Method"):
        attach(model, None, EXAMPLE, method=FastClip)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"max_norm names \['nowhere'\], which are not among"):
        attach(model, None, EXAMPLE, method=FastClip(), max_norm={"nowhere": 1.0})
    recurrent, one = nn.RNN(3, 3), {"weight_hh_l0": 1.0}
    with pytest.raises(ValueError, match=r"\['weight_hh_l0'\], which FastClip leaves alone"):
        attach(recurrent, None, torch.zeros(2, 1, 3), method=FastClip(), max_norm=one)
    with pytest.raises(ValueError, match="FastClip found no layer to constrain"):
        attach(nn.Sequential(nn.ReLU()), None, EXAMPLE, method=FastClip())
    with pytest.raises(ValueError, match=r"ClipBatchNorm found no layer .* among \['0'\]"):
        attach(nn.Sequential(nn.Conv2d(1, 2, 3)), None, EXAMPLE, method=ClipBatchNorm())
    with pytest.raises(ValueError, match="No layer is left to constrain"):
        attach(model, None, EXAMPLE, method=FastClip(), max_norm=lambda name, layer: None)


class Adapted(nn.Module):
    """A frozen matrix and two factors that train, in one module."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.base = nn.Parameter(0.6 * torch.randn(12, 12), requires_grad=False)
            self.A, self.B = nn.Parameter(torch.randn(3, 12)), nn.Parameter(torch.randn(12, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.base + self.B @ self.A).T


@pytest.mark.parametrize("bounds", [{"max_norm": 1.0}, {"max_lipschitz": 200.0}])
@pytest.mark.parametrize("method", [SpectralClip(), FastClip(every=1)])
def test_what_is_frozen_inside_a_module_stays_and_is_named(method: Any, bounds: Any) -> None:
    model = nn.Sequential(Adapted(), nn.Linear(12, 4))
    before = model[0].base.clone()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    x = torch.ones(2, 12)
    with pytest.warns(NormWarning, match="trained in part: 'base' would have to give way too"):
        attachment = attach(model, optimizer, x, method=method, **bounds)
    assert list(attachment.layers) == ["1"] and list(attachment.uncovered) == ["0"]
    model(x).square().sum().backward()
    optimizer.step()
    attachment.finalize()
    assert torch.equal(model[0].base, before)


def test_what_no_optimizer_has_inside_a_module_stays() -> None:
    model = nn.Sequential(Adapted(), nn.Linear(12, 4))
    model[0].base.requires_grad_()
    before = model[0].base.detach().clone()
    optimizer = torch.optim.SGD([model[0].A, model[0].B, *model[1].parameters()], lr=0.1)
    with pytest.warns(NormWarning, match="trained in part: 'base'"):
        attachment = attach(model, optimizer, torch.ones(2, 12))
    attachment.step()
    assert torch.equal(model[0].base, before)
    # From the step on at which all of it trains, it is held.
    optimizer.add_param_group({"params": [model[0].base]})
    attachment.step()
    assert list(attachment.layers) == ["0", "1"] and dense_norm(model[0], (12,)) < 1.02


@pytest.mark.parametrize("max_norm", [{}, lambda name, layer: None])
def test_bounds_for_no_layer_are_refused(max_norm: Any) -> None:
    with pytest.raises(ValueError, match=r"No layer is left to constrain: of \['0'\], max_norm"):
        attach(nn.Sequential(nn.Linear(3, 3)), None, torch.zeros(1, 3), max_norm=max_norm)


def test_a_schedule_and_a_method_say_what_they_have_to_be() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    schedule: Any = lambda step: None  # noqa: E731
    with pytest.raises(ValueError, match=r"schedule\(0\) must be a positive number, got None"):
        attach(model, None, torch.zeros(1, 3), schedule=schedule)
    method: Any = "gouk"
    with pytest.raises(TypeError, match=r"methods.get\('gouk'\)\(\) by its name"):
        attach(model, None, torch.zeros(1, 3), method=method)
