"""The operator against the dense matrix, and the identities that any linear operator satisfies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import CASES, HALF_CASES, Case, case, dense, params, parts, reference
from operator_cases import operator, random_pair
from torch import Tensor, nn

from oracle.matrix import evaluate
from spectralclip import LinearOperator, as_operator

EVERY_CASE = params(CASES + HALF_CASES)


def closeness(op: LinearOperator, case: Case) -> dict[str, float]:
    """Tolerances for numbers of the size of the matrix's largest entry."""
    scale = max(float(np.abs(dense(case)).max()), 1e-30)
    relative = 1e-12 if op.dtype == torch.float64 else 5e-6
    return {"rtol": relative, "atol": relative * scale}


# --- The matrix ---------------------------------------------------------------------------


@pytest.mark.parametrize("explicit", [True, False], ids=["explicit", "generic"])
@pytest.mark.parametrize("case", EVERY_CASE)
def test_matrix_is_that_of_the_forward(case: Case, explicit: bool) -> None:
    op = operator(case, explicit=explicit)
    matrix = dense(case)
    assert op.shape == matrix.shape
    assert op.in_shape == case.in_shape
    got = op.to_dense()
    assert got.dtype == op.dtype
    np.testing.assert_allclose(got.double().numpy(), matrix, **closeness(op, case))


@pytest.mark.parametrize("explicit", [True, False], ids=["explicit", "generic"])
@pytest.mark.parametrize("case", EVERY_CASE)
def test_matvec_rmatvec_and_gram_apply_the_matrix(
    case: Case, explicit: bool, generator: torch.Generator
) -> None:
    # `to_dense` goes through one direction alone: here both are applied.
    op, matrix = operator(case, explicit=explicit), dense(case)
    x, y = random_pair(op, 3, generator)
    rows = x.double().reshape(3, -1).numpy()
    columns = y.double().reshape(3, -1).numpy()
    for got, expected, shape, size in (
        (op.matvec(x), rows @ matrix.T, op.out_shape, 1),
        (op.rmatvec(y), columns @ matrix, op.in_shape, 1),
        (op.gram(x), rows @ matrix.T @ matrix, op.in_shape, np.linalg.norm(matrix, 2)),
    ):
        assert got.shape == (3, *shape)
        assert got.dtype == op.dtype
        assert got.is_contiguous()
        assert not got.requires_grad
        relative = 1e-11 if op.dtype == torch.float64 else 2e-5
        atol = relative * max(np.linalg.norm(matrix, 2), 1e-30) * max(size, 1e-30)
        np.testing.assert_allclose(
            got.double().reshape(3, -1).numpy(), expected, rtol=relative, atol=atol
        )


@pytest.mark.parametrize("case", EVERY_CASE)
def test_reports_shapes_dtype_and_device(case: Case) -> None:
    layer = case.make()
    op = as_operator(layer, list(case.in_shape))
    assert isinstance(op, LinearOperator)
    with torch.no_grad():
        expected = evaluate(reference(case), torch.zeros(1, *case.in_shape, dtype=torch.float64))
    assert op.out_shape == tuple(expected.shape[1:])
    assert op.device == torch.device("cpu")
    dtypes = {
        p.dtype for part in parts(layer) if isinstance(part, nn.Module) for p in part.parameters()
    }
    assert op.dtype == (torch.float64 if torch.float64 in dtypes else torch.float32)
    m, n = dense(case).shape
    assert f"{m}x{n}" in repr(op)


# --- Identities ---------------------------------------------------------------------------


@pytest.mark.parametrize("explicit", [True, False], ids=["explicit", "generic"])
@pytest.mark.parametrize("case", EVERY_CASE)
def test_adjoint_moves_to_the_other_side(
    case: Case, explicit: bool, generator: torch.Generator
) -> None:
    op = operator(case, explicit=explicit)
    x, y = random_pair(op, 1, generator)
    forward, backward = op.matvec(x).double(), op.rmatvec(y).double()
    left, right = torch.sum(forward * y), torch.sum(x * backward)
    size = forward.norm() * y.norm() + x.norm() * backward.norm()
    assert abs(left - right) <= (1e-13 if op.dtype == torch.float64 else 1e-6) * size


