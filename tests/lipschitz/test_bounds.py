"""Whole networks: the interval holds every slope and every Jacobian, and says what it rests on."""

from __future__ import annotations

import copy
import math
import threading

import pytest
import torch
import torch.nn.functional as F
from lipschitz_cases import X
from torch import Tensor, nn
from zoo import BY_NAME, ZOO

from oracle.slopes import Function, jacobian_norms, largest_slope
from spectralclip import norm_bounds
from spectralclip._lipschitz.bounds import lipschitz_bounds

SMOOTH = [specimen for specimen in ZOO if not specimen.tokens]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("specimen", SMOOTH, ids=lambda specimen: specimen.name)
def test_no_slope_and_no_jacobian_exceeds_the_bound(specimen) -> None:
    model = specimen.model()
    bound = lipschitz_bounds(model, specimen.inputs(3))
    assert bound.unbounded == () and 0 <= bound.failure < 1e-4
    points = torch.cat([specimen.inputs(4, seed=5), 10 * specimen.inputs(4, seed=6)])
    truths = jacobian_norms(model, points, at_once=True)
    slope = largest_slope(model, specimen.in_shape, 10_000)
    assert max(float(truths.max()), slope) <= bound.upper
    assert bound.upper <= bound.product * 1.011
    # What is called a lower bound is attained somewhere.
    near = jacobian_norms(model, specimen.inputs(3), at_once=True)
    assert torch.allclose(torch.tensor(bound.local_norms).double(), near, rtol=0.03)
    assert bound.lower == max(bound.local_norms) <= bound.upper
    assert bound.ratio == bound.upper / bound.lower


def test_failures_add_up_and_vanish_where_nothing_can_fail() -> None:
    specimen = BY_NAME["resnet"]
    usual = lipschitz_bounds(specimen.model(), specimen.inputs(), failure=1e-5, local=False)
    assert usual.failure == pytest.approx(1e-4)
    sure = lipschitz_bounds(specimen.model(), specimen.inputs(), deterministic=True, local=False)
    assert sure.failure == 0.0
    assert sure.upper == pytest.approx(usual.upper, rel=0.05)


def test_batch_norm_counts_as_in_evaluation_and_the_model_is_left_as_it_was() -> None:
    model = BY_NAME["vgg"].model()
    calm = lipschitz_bounds(model, BY_NAME["vgg"].inputs())
    model.train()
    before = copy.deepcopy(model.state_dict())
    flags = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    x = BY_NAME["vgg"].inputs().requires_grad_()
    assert lipschitz_bounds(model, x) == calm
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert x.grad is None and all(p.grad is None for p in model.parameters())
    assert all(p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_gpt2_lists_its_attention_and_goes_on() -> None:
    specimen = BY_NAME["gpt2"]
    bound = lipschitz_bounds(specimen.model(), specimen.inputs())
    assert math.isinf(bound.upper) and bound.lower == 0 and bound.local_norms == ()
    attention = [place.where for place in bound.unbounded if "attention" in place.reason]
    assert attention == ["h.0.attn", "h.1.attn"]
    assert bound.steps[0].operation == "native_layer_norm"
    assert bound.steps[0].factor == pytest.approx(1 / math.sqrt(1e-5))
    notes = [step.note for step in bound.steps]
    assert any("held fixed" in note for note in notes) and any("Jacobian" in n for n in notes)


def test_what_an_embedding_makes_is_the_input_of_a_model_of_tokens() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(9, 4), nn.Embedding(5, 4)
            self.out = nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            mask = (tokens > 2).float()
            x = self.words(tokens) + self.places(torch.arange(5))
            return self.out(torch.relu(x) * mask[..., None]).mean(1)

    model = Tokens()
    bound = lipschitz_bounds(model, torch.arange(5)[None])
    norm = norm_bounds(model.out, (4,)).upper
    assert bound.unbounded == ()
    # Two tokens pass the mask, and a mean over five is taken.
    assert bound.upper == pytest.approx(norm * math.sqrt(2) / 5, rel=1e-3)


def test_a_model_without_numbers_to_move_has_no_bound() -> None:
    model = Function(lambda tokens: F.one_hot(tokens, 5).float() @ torch.ones(5, 2))
    bound = lipschitz_bounds(model, torch.tensor([[1, 2]]))
    assert math.isinf(bound.upper) and bound.unbounded[0].operation == "inputs"
    constant = lipschitz_bounds(Function(lambda x: torch.ones_like(x)), torch.ones(1, 2))
    assert (constant.lower, constant.upper, constant.ratio) == (0.0, 0.0, 1.0)


def test_half_precision_is_bounded_like_the_full_one() -> None:
    model = BY_NAME["mlp"].model()
    full = lipschitz_bounds(model, BY_NAME["mlp"].inputs())
    half = lipschitz_bounds(model.bfloat16(), BY_NAME["mlp"].inputs().bfloat16())
    assert half.upper == pytest.approx(full.upper, rel=0.02)
    assert 0.5 * full.lower < half.lower < half.upper


def test_bad_requests_are_refused() -> None:
    layer = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="tol"):
        lipschitz_bounds(layer, torch.zeros(1, 3), tol=0)
    with pytest.raises(TypeError, match="example_inputs"):
        lipschitz_bounds(layer, 3.0)  # type: ignore[arg-type]
    with torch.no_grad():
        layer.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"'weight' of Linear.*NaN"):
        lipschitz_bounds(layer, torch.zeros(1, 3))


def in_a_thread(x: Tensor) -> Tensor:
    """Modes belong to a thread, so that this one is out of sight."""
    found: list[Tensor] = []
    grad = torch.is_grad_enabled()

    def work() -> None:
        with torch.set_grad_enabled(grad):
            found.append(100 * x)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return x + found[0]


def test_a_local_norm_above_the_bound_refutes_it() -> None:
    bound = lipschitz_bounds(Function(in_a_thread), X)
    assert bound.lower == pytest.approx(101, rel=1e-3)
    assert math.isinf(bound.upper) and math.isinf(bound.product)
    assert "above the bound of 1" in bound.unbounded[-1].reason
