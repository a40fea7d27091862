"""Singular triplets against NumPy's dense SVD in float64, and against ARPACK."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from cases import (
    CASES,
    HALF_CASES,
    Case,
    dense,
    dense_singular_values,
    params,
    smaller_side,
    with_weight,
)
from seeds import seeded
from spectrum_cases import MEDIUM, SOLVERS, UNCONVERGED, assert_triplets, assert_values, flat
from torch import Tensor, nn

import spectralclip as sc
from spectralclip import Lanczos, LinearOperator, PowerQR, Spectrum, svds


def assert_shapes(found: Spectrum, op: LinearOperator) -> None:
    k = found.S.shape[0]
    assert found.U.shape == (k, *op.out_shape)
    assert found.V.shape == (k, *op.in_shape)
    for part in (found.S, found.U, found.V, found.residuals):
        assert part.dtype == op.dtype
        assert part.device == op.device
        assert not part.requires_grad
    assert isinstance(found.num_matvecs, int)


# --- Every case, every solver -------------------------------------------------------------


@pytest.mark.sampled(8)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("case", params(CASES + HALF_CASES))
def test_leading_triplets(case: Case, solver: str) -> None:
    matrix = dense(case)
    k = min(4, *matrix.shape)
    layer = case.make()
    found = svds(layer, case.in_shape, k, solver=SOLVERS[solver])
    assert_shapes(found, sc.as_operator(layer, case.in_shape))
    assert_triplets(found, matrix, k, 1e-3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("case", params(CASES))
def test_largest_triplet(case: Case, solver: str) -> None:
    found = svds(case.make(), case.in_shape, 1, solver=SOLVERS[solver])
    assert_triplets(found, dense(case), 1, 1e-3)


@pytest.mark.parametrize("case", params(CASES + HALF_CASES))
def test_spectral_norm(case: Case) -> None:
    layer = case.make()
    norm = sc.spectral_norm(layer, case.in_shape)
    assert norm.shape == ()
    assert norm.dtype == sc.as_operator(layer, case.in_shape).dtype
    assert not norm.requires_grad
    assert_values(norm[None], dense_singular_values(case)[:1], 1e-3)


@pytest.mark.parametrize("case", params(CASES + HALF_CASES))
def test_whole_spectrum(case: Case) -> None:
    layer = case.make()
    values = sc.singular_values(layer, case.in_shape)
    expected = dense_singular_values(case)
    assert values.shape == expected.shape
    assert (values[1:] <= values[:-1]).all()
    rounding = 1e-12 if values.dtype == torch.float64 else 3e-6
    np.testing.assert_allclose(
        values.double().numpy(), expected, rtol=0, atol=rounding * max(expected[0], 1e-30)
    )


SMALL = [c for c in CASES if "warns" not in c.tags and smaller_side(c) <= 40]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("case", params(SMALL))
def test_all_triplets(case: Case, solver: str) -> None:
    matrix = dense(case)
    k = min(matrix.shape)
    found = svds(case.make(), case.in_shape, k, solver=SOLVERS[solver])
    assert_triplets(found, matrix, k, 1e-3)
    rebuilt = (flat(found.U).T * found.S.double().numpy()) @ flat(found.V)
    np.testing.assert_allclose(rebuilt, matrix, atol=2e-3 * max(np.linalg.norm(matrix, 2), 1e-30))


DOUBLE = [c for c in CASES if c.name.endswith("float64") or c.name == "graded"]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("case", params(DOUBLE))
def test_double_precision_to_ten_digits(case: Case, solver: str) -> None:
    matrix = dense(case)
    k = min(4, *matrix.shape)
    found = svds(case.make(), case.in_shape, k, tol=1e-10, solver=SOLVERS[solver])
    assert found.S.dtype == torch.float64
    assert_triplets(found, matrix, k, 1e-10)


# --- Scale --------------------------------------------------------------------------------


def scaled(layer: nn.Module, factor: float) -> nn.Module:
    with torch.no_grad():
        layer.weight.mul_(factor)
    return layer


@pytest.mark.sampled(3)
@pytest.mark.parametrize("factor", [1e-12, 1e-3, 1.0, 1e3, 1e12])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "case",
    params(
        [
            c
            for c in CASES
            if c.name in ("medium-conv", "medium-dense", "conv2d-circular", "transposed2d-stride")
        ]
    ),
)
def test_values_scale_with_the_weights(case: Case, solver: str, factor: float) -> None:
    layer = scaled(case.make(), factor)
    found = svds(layer, case.in_shape, 3, solver=SOLVERS[solver])
    weight = layer.weight.detach().double().numpy()
    exact = case.make().weight.detach().double().numpy()
    np.testing.assert_allclose(weight, factor * exact, rtol=1e-6)
    assert_triplets(found, factor * dense(case), 3, 1e-3)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_values_scale_with_a_factor_in_the_composition(factor: float) -> None:
    # Through the layer's own forward, with the bias of its original size.
    for case in (c for c in CASES if c.name in ("residual", "low-rank-in-forward", "conv-bn")):
        layer = case.make()
        parts = layer if isinstance(layer, list) else [layer]
        found = svds([*parts, lambda x: factor * x], case.in_shape, 3, solver=Lanczos())
        assert_triplets(found, factor * dense(case), 3, 1e-3)


@pytest.mark.parametrize("factor", [1e-25, 1e-20, 1e20, 1e25])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("k", [1, 3])
def test_extreme_weights_are_right_or_refused(factor: float, solver: str, k: int) -> None:
    """Their squares under- or overflow in single precision."""
    (case,) = [c for c in CASES if c.name == "medium-dense"]
    layer = scaled(case.make(), factor)
    try:
        found = svds(layer, case.in_shape, k, solver=SOLVERS[solver])
    except (ValueError, OverflowError) as error:
        assert "float64" in str(error)
        return
    if found.converged:
        expected = np.linalg.svd(layer.weight.detach().double().numpy(), compute_uv=False)[:k]
        np.testing.assert_allclose(found.S.double().numpy(), expected, rtol=1e-3)


# --- Multiplicity, rank, zero -------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("size", [5, 30, 200])
def test_identity_has_ones_only(solver: str, size: int) -> None:
    k = min(size, 7)
    found = svds(nn.Identity(), (size,), k, solver=SOLVERS[solver])
    assert_triplets(found, np.eye(size), k, 1e-6)


@pytest.mark.parametrize("solver", [*SOLVERS, "power-qr"])
@pytest.mark.parametrize(
    ("layer", "in_shape"),
    [
        (with_weight(nn.Linear(6, 9), torch.zeros(9, 6)), (6,)),
        (with_weight(nn.Linear(9, 6), torch.zeros(6, 9)), (9,)),
        (with_weight(nn.Linear(120, 90).double(), torch.zeros(90, 120)), (120,)),
        (with_weight(nn.Conv2d(3, 4, 3, padding=1), torch.zeros(4, 3, 3, 3)), (3, 8, 8)),
        (lambda x: x * 0 + 1, (100,)),
    ],
    ids=["tall", "wide", "wide-float64", "conv", "callable"],
)
def test_zero_operator(layer: Any, in_shape: tuple[int, ...], solver: str) -> None:
    chosen = PowerQR(iterations=5) if solver == "power-qr" else SOLVERS[solver]
    for k in (1, 3):
        found = svds(layer, in_shape, k, solver=chosen)
        if solver == "power-qr":
            # As printed, it takes the root of a difference that is rounding of the shift.
            assert float(found.S.max()) <= 2e-3
        else:
            assert not found.S.any()
            assert not found.residuals.any()
            assert found.converged
        for vectors in (flat(found.U), flat(found.V)):
            np.testing.assert_allclose(vectors @ vectors.T, np.eye(k), atol=1e-5)
    assert float(sc.spectral_norm(layer, in_shape)) == 0
    assert not sc.singular_values(layer, in_shape).any()


# --- Structured layers of a real size -----------------------------------------------------


def test_against_arpack_on_a_convolution_of_a_real_size() -> None:
    with seeded(0):
        conv = nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect", bias=False)
    shape, size = (1, 64, 16, 16), 64 * 16 * 16

    def forward(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return conv(torch.from_numpy(x).float().reshape(shape)).numpy().ravel()

    def backward(y: np.ndarray) -> np.ndarray:
        x = torch.zeros(shape, requires_grad=True)
        (gradient,) = torch.autograd.grad(conv(x), x, torch.from_numpy(y).float().reshape(shape))
        return gradient.numpy().ravel()

    peer = scipy.sparse.linalg.LinearOperator(
        (size, size), matvec=forward, rmatvec=backward, dtype=np.float32
    )
    start = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    expected = scipy.sparse.linalg.svds(peer, 4, tol=1e-4, v0=start, return_singular_vectors=False)
    expected = np.sort(expected)[::-1]
    for k in (1, 4):
        found = svds(conv, shape[1:], k)
        assert found.converged
        assert_values(found.S, expected[:k], 1e-3)
        for s, u, v, residual in zip(found.S, found.U, found.V, found.residuals, strict=True):
            both = np.hypot(
                np.linalg.norm(forward(v.numpy()) - float(s) * flat(u[None])[0]),
                np.linalg.norm(backward(u.numpy()) - float(s) * flat(v[None])[0]),
            )
            assert float(residual) == pytest.approx(both, rel=0.05, abs=1e-4)
    assert found.num_matvecs < 600


# --- Reproducible -------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["auto", "lanczos", "power-qr"])
@pytest.mark.parametrize("k", [1, 4])
@UNCONVERGED
def test_same_seed_same_result(solver: str, k: int) -> None:
    (case,) = [c for c in CASES if c.name == "medium-conv-bn"]
    chosen = {"auto": "auto", "lanczos": Lanczos(), "power-qr": PowerQR(iterations=10)}[solver]
    results = []
    for seed in (0, 1):
        with seeded(seed):
            results.append(svds(case.make(), case.in_shape, k, solver=chosen))
    for seed in (5, 5, 6):
        generator = torch.Generator().manual_seed(seed)
        results.append(svds(case.make(), case.in_shape, k, solver=chosen, generator=generator))
    for name in ("S", "U", "V", "residuals"):
        for one, other in ((0, 1), (2, 3)):
            assert torch.equal(getattr(results[one], name), getattr(results[other], name))
        assert not torch.equal(results[3].V, results[4].V)
    assert results[0].num_matvecs == results[1].num_matvecs


# --- What it costs ------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["auto", "lanczos", "power-qr", "exact"])
@pytest.mark.parametrize("start", [False, True], ids=["cold", "v0"])
@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize(
    "case",
    params(
        [c for c in CASES if c.name in ("medium-conv", "medium-conv-bn", "transposed2d-groups")]
    ),
)
@UNCONVERGED
def test_applications_are_the_vectors_sent_through(
    case: Case, k: int, start: bool, solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = [0]

    def counting(name: str, cost: int) -> None:
        original = getattr(LinearOperator, name)

        def wrapped(self: LinearOperator, rows: Tensor) -> Tensor:
            counted[0] += cost * rows.shape[0]
            return original(self, rows)

        monkeypatch.setattr(LinearOperator, name, wrapped)

    for name, cost in (("forward_rows", 1), ("adjoint_rows", 1), ("gram_rows", 2)):
        counting(name, cost)
    chosen: Any = {**SOLVERS, "power-qr": PowerQR(iterations=4)}[solver]
    v0 = torch.ones(2, *case.in_shape).cumsum(-1).sin() if start else None
    if v0 is not None:
        v0[1] = v0[1].flip(-1)
    found = svds(case.make(), case.in_shape, k, solver=chosen, v0=v0)
    assert found.num_matvecs == counted[0]


def test_unconverged_norm_warns() -> None:
    """A matrix whose leading values no budget can tell apart to this tolerance."""
    with seeded(0):
        layer = nn.Linear(2500, 2500, bias=False).double()
    op = sc.as_operator([layer, nn.AvgPool1d(1)], (1, 2500))
    few = Lanczos(max_matvecs=30)
    with pytest.warns(sc.ConvergenceWarning, match="Linear.*tol") as warned:
        found = svds(op, (1, 2500), 1, tol=1e-14, solver=few)
    assert not found.converged and warned[0].filename == __file__
    with pytest.MonkeyPatch.context() as patch:
        module = sys.modules["spectralclip._spectrum.svds"]
        patch.setattr(module, "_choose", lambda op, k: few)
        with pytest.warns(sc.ConvergenceWarning, match="Linear.*tol") as warned:
            sc.spectral_norm(op, (1, 2500), tol=1e-14)
    assert warned[0].filename == __file__
    with pytest.warns(sc.ConvergenceWarning, match="power_iterations") as warned:
        sc.methods.virmaux_svds(layer, (2500,), 1, power_iterations=2)
    assert warned[0].filename == __file__


# --- Starts -------------------------------------------------------------------------------


def test_operator_and_layer_give_the_same() -> None:
    (case,) = [c for c in CASES if c.name == "medium-conv-bn"]
    op = sc.as_operator(case.make(), case.in_shape)
    for solver in SOLVERS.values():
        one = svds(op, case.in_shape, 3, solver=solver)
        other = svds(case.make(), case.in_shape, 3, solver=solver)
        assert torch.equal(one.S, other.S)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("case", params(MEDIUM))
def test_adjoint_has_the_same_values(case: Case, solver: str) -> None:
    adjoint = sc.as_operator(case.make(), case.in_shape).adjoint()
    found = svds(adjoint, adjoint.in_shape, 3, solver=SOLVERS[solver])
    assert_shapes(found, adjoint)
    assert_triplets(found, dense(case).T, 3, 1e-3)
