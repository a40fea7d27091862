"""The linearization of a model, against dense Jacobians that torch computes."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lipschitz_cases import X
from torch import Tensor, nn
from zoo import BY_NAME, ZOO

from oracle.slopes import Function
from spectralclip import norm_bounds, svds
from spectralclip._lipschitz import jacobian
from spectralclip._lipschitz.bounds import lipschitz_bounds
from spectralclip._lipschitz.jacobian import jacobian_operator

SMOOTH = [specimen for specimen in ZOO if not specimen.tokens]


def truth(model: nn.Module, x: Tensor) -> Tensor:
    wide = copy.deepcopy(model).double()
    matrix = torch.autograd.functional.jacobian(wide, x.double())
    return matrix.reshape(-1, x.numel())


@pytest.mark.parametrize("specimen", SMOOTH, ids=lambda specimen: specimen.name)
def test_it_is_the_jacobian(specimen, generator: torch.Generator) -> None:
    model, x = specimen.model(), specimen.inputs(1)
    op, dense = jacobian_operator(model, x), truth(model, x)
    assert op.in_shape == specimen.in_shape
    assert op.shape == tuple(dense.shape)
    v = torch.randn(2, *op.in_shape, generator=generator)
    u = torch.randn(2, *op.out_shape, generator=generator)
    assert torch.allclose(
        op.matvec(v).flatten(1).double(), v.flatten(1).double() @ dense.T, atol=1e-4
    )
    assert torch.allclose(
        op.rmatvec(u).flatten(1).double(), u.flatten(1).double() @ dense, atol=1e-4
    )
    values = torch.linalg.svdvals(dense)
    assert torch.allclose(svds(op, op.in_shape, k=2).S.double(), values[:2], rtol=2e-3)
    assert float(values[0]) * (1 - 1e-4) <= norm_bounds(op, op.in_shape).upper


def test_the_model_is_left_as_it_was() -> None:
    model = BY_NAME["vgg"].model().train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    x = BY_NAME["vgg"].inputs(1).requires_grad_()
    op = jacobian_operator(model, x)
    op.rmatvec(op.matvec(torch.ones(op.in_shape)))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training and x.grad is None and all(p.grad is None for p in model.parameters())
    assert torch.allclose(op.to_dense().double(), truth(model.eval(), x.detach()), atol=1e-5)


def test_several_inputs_and_outputs_are_flat_vectors() -> None:
    model = Function(lambda a, b: {"sum": a + 2 * b[:, :2], "more": (3 * b,)})
    op = jacobian_operator(model, (torch.zeros(1, 2), torch.zeros(1, 3)))
    assert op.in_shape == (5,) and op.out_shape == (5,)
    expected = torch.tensor(
        [[1, 0, 2, 0, 0], [0, 1, 0, 2, 0], [0, 0, 3, 0, 0], [0, 0, 0, 3, 0], [0, 0, 0, 0, 3.0]]
    )
    assert torch.equal(op.to_dense(), expected)
    named = jacobian_operator(Function(lambda x: 2 * x), (torch.zeros(1, 3),))
    assert torch.equal(named.to_dense(), 2 * torch.eye(3))


def test_integer_inputs_are_held_fixed() -> None:
    model = Function(lambda x, pick: x[:, pick[0]])
    op = jacobian_operator(model, (torch.zeros(1, 3), torch.tensor([[2, 0]])))
    assert op.to_dense().tolist() == [[0, 0, 1], [1, 0, 0]]


def test_the_same_noise_is_drawn_each_time(generator: torch.Generator) -> None:
    op = jacobian_operator(Function(lambda x: x * torch.rand_like(x)), torch.ones(1, 6))
    v = torch.randn(6, generator=generator)
    assert torch.equal(op.matvec(v), op.matvec(v))
    torch.rand(3)  # whatever else is drawn meanwhile
    assert torch.allclose(op.matvec(v), op.rmatvec(v))


class OnceOnly(torch.autograd.Function):
    """Cannot be differentiated twice, but forwards."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 3 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 3 * grad

    @staticmethod
    def jvp(ctx: Any, move: Tensor) -> Tensor:
        return 3 * move


def test_a_model_may_work_in_place() -> None:
    x = torch.full((1, 3), 3.0)
    op = jacobian_operator(Function(lambda x: x.pow_(2)), x)
    for _ in range(2):
        assert torch.equal(op.matvec(torch.ones(3)), torch.full((3,), 6.0))
        assert torch.equal(op.rmatvec(torch.ones(3)), torch.full((3,), 6.0))
    assert torch.equal(x, torch.full((1, 3), 3.0))


def test_forward_mode_helps_where_there_is_no_second_derivative() -> None:
    op = jacobian_operator(Function(OnceOnly.apply), torch.ones(1, 4))
    v = torch.arange(4.0)
    assert torch.equal(op.matvec(v), 3 * v) and torch.equal(op.rmatvec(v), 3 * v)
    noisy = Function(lambda x: OnceOnly.apply(x * torch.rand_like(x)))
    op = jacobian_operator(noisy, torch.ones(1, 4))
    torch.rand(3)  # whatever else is drawn meanwhile
    assert torch.allclose(op.matvec(v), op.rmatvec(v))


def test_a_constant_has_the_jacobian_zero() -> None:
    op = jacobian_operator(Function(lambda x: torch.ones_like(x)), torch.ones(1, 4))
    assert not op.to_dense().any() and not op.matvec(torch.ones(4)).any()


def test_bad_points_are_refused() -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(ValueError, match=r"x\[:1\]"):
        jacobian_operator(model, torch.zeros(2, 3))
    with pytest.raises(ValueError, match="no input of floating-point"):
        jacobian_operator(nn.Embedding(3, 3), torch.tensor([[1]]))
    with pytest.raises(ValueError, match="no output of finite"):
        jacobian_operator(Function(lambda x: x / 0), torch.ones(1, 3))
    with pytest.raises(ValueError, match="no output of finite"):
        jacobian_operator(Function(lambda x: F.relu(x).argmax(1)), torch.ones(1, 3))


def test_a_lower_end_that_fails_leaves_the_upper_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **kwargs: Any) -> Any:
        raise ArithmeticError("no luck")

    monkeypatch.setattr(jacobian, "leading_spectrum", failing)
    bound = lipschitz_bounds(Function(lambda x: 3 * x), X)
    assert (bound.lower, bound.local_norms) == (0.0, ()) and bound.upper == pytest.approx(3)
    assert any("no luck" in step.note for step in bound.steps)


def test_derivatives_that_are_not_finite_are_no_lower_end() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 3 * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * math.nan

    bound = lipschitz_bounds(Function(Broken.apply), X)
    assert bound.lower == 0 and bound.upper == pytest.approx(3)