@pytest.mark.parametrize("case", params(CASES))
def test_is_linear_and_drops_the_offset(case: Case, generator: torch.Generator) -> None:
    op = operator(case)
    x, z = torch.randn(2, *op.in_shape, dtype=op.dtype, generator=generator)
    together = op.matvec(2 * x - 3 * z)
    torch.testing.assert_close(
        together,
        2 * op.matvec(x) - 3 * op.matvec(z),
        rtol=1e-4,
        atol=float(1e-5 * together.abs().max()),
    )
    assert not op.matvec(torch.zeros_like(x)).any()
    assert not op.rmatvec(torch.zeros(op.out_shape, dtype=op.dtype)).any()


def test_batches_wider_than_a_cache_come_out_the_same(generator: torch.Generator) -> None:
    layer = nn.Conv2d(4, 3, 3, padding=1).requires_grad_(False)
    op = as_operator(layer, (4, 50, 50), explicit=False)
    wide = torch.randn(90, 4, 50, 50, generator=generator)
    expected = F.conv_transpose2d(
        F.conv2d(wide.double(), layer.weight.double(), padding=1), layer.weight.double(), padding=1
    )
    torch.testing.assert_close(op.gram(wide).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", params(CASES))
def test_gram_is_rmatvec_of_matvec(case: Case, generator: torch.Generator) -> None:
    op = operator(case)
    x, _ = random_pair(op, 2, generator)
    gram, twice = op.gram(x), op.rmatvec(op.matvec(x))
    torch.testing.assert_close(gram, twice, rtol=1e-5, atol=float(1e-6 * twice.abs().max()))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("explicit", [True, False], ids=["explicit", "generic"])
@pytest.mark.parametrize("case", params(CASES))
def test_one_vector_is_a_batch_of_one(
    case: Case, explicit: bool, generator: torch.Generator
) -> None:
    op = operator(case, explicit=explicit)
    x, y = random_pair(op, 3, generator)
    for apply, vectors in ((op.matvec, x), (op.rmatvec, y), (op.gram, x)):
        batch = apply(vectors)
        for row in range(3):
            alone = apply(vectors[row])
            assert alone.shape == batch.shape[1:]
            torch.testing.assert_close(
                alone, batch[row], rtol=1e-5, atol=float(1e-6 * batch.abs().max())
            )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("explicit", [True, False], ids=["explicit", "generic"])
@pytest.mark.parametrize("case", params(CASES))
def test_adjoint_operator(case: Case, explicit: bool, generator: torch.Generator) -> None:
    op = operator(case, explicit=explicit)
    adjoint = op.adjoint()
    assert adjoint.shape == op.shape[::-1]
    assert (adjoint.in_shape, adjoint.out_shape) == (op.out_shape, op.in_shape)
    x, y = random_pair(op, 2, generator)
    torch.testing.assert_close(adjoint.matvec(y), op.rmatvec(y), rtol=0, atol=0)
    torch.testing.assert_close(adjoint.rmatvec(x), op.matvec(x), rtol=0, atol=0)
    np.testing.assert_allclose(
        adjoint.to_dense().double().numpy(), dense(case).T, **closeness(op, case)
    )
    back = adjoint.adjoint()
    assert back.shape == op.shape
    assert back.name == op.name
    torch.testing.assert_close(back.matvec(x), op.matvec(x), rtol=0, atol=0)
    torch.testing.assert_close(back.rmatvec(y), op.rmatvec(y), rtol=0, atol=0)


@pytest.mark.parametrize("case", params(CASES))
def test_scipy_operator(case: Case, generator: torch.Generator) -> None:
    op = operator(case)
    scipy_op, matrix = op.to_scipy(), dense(case)
    m, n = matrix.shape
    assert scipy_op.shape == (m, n)
    assert scipy_op.dtype == (np.float64 if op.dtype == torch.float64 else np.float32)
    x, y = random_pair(op, 2, generator)
    columns, rows = x.reshape(2, n).T.numpy(), y.reshape(2, m).T.numpy()
    scale = 1e-5 * max(np.linalg.norm(matrix, 2), 1e-30)
    for got, expected in (
        (scipy_op @ columns, matrix @ columns),
        (scipy_op.H @ rows, matrix.T @ rows),
        (scipy_op.rmatmat(rows), matrix.T @ rows),
        (scipy_op.matvec(columns[:, 0]), matrix @ columns[:, 0]),
        (scipy_op.matvec(columns[:, :1]), matrix @ columns[:, :1]),
        (scipy_op.rmatvec(rows[:, 1]), matrix.T @ rows[:, 1]),
    ):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=scale)


# --- Gradients in the weights -------------------------------------------------------------

WITH_PARAMETERS = [c for c in CASES if "no-pullback" not in c.tags and "callable" not in c.tags]


