"""Whole networks: the interval holds every slope and every Jacobian, and says what it rests on."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import BY_NAME, ZOO, lived_in

from oracle import dense_norm
from oracle.slopes import Function, jacobian_norms, largest_slope
from spectralclip import Interval, norm_bounds
from spectralclip._lipschitz.bounds import lipschitz_bounds
from spectralclip._lipschitz.result import NetworkBound, certified_radius

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


@pytest.mark.parametrize("name", ["vgg", "resnet", "densenet", "mobilenet", "convnet_1d"])
def test_chains_as_one_operator_are_tighter_than_their_parts(name: str) -> None:
    bound = lipschitz_bounds(BY_NAME[name].model(), BY_NAME[name].inputs(), local=False)
    assert bound.upper < 0.5 * bound.product


def test_a_linear_network_is_known_up_to_rtol() -> None:
    model = lived_in(
        nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 4, 3, padding_mode="reflect", padding=1),
            nn.Flatten(),
            nn.Linear(64, 20),
        )
    )
    bound = lipschitz_bounds(model, torch.zeros(1, 2, 8, 8))
    truth = dense_norm(model.eval(), (2, 8, 8))
    assert truth * 0.99 <= bound.lower <= truth <= bound.upper <= truth * 1.01
    assert len(bound.steps) == 1 and bound.steps[0].where == "0+1+2+3+4+5"


def test_factors_around_a_chain_are_not_lost() -> None:
    first, second = nn.Linear(5, 6), nn.Linear(6, 4)
    model = Function(lambda x, f, g: -3 * g(f(x / 7).flip(1).flip(1)).flip(1), first, second)
    truth = dense_norm(model, (5,))
    bound = lipschitz_bounds(model, torch.zeros(1, 5), local=False)
    assert truth * (1 - 1e-6) <= bound.upper <= truth * 1.0101
    assert bound.upper < 0.99 * bound.product


def test_a_residual_of_an_affine_layer_is_one_operator() -> None:
    layer = nn.Linear(12, 12)
    with torch.no_grad():
        layer.weight.mul_(3).sub_(0.5 * torch.eye(12))
    model = Function(lambda x, layer: x + layer(x), layer)
    truth = float(torch.linalg.matrix_norm(torch.eye(12) + layer.weight.detach(), ord=2))
    bound = lipschitz_bounds(model, torch.zeros(1, 12))
    apart = 1 + float(torch.linalg.matrix_norm(layer.weight.detach(), ord=2))
    assert truth < 0.95 * apart
    assert bound.upper == pytest.approx(truth, rel=1e-4)
    assert bound.product == pytest.approx(apart, rel=1e-4)


def test_a_residual_of_a_bent_branch_is_added_up() -> None:
    layer = nn.Linear(5, 5)
    norm = float(torch.linalg.matrix_norm(layer.weight.detach(), ord=2))
    bound = lipschitz_bounds(Function(lambda x, f: x + F.relu(f(x)), layer), torch.zeros(1, 5))
    assert bound.upper == pytest.approx(1 + norm, rel=1e-6)


def test_batch_norm_that_undoes_its_convolution_is_seen_as_one() -> None:
    conv, norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
    scales = torch.logspace(-2, 2, 8)
    with torch.no_grad():
        conv.weight.mul_(scales[:, None, None, None])
        norm.running_var.copy_(scales**2)
    model = nn.Sequential(conv, norm, nn.ReLU())
    bound = lipschitz_bounds(model, torch.zeros(1, 3, 6, 6))
    truth = dense_norm(nn.Sequential(conv, norm), (3, 6, 6))
    assert truth <= bound.upper <= 1.011 * truth
    assert bound.product > 20 * bound.upper


def test_several_inputs_and_outputs_count_as_one_vector() -> None:
    added = lipschitz_bounds(Function(lambda a, b: a + b), (torch.zeros(1, 3), torch.ones(1, 3)))
    assert added.upper == pytest.approx(math.sqrt(2), rel=1e-4)
    assert added.lower == pytest.approx(math.sqrt(2), rel=1e-3)
    both = Function(lambda x: {"a": 3 * x, "b": (4 * x, [x[:, :1] * 0])})
    assert lipschitz_bounds(both, torch.zeros(1, 3)).upper == pytest.approx(5, rel=1e-4)
    bent = Function(lambda x: (F.relu(3 * x), F.relu(4 * x)))
    assert lipschitz_bounds(bent, torch.zeros(1, 3)).upper == pytest.approx(5)


def test_the_bound_is_for_one_example_unless_they_meet() -> None:
    layer = nn.Linear(4, 4)
    alone = lipschitz_bounds(layer, torch.randn(1, 4)).upper
    assert lipschitz_bounds(layer, torch.randn(5, 4)).upper == alone
    meet = Function(lambda x: x.sum(0, keepdim=True).expand(3, -1))
    bound = lipschitz_bounds(meet, torch.randn(3, 4))
    assert bound.upper == pytest.approx(3, rel=1e-6)
    assert len(bound.local_norms) == 1


def test_examples_are_looked_at_one_by_one_and_at_most_eight() -> None:
    bound = lipschitz_bounds(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(11, 3))
    assert len(bound.local_norms) == 8 and len(set(bound.local_norms)) == 8
    assert lipschitz_bounds(nn.Linear(3, 3), torch.randn(2, 3), local=False).local_norms == ()


def test_intervals_come_from_where_they_are_asked_for() -> None:
    asked: list[tuple[tuple[nn.Module, ...], tuple[int, ...]]] = []

    def interval_of(modules: Sequence[nn.Module], in_shape: tuple[int, ...]) -> Interval:
        asked.append((tuple(modules), in_shape))
        return Interval(0.5, 2.0, "probabilistic", 1e-3)

    model = BY_NAME["vgg"].model()
    bound = lipschitz_bounds(model, BY_NAME["vgg"].inputs(), interval_of=interval_of, local=False)
    conv, norm = model[0], model[1]
    assert ((conv, norm), (3, 8, 8)) in asked and ((conv,), (3, 8, 8)) in asked
    assert len(asked) == len(set(asked))
    assert bound.failure == pytest.approx(1e-3 * len(asked))
    assert bound.upper == 2.0**4 and bound.product == 2.0**6


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


def test_a_layer_used_twice_counts_twice() -> None:
    layer = nn.Linear(6, 6)
    norm = float(torch.linalg.matrix_norm(layer.weight.detach(), ord=2))
    model = Function(lambda x, f: f(F.relu(f(x))), layer)
    assert lipschitz_bounds(model, torch.zeros(1, 6)).upper == pytest.approx(norm**2, rel=1e-6)


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


def test_the_certified_radius_is_the_margin_over_root_two_times_the_constant() -> None:
    logits = torch.tensor([[3.0, 1.0, 0.0], [0.0, 5.0, 5.0]])
    assert certified_radius(logits, 2.0).tolist() == pytest.approx([2 / (2 * math.sqrt(2)), 0])
    assert certified_radius(logits, math.inf).tolist() == [0, 0]
    assert certified_radius(logits, 0.0).tolist() == [math.inf, 0]
    bound = NetworkBound(lower=1.0, upper=4.0, failure=0.0, product=8.0)
    assert torch.equal(certified_radius(logits, bound), certified_radius(logits, 4.0))
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="not negative"):
            certified_radius(logits, bad)
    with pytest.raises(ValueError, match="two classes"):
        certified_radius(torch.zeros(3, 1), 1.0)


def test_no_input_within_the_radius_is_classified_otherwise() -> None:
    model = BY_NAME["mlp"].model().double()
    x = BY_NAME["mlp"].inputs(20, seed=4).double()
    with torch.no_grad():
        logits = model(x)
        radius = certified_radius(logits, lipschitz_bounds(model, x, local=False))
        for seed in range(50):
            move = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).double()
            move *= radius[:, None, None, None] / move.flatten(1).norm(dim=1)[:, None, None, None]
            assert torch.equal(model(x + 0.999 * move).argmax(1), logits.argmax(1))


def test_a_bound_is_printed_on_less_than_a_screen() -> None:
    layers = [
        part for _ in range(30) for part in (nn.Linear(4, 4), nn.Mish(), nn.GLU(), nn.Linear(2, 4))
    ]
    bounds = [
        lipschitz_bounds(nn.Sequential(*layers), torch.randn(9, 4)),
        lipschitz_bounds(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(1, 4)),
    ]
    for bound in bounds:
        text = str(bound).splitlines()
        assert len(text) <= 24 and max(map(len, text)) <= 100
        assert len(repr(bound)) <= 200 and "\n" not in repr(bound)
    assert "no upper bound" in str(bounds[0]) and "and 24 more, in .unbounded" in str(bounds[0])
    assert f"at most {bounds[1].upper:.6g}" in str(bounds[1])
