"""What `attach(..., max_lipschitz=...)` refuses, and what it warns of."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from allocation_cases import EXAMPLE, Network, dense
from torch import Tensor, nn

from spectralclip import NormWarning, attach
from spectralclip._training import Method
from spectralclip.methods import Gouk, Parametrize, SpectralClip


def test_both_bounds_at_once() -> None:
    with pytest.raises(ValueError, match="max_norm, or max_lipschitz"):
        attach(Network(), None, EXAMPLE, max_norm=1.0, max_lipschitz=1.0)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_that_is_none(wrong: float) -> None:
    with pytest.raises(ValueError, match="max_lipschitz"):
        attach(Network(), None, EXAMPLE, max_lipschitz=wrong)


def test_a_bound_that_cannot_be_reached_names_the_smallest() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.forward = lambda x: x + model[0](x).relu()  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"its bound would be 1, by what goes around"):
        attach(model, None, torch.zeros(1, 4), max_lipschitz=0.5)


def test_what_has_no_bound_is_named_with_the_remedy() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(8, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.dense(x)
            return self.attention(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match=r"at attention: .*attention multiplies.* max_norm"):
        attach(Attends(), None, torch.zeros(1, 3, 8), max_lipschitz=1.0)


def test_proportions_of_layers_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="proportions names"):
        attach(Network(), None, EXAMPLE, max_lipschitz=1.0, proportions={"nothing": 1.0})


def test_what_would_be_ignored_is_refused() -> None:
    with pytest.raises(ValueError, match="proportions are those of the layers' bounds below"):
        attach(Network(), None, EXAMPLE, proportions={"head": 1.0})
    heads = SpectralClip(compose="heads")
    with pytest.raises(ValueError, match='compose="heads" takes none'):
        attach(Network(), None, EXAMPLE, method=heads, pairs={"stem": "branch"})
    with pytest.raises(ValueError, match=r"proportions names .'norm'., which Gouk leaves alone"):
        attach(
            Network(norm=True),
            None,
            EXAMPLE,
            method=Gouk(batch_norm=False),
            max_lipschitz=10.0,
            proportions={"norm": 1.0},
        )


def test_a_schedule_that_would_raise_the_bound() -> None:
    model = Network()
    with pytest.raises(ValueError, match="at most 1, with max_lipschitz"):
        attach(model, None, EXAMPLE, max_lipschitz=1.0, schedule=lambda step: 1.5)


def test_weights_outside_of_layers_are_warned_of() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.register_parameter("last", nn.Parameter(torch.eye(4)))
    model.forward = lambda x: F.linear(model[0](x).relu(), model.last)  # type: ignore
    with pytest.warns(NormWarning, match="'last' change as the network trains, and are not held"):
        attach(model, None, torch.zeros(1, 4), max_lipschitz=1.0).remove()


@pytest.mark.parametrize(
    ("between", "method", "told"),
    [
        (nn.PReLU(), SpectralClip(), r"'1\.weight' change"),
        (nn.BatchNorm1d(8), Parametrize(), r"'1\.weight', '1\.running_var' change.*CenterNorm"),
        (nn.BatchNorm1d(8, affine=False), SpectralClip(), r"'1\.running_var' change.*CenterNorm"),
        (nn.BatchNorm1d(8).requires_grad_(False), SpectralClip(), r"'1\.running_var' change"),
    ],
)
def test_what_moves_and_is_not_held_is_warned_of(
    between: nn.Module, method: Method, told: str
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), between, nn.Linear(8, 3))
    with pytest.warns(NormWarning, match=told):
        attach(model, None, torch.zeros(1, 8), max_lipschitz=9.0, method=method).remove()


@pytest.mark.parametrize("between", [nn.BatchNorm1d(8), nn.BatchNorm1d(8, affine=False).eval()])
def test_what_is_held_or_rests_is_not_warned_of(
    between: nn.Module, recwarn: pytest.WarningsRecorder
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), between, nn.Linear(8, 3))
    attach(model, None, torch.zeros(1, 8), max_lipschitz=9.0).remove()
    assert not list(recwarn)


@pytest.mark.filterwarnings("ignore:.*are not held")
def test_a_gain_that_makes_the_bound_unreachable_is_named() -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.gain = nn.Linear(4, 4), nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * x + torch.relu(self.dense(x))

    model = Gain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    attach(model, optimizer, torch.zeros(1, 4), max_lipschitz=1.0)
    model.gain.grad = torch.tensor(-2.0)
    with pytest.raises(ValueError, match=r"would be 1\.5, .*nothing holds 'gain'"):
        optimizer.step()


def test_a_state_of_single_bounds_is_refused_before_anything_has_changed() -> None:
    model = Network()
    with attach(model, None, EXAMPLE, max_norm=1.0) as attachment:
        attachment.step()
        state = attachment.state_dict()
    attachment = attach(Network(), None, EXAMPLE, max_lipschitz=10.0)
    before = copy.deepcopy(attachment.state_dict())
    with pytest.raises(ValueError, match="this one holds the network by max_lipschitz"):
        attachment.load_state_dict(state)
    with pytest.raises(TypeError, match="'allocation' of the state must have numbers by layer"):
        attachment.load_state_dict({**before, "allocation": {"parts": 1}})
    after = attachment.state_dict()
    assert after["steps"] == before["steps"] and after["allocation"] == before["allocation"]
    attachment.load_state_dict(before)


def test_a_state_of_the_network_is_refused_where_layers_are_held() -> None:
    model, example = dense(8, 8, 3), torch.zeros(1, 8)
    with attach(model, None, example, max_lipschitz=1.0) as attachment:
        state = attachment.state_dict()
    attachment = attach(model, None, example, max_norm=1.0)
    with pytest.raises(ValueError, match="this one holds layers by max_norm"):
        attachment.load_state_dict(state)