def named_parameters(layer: Any) -> dict[str, Tensor]:
    whole = nn.Sequential(*layer) if isinstance(layer, (list, tuple)) else layer
    return dict(whole.named_parameters())


def reference_pullback(case: Case, u: Tensor, v: Tensor) -> dict[str, Tensor]:
    """The gradient of `<u, f(v) - f(0)>` by autograd, on a float64 copy of the layer."""
    layer = reference(case)
    parameters = named_parameters(layer)
    for parameter in parameters.values():
        parameter.requires_grad_()
    offset = evaluate(layer, torch.zeros_like(v[:1], dtype=torch.float64))
    value = torch.sum(u.double() * (evaluate(layer, v.double()) - offset))
    gradients = torch.autograd.grad(
        value, list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(parameters, gradients, strict=True))


@pytest.mark.parametrize("case", params([c for c in CASES if "callable" not in c.tags]))
def test_parameters_are_the_layers_own_by_name(case: Case) -> None:
    layer = case.make()
    expected = named_parameters(layer)
    got = as_operator(layer, case.in_shape).parameters
    assert list(got) == list(expected)
    for name, parameter in got.items():
        assert parameter is expected[name]


@pytest.mark.parametrize("case", params(WITH_PARAMETERS))
def test_pullback_is_the_gradient_in_the_weights(case: Case, generator: torch.Generator) -> None:
    op = operator(case)
    if not op.parameters:
        with pytest.raises(ValueError, match="no parameters"):
            op.pullback(torch.zeros(op.out_shape), torch.zeros(op.in_shape))
        return
    v, u = random_pair(op, 2, generator)
    expected = reference_pullback(case, u, v)
    got = op.pullback(u, v)
    assert got.keys() == expected.keys() == op.parameters.keys()
    size = max(float(g.norm()) for g in expected.values())
    for name, gradient in got.items():
        assert gradient.shape == op.parameters[name].shape
        assert not gradient.requires_grad
        error = (gradient.double() - expected[name]).norm()
        assert error <= (1e-12 if op.dtype == torch.float64 else 1e-5) * size, name


@pytest.mark.parametrize("case", params(WITH_PARAMETERS))
def test_pullback_of_the_adjoint_and_of_one_pair(case: Case, generator: torch.Generator) -> None:
    op = operator(case)
    if not op.parameters:
        return
    v, u = random_pair(op, 2, generator)
    pairs = [op.pullback(u[row], v[row]) for row in range(2)]
    together, flipped = op.pullback(u, v), op.adjoint().pullback(v, u)
    size = max(float(g.norm()) for g in together.values())
    for name in together:
        close = {"rtol": 1e-4, "atol": 1e-5 * size}
        torch.testing.assert_close(pairs[0][name] + pairs[1][name], together[name], **close)
        torch.testing.assert_close(flipped[name], together[name], **close)


@pytest.mark.parametrize("case", params(WITH_PARAMETERS))
def test_bilinear_has_the_value_and_the_gradient(case: Case, generator: torch.Generator) -> None:
    layer = case.make()
    op = as_operator(layer, case.in_shape)
    v, u = random_pair(op, 2, generator)
    value = op.bilinear(u, v)
    expected = torch.sum(u * op.matvec(v))
    size = float(u.norm() * op.matvec(v).norm())
    assert abs(float(value.detach()) - float(expected)) <= 1e-5 * size
    flipped = op.adjoint().bilinear(v, u)
    assert abs(float(flipped.detach()) - float(expected)) <= 1e-5 * size
    trainable = {k: p for k, p in named_parameters(layer).items() if p.requires_grad}
    assert value.requires_grad == bool(trainable)
    if trainable:
        gradients = torch.autograd.grad(
            value, list(trainable.values()), allow_unused=True, materialize_grads=True
        )
        pullback = op.pullback(u, v)
        largest = max(float(g.norm()) for g in pullback.values())
        for name, gradient in zip(trainable, gradients, strict=True):
            torch.testing.assert_close(
                gradient.to(op.dtype), pullback[name], rtol=1e-4, atol=1e-5 * largest
            )


