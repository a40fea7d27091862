"""Operators from two functions on arrays: against the matrix, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spectralclip import LinearOperator, NotAffineError, norm_bounds, singular_values, svds

MATRIX = np.random.default_rng(0).standard_normal((70, 90))
IN, OUT = (5, 18), (7, 10)


def forward(x: Any) -> Any:
    return (MATRIX @ x.reshape(-1)).reshape(OUT)


def backward(y: Any) -> Any:
    return (MATRIX.T @ y.reshape(-1)).reshape(IN)


def on_batches(x: Any) -> Any:
    return (x.reshape(len(x), -1) @ MATRIX.T).reshape(len(x), *OUT)


def back_on_batches(y: Any) -> Any:
    return (y.reshape(len(y), -1) @ MATRIX).reshape(len(y), *IN)


def on_tensors(x: Tensor) -> Tensor:
    return (x.flatten(1) @ torch.from_numpy(MATRIX).T).reshape(-1, *OUT)


def back_on_tensors(y: Tensor) -> Tensor:
    return (y.flatten(1) @ torch.from_numpy(MATRIX)).reshape(-1, *IN)


def in_single(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """As JAX by default: whatever it is given, it answers in float32."""

    def shortened(x: Any) -> Any:
        return function(x.astype(np.float32)).astype(np.float32)

    return shortened


OPERATORS: dict[str, Callable[[], LinearOperator]] = {
    "one at a time": lambda: LinearOperator.from_callables(forward, backward, IN, OUT),
    "batches": lambda: LinearOperator.from_callables(
        on_batches, back_on_batches, IN, OUT, batched=True
    ),
    "tensors": lambda: LinearOperator.from_callables(
        on_tensors, back_on_tensors, IN, OUT, batched=True, arrays="torch", dtype=torch.float64
    ),
    "float32": lambda: LinearOperator.from_callables(
        in_single(forward), in_single(backward), IN, OUT
    ),
}


@pytest.mark.parametrize("kind", OPERATORS)
def test_spectrum_and_bounds_are_those_of_the_matrix(kind: str) -> None:
    op = OPERATORS[kind]()
    truth = np.linalg.svd(MATRIX, compute_uv=False)
    close = 1e-5 if kind == "float32" else 1e-10
    assert op.dtype == (torch.float32 if kind == "float32" else torch.float64)
    assert (op.in_shape, op.out_shape, op.shape) == (IN, OUT, MATRIX.shape)
    np.testing.assert_allclose(op.to_dense().numpy(), MATRIX, rtol=close, atol=close)
    np.testing.assert_allclose(op.adjoint().to_dense().numpy(), MATRIX.T, rtol=close, atol=close)
    np.testing.assert_allclose(singular_values(op).numpy(), truth, rtol=20 * close)
    np.testing.assert_allclose(svds(op, k=3, tol=1e-4).S.numpy(), truth[:3], rtol=1e-4)
    for deterministic in (False, True):
        interval = norm_bounds(op, IN, deterministic=deterministic)
        assert interval.lower <= truth[0] <= interval.upper <= 1.011 * interval.lower


def test_a_function_that_works_in_place_spoils_nothing() -> None:
    def doubled(x: Any) -> Any:
        x *= 2
        return x

    op = LinearOperator.from_callables(doubled, doubled, 5, 5)
    x = torch.arange(5.0, dtype=torch.float64)
    assert torch.equal(op.matvec(x), 2 * x)
    assert torch.equal(x, torch.arange(5.0, dtype=torch.float64))


def test_functions_may_answer_in_memory_that_they_use_again() -> None:
    matrix = torch.from_numpy(MATRIX)
    images, backs = (matrix.new_zeros(100, side) for side in matrix.shape)
    op = LinearOperator.from_callables(
        lambda x: torch.matmul(x, matrix.T, out=images[: len(x)]),
        lambda y: torch.matmul(y, matrix, out=backs[: len(y)]),
        *reversed(MATRIX.shape),
        arrays="torch",
        batched=True,
        dtype=torch.float64,
    )
    np.testing.assert_allclose(op.to_dense().numpy(), MATRIX, rtol=1e-10, atol=1e-10)
    assert np.linalg.norm(MATRIX, 2) in norm_bounds(op)


@pytest.mark.parametrize("scale", [1e-200, 1e-25, 1e25, 1e200])
def test_extreme_scales(scale: float) -> None:
    op = LinearOperator.from_callables(
        lambda x: scale * forward(x), lambda y: scale * backward(y), IN, OUT
    )
    assert scale * np.linalg.norm(MATRIX, 2) in norm_bounds(op)
    with pytest.raises(ValueError, match="it is 2 times the transpose"):
        LinearOperator.from_callables(
            lambda x: scale * forward(x), lambda y: 2 * scale * backward(y), IN, OUT
        )


def test_has_no_parameters() -> None:
    op = OPERATORS["batches"]()
    assert op.parameters == {}
    with pytest.raises(ValueError, match="a pair of callables has no parameters"):
        op.pullback(torch.ones(OUT), torch.ones(IN))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda y: 2 * backward(y), r"rmatvec of A is not the transpose.*it is 2 times the transp"),
        (lambda y: backward(y[::-1]), r"<matvec\(x\), y> = .* and <x, rmatvec\(y\)> = .*another"),
        (lambda y: backward(y) + 1e-6, "rmatvec of A is not the transpose"),
        (lambda y: backward(y).astype(np.float32), "float32 where it is given torch.float64"),
        (lambda y: backward(y).astype(np.float16), "float16, which leaves three digits"),
        (lambda y: backward(y).ravel(), r"shape \(90,\) from .* \(7, 10\).*expected \(5, 18\)"),
        (lambda y: backward(y) * np.inf, "rmatvec of A makes NaN or infinite"),
        (lambda y: backward(y) * 1j, "complex128, expected real"),
        (lambda y: None, "What rmatvec of A returns must be a NumPy array"),
        (lambda y: y.nothing, "rmatvec of A cannot be applied.*AttributeError.*arrays="),
    ],
)
def test_a_wrong_adjoint_is_refused_with_what_differs(
    wrong: Callable[[Any], Any], says: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=f"(?s){says}"):
        LinearOperator.from_callables(forward, wrong, IN, OUT, name="A")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda x: forward(x) + 1, "matvec does not map zeros to zeros"),
        (lambda x: np.abs(forward(x)), "is not affine"),
    ],
)
def test_a_bent_product_is_refused(wrong: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(NotAffineError, match=says):
        LinearOperator.from_callables(wrong, backward, IN, OUT)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"in_shape": (5, 0)}, "in_shape must have at least one dimension and no empty one"),
        ({"out_shape": "ab"}, "out_shape must be a sequence of integers"),
        ({"arrays": "jax"}, 'arrays must be "numpy" or "torch"'),
        ({"dtype": np.float64}, "dtype must be a torch.dtype such as torch.float64, got"),
        (
            {"matvec": lambda x: torch.ones(70, 90, dtype=torch.float64) @ x, "arrays": "torch"},
            r"dtype torch.float32: RuntimeError.*dtype=torch.float64",
        ),
        ({"matvec": 3}, "matvec must be a function of an array, got int"),
    ],
)
def test_bad_arguments(change: dict[str, Any], says: str) -> None:
    given = {"matvec": forward, "rmatvec": backward, "in_shape": IN, "out_shape": OUT}
    with pytest.raises((ValueError, TypeError), match=says):
        LinearOperator.from_callables(**(given | change))
