"""Models that hide their outputs, do not run under watch, or are frozen: what is said of them."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from lipschitz_cases import X
from torch import Tensor, nn

from oracle.slopes import Function
from spectralclip._lipschitz.bounds import lipschitz_bounds


def test_outputs_that_hide_their_tensors_have_no_bound() -> None:
    class Box:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    bound = lipschitz_bounds(Function(Box), torch.ones(1, 4), local=False)
    assert math.isinf(bound.upper) and "Box" in bound.unbounded[0].reason


def test_integer_outputs_are_left_out_with_a_remark() -> None:
    bound = lipschitz_bounds(Function(lambda x: (2 * x, x.argmax(1))), torch.ones(1, 4))
    assert bound.upper == pytest.approx(2)
    assert any("left out" in step.note for step in bound.steps)


def test_a_model_that_does_not_run_while_followed_has_no_bound_but_a_lower_one() -> None:
    def function(x: Tensor) -> Tensor:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("not under a mode")
        return 2 * x

    model = Function(function)
    with pytest.warns(UserWarning, match="does not run while"):
        bound = lipschitz_bounds(model, torch.ones(1, 4))
    assert math.isinf(bound.upper) and bound.lower == pytest.approx(2, rel=1e-3)
    assert "not under a mode" in bound.unbounded[0].reason


def test_the_errors_of_the_model_itself_come_through() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        lipschitz_bounds(nn.Linear(3, 3), torch.ones(1, 4))


@pytest.mark.parametrize("optimize", [False, True], ids=["frozen", "optimized"])
def test_frozen_models_are_followed_or_have_no_bound(optimize: bool) -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frozen = torch.jit.freeze(torch.jit.script(plain))
        model = torch.jit.optimize_for_inference(frozen) if optimize else frozen
        bound = lipschitz_bounds(model, X)
        inside = lipschitz_bounds(nn.Sequential(model), X)
    truth = lipschitz_bounds(plain, X).upper
    assert math.isinf(bound.upper) or bound.upper == pytest.approx(truth, rel=0.01)
    assert math.isinf(inside.upper) or inside.upper == pytest.approx(truth, rel=0.01)
    assert bound.lower > 0 or any(step.note for step in bound.steps)


def test_inference_mode_is_left_and_weights_made_under_it_are_refused() -> None:
    layer = nn.Linear(4, 4)
    with torch.inference_mode():
        made = nn.Linear(4, 4)
        bound = lipschitz_bounds(nn.Sequential(layer, nn.ReLU()), torch.randn(2, 4))
        assert 0 < bound.lower <= bound.upper
    with pytest.raises(ValueError, match=r"'weight' of Linear.*inference_mode"):
        lipschitz_bounds(made, X)