def test_pullback_by_finite_differences(generator: torch.Generator) -> None:
    layer = nn.Conv2d(2, 3, 3, stride=2, padding=1, padding_mode="reflect").double()
    op = as_operator(layer, (2, 7, 7))
    v, u = random_pair(op, 1, generator)
    gradient = op.pullback(u, v)
    direction = torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64)
    values = []
    for step in (1e-3, -1e-3):
        with torch.no_grad():
            layer.weight.add_(step * direction)
            values.append(float(as_operator(layer, (2, 7, 7)).bilinear(u, v)))
            layer.weight.sub_(step * direction)
    slope = (values[0] - values[1]) / 2e-3
    assert slope == pytest.approx(float(torch.sum(gradient["weight"] * direction)), rel=1e-9)
    assert not gradient["bias"].any()


def test_pullback_sums_over_both_uses_of_a_weight(generator: torch.Generator) -> None:
    conv = nn.Conv1d(2, 2, 3, padding=1).double()
    apart = [nn.Conv1d(2, 2, 3, padding=1).double() for _ in range(2)]
    for copy in apart:
        copy.load_state_dict(conv.state_dict())
    shared, separate = as_operator([conv, conv], (2, 6)), as_operator(apart, (2, 6))
    v, u = random_pair(shared, 1, generator)
    uses = separate.pullback(u, v)
    assert set(shared.parameters) == {"0.weight", "0.bias"}
    torch.testing.assert_close(
        shared.pullback(u, v)["0.weight"], uses["0.weight"] + uses["1.weight"]
    )


def test_pullback_reaches_frozen_parameters(generator: torch.Generator) -> None:
    layer = nn.Linear(4, 3)
    layer.weight.requires_grad_(False)
    op = as_operator(layer, (4,))
    v, u = random_pair(op, 1, generator)
    torch.testing.assert_close(op.pullback(u, v)["weight"], u.T @ v)


@pytest.mark.parametrize("case", params(HALF_CASES))
def test_pullback_in_half_precision_is_computed_in_single(
    case: Case, generator: torch.Generator
) -> None:
    op = operator(case)
    assert op.dtype == torch.float32
    v, u = random_pair(op, 2, generator)
    expected = reference_pullback(case, u, v)
    size = max(float(g.norm()) for g in expected.values())
    for name, gradient in op.pullback(u, v).items():
        assert gradient.dtype == torch.float32
        assert (gradient.double() - expected[name]).norm() <= 1e-5 * size, name


# --- Known matrices -----------------------------------------------------------------------


def test_operator_is_a_picture_of_its_moment() -> None:
    layer = nn.Linear(4, 3)
    op = as_operator(layer, (4,))
    assert as_operator(op, (4,)) is op


# --- Whatever the caller's surroundings ---------------------------------------------------


def test_inputs_in_another_dtype_or_memory_format_are_taken() -> None:
    op = as_operator(nn.Conv2d(3, 4, 3), (3, 6, 6))
    x = torch.arange(108.0).reshape(1, 3, 6, 6).cos()
    expected = op.matvec(x)
    assert op.matvec(x.double()).dtype == torch.float32
    torch.testing.assert_close(op.matvec(x.double()), expected)
    torch.testing.assert_close(op.matvec(x.to(memory_format=torch.channels_last)), expected)
    strided = torch.stack([x, -x], dim=-1)[..., 0]
    torch.testing.assert_close(op.matvec(strided), expected)
    assert not op.matvec(x.clone().requires_grad_()).requires_grad


def test_a_batch_of_none_is_a_batch() -> None:
    for explicit in (True, False):
        op = as_operator(nn.Conv2d(3, 4, 3), (3, 6, 6), explicit=explicit)
        assert op.matvec(torch.zeros(0, 3, 6, 6)).shape == (0, 4, 4, 4)
        assert op.rmatvec(torch.zeros(0, 4, 4, 4)).shape == (0, 3, 6, 6)


def test_results_are_not_overwritten_by_the_next_call(generator: torch.Generator) -> None:
    for explicit in (True, False):
        op = as_operator(nn.Conv2d(2, 3, 3), (2, 5, 5), explicit=explicit)
        x, y = random_pair(op, 2, generator)
        first = op.matvec(x), op.rmatvec(y), op.gram(x)
        kept = [t.clone() for t in first]
        op.matvec(-x), op.rmatvec(-y), op.gram(3 * x)
        for result, copy in zip(first, kept, strict=True):
            assert torch.equal(result, copy)


def test_the_oracle_sees_a_wrong_matrix() -> None:
    """What the comparisons above rest on: another padding is another matrix."""
    zeros = case("oracle", lambda: nn.Conv2d(2, 2, 3, padding=1), 2, 4, 4)
    other = case("oracle", lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), 2, 4, 4)
    assert np.abs(dense(zeros) - dense(other)).max() > 1e-2
