"""Arrays and functions of JAX; `make test-jax` runs it in an environment of its own.

With it run the examples of docs/howto/arrays.md that need JAX.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from docs_blocks import PYTHON, Page
from jax import lax

import spectralclip as sc

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "arrays.md"
KERNEL = jax.random.normal(jax.random.key(0), (3, 3, 4, 6))  # HWIO
NUMBERS = ("NHWC", "HWIO", "NHWC")


def convolve(x: Any, stride: int = 2) -> Any:
    return lax.conv_general_dilated(
        x[None], KERNEL, (stride, stride), "SAME", dimension_numbers=NUMBERS
    )[0]


def dense_norm(stride: int = 2) -> float:
    x = jnp.zeros((9, 10, 4))
    jacobian = jax.jacobian(lambda x: convolve(x, stride))(x)
    return float(np.linalg.norm(np.asarray(jacobian, np.float64).reshape(-1, x.size), 2))


@pytest.mark.parametrize("batched", [False, True])
def test_a_convolution_and_its_linear_transpose(batched: bool) -> None:
    shape = jax.ShapeDtypeStruct((9, 10, 4), jnp.float32)
    transpose = jax.linear_transpose(convolve, shape)
    matvec, rmatvec = jax.jit(convolve), jax.jit(lambda y: transpose(y)[0])
    if batched:
        matvec, rmatvec = jax.vmap(matvec), jax.vmap(rmatvec)
    op = sc.LinearOperator.from_callables(
        matvec, rmatvec, (9, 10, 4), (5, 5, 6), batched=batched, name="conv"
    )
    assert op.dtype == torch.float32  # in which JAX computes by default
    truth = dense_norm()
    assert float(sc.spectral_norm(op, tol=1e-4)) == pytest.approx(truth, rel=1e-4)
    assert truth in sc.norm_bounds(op)
    assert float(sc.singular_values(op)[0]) == pytest.approx(truth, rel=1e-5)
    assert sc.svds(op, k=2).V.shape == (2, 9, 10, 4)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_same_padding_is_that_of_jax(stride: int) -> None:
    found = sc.kernel_norm(KERNEL, (4, 9, 10), stride=stride, padding="same", layout="HWIO")
    assert found == pytest.approx(dense_norm(stride), rel=1e-5)


def test_half_precision_is_read() -> None:
    half = KERNEL.astype(jnp.bfloat16)
    exact = np.asarray(half.astype(jnp.float32))
    options = {"padding": "same", "layout": "HWIO"}
    found = sc.kernel_norm(half, (4, 9, 10), **options)
    assert found == sc.kernel_norm(exact, (4, 9, 10), **options)


def test_a_wrong_transpose_is_told() -> None:
    shape = jax.ShapeDtypeStruct((9, 10, 4), jnp.float32)
    transpose = jax.linear_transpose(convolve, shape)
    with pytest.raises(ValueError, match="it is 2 times the transpose"):
        sc.LinearOperator.from_callables(
            convolve, lambda y: 2 * transpose(y)[0], (9, 10, 4), (5, 5, 6)
        )


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    blocks = [block for block in Page.read(PAGE).blocks if block.language in PYTHON]
    assert all(
        any(word in block.code for block in blocks) for word in ("linear_transpose", "keras")
    )
    for block in blocks:
        exec(compile(block.code, PAGE.name, "exec"), namespace)
