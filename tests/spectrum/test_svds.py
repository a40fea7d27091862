"""Singular triplets against NumPy's dense SVD in float64, and against ARPACK."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from cases import (
    CASES,
    HALF_CASES,
    Case,
    LowRank,
    Residual,
    TiedPair,
    dense,
    dense_singular_values,
    linear_with_values,
    params,
    smaller_side,
    train_batch_norm,
    with_weight,
)
from seeds import seeded
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import spectralclip as sc
from oracle import dense_matrix, dense_norm, singular_values, symbol_values
from spectralclip import Exact, Lanczos, LinearOperator, PowerQR, Spectrum, svds
from spectralclip._linalg.krylov import rows_lq

# These tests ask for more than the solver can give.
UNCONVERGED = pytest.mark.filterwarnings("ignore::spectralclip.ConvergenceWarning")

SOLVERS: dict[str, Any] = {"auto": "auto", "lanczos": Lanczos(), "exact": Exact()}


def flat(vectors: Tensor) -> np.ndarray:
    return vectors.double().reshape(vectors.shape[0], -1).numpy()


def assert_values(got: Tensor, expected: np.ndarray, tol: float) -> None:
    """Each value to the tolerance; those far below the largest, to that of the largest."""
    scale = expected[0] if len(expected) else 0.0
    allowed = tol * np.where(expected > 0.1 * scale, expected, scale) + 1e-30
    np.testing.assert_array_less(np.abs(got.double().numpy() - expected), allowed + 1e-30)


def assert_triplets(found: Spectrum, matrix: np.ndarray, k: int, tol: float) -> None:
    """All that a `Spectrum` promises, with nothing taken from the library's own numbers."""
    largest = float(np.linalg.norm(matrix, 2))
    expected = np.linalg.svd(matrix, compute_uv=False)[:k]
    rounding = 1e-12 if found.S.dtype == torch.float64 else 1e-5
    assert found.converged is True
    assert found.advice == ""
    assert found.S.shape == found.residuals.shape == (k,)
    assert (found.S[1:] <= found.S[:-1]).all()
    assert (found.S >= 0).all()
    S, U, V = found.S.double().numpy(), flat(found.U), flat(found.V)
    assert_values(found.S, expected, tol)
    # Ritz values never exceed the singular values that they stand for.
    assert (expected + rounding * largest >= S).all()
    np.testing.assert_allclose(U @ U.T, np.eye(k), atol=10 * rounding)
    np.testing.assert_allclose(V @ V.T, np.eye(k), atol=10 * rounding)
    forward = np.linalg.norm(matrix @ V.T - U.T * S, axis=0)
    backward = np.linalg.norm(matrix.T @ U.T - V.T * S, axis=0)
    reported = found.residuals.double().numpy()
    np.testing.assert_allclose(
        reported, np.hypot(forward, backward), rtol=0.05, atol=10 * rounding * largest
    )
    # One side holds by construction.
    assert (np.minimum(forward, backward) <= 5 * rounding * largest).all()


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


@pytest.mark.parametrize("tol", [1e-1, 1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize(
    "case", params([c for c in CASES if c.name in ("medium-dense", "medium-conv", "smoothing")])
)
def test_tolerance_is_kept(case: Case, tol: float) -> None:
    layer = case.make()
    found = [svds(layer.double(), case.in_shape, k, tol=tol, solver=Lanczos()) for k in (1, 6)]
    for spectrum, k in zip(found, (1, 6), strict=True):
        assert spectrum.converged
        assert_values(spectrum.S, dense_singular_values(case)[:k], tol)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "case", params([c for c in CASES if c.name in ("medium-dense", "medium-conv", "smoothing")])
)
def test_any_start_will_do(case: Case, seed: int) -> None:
    for k in (1, 3):
        generator = torch.Generator().manual_seed(seed)
        found = svds(case.make(), case.in_shape, k, solver=Lanczos(), generator=generator)
        assert_triplets(found, dense(case), k, 1e-3)


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
def test_repeated_values_are_counted_as_often_as_they_occur(solver: str) -> None:
    with seeded(0):
        values = [3.0] * 5 + [2.0] * 10 + [1.0 / (1 + i) for i in range(60)]
        layer = linear_with_values(values, 120, 100).float()
    found = svds(layer, (100,), 8, solver=SOLVERS[solver])
    assert_values(found.S, np.array([3.0] * 5 + [2.0] * 3), 1e-3)
    assert_triplets(found, layer.weight.detach().double().numpy(), 8, 1e-3)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect"])
def test_identical_channels_repeat_every_value(solver: str, mode: str) -> None:
    with seeded(1):
        layer = nn.Conv2d(4, 4, 3, padding=1, groups=4, padding_mode=mode)
        with_weight(layer, layer.weight[:1].expand(4, 1, 3, 3).clone())
    matrix = dense_matrix(layer.double(), (4, 6, 6))
    found = svds(layer.float(), (4, 6, 6), 8, solver=SOLVERS[solver])
    assert_triplets(found, matrix, 8, 1e-3)
    np.testing.assert_allclose(found.S[:4].numpy(), float(found.S[0]), rtol=1e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("k", [1, 3])
def test_convergence_is_not_claimed_too_soon(k: int) -> None:
    """Values that lie close together hide behind one another for the first few iterations."""
    wrong = []
    for seed in range(60):
        torch.manual_seed(seed)
        layer = nn.Conv2d(4, 4, 3, padding=1)
        found = svds(layer, (4, 8, 8), k, solver=Lanczos())
        expected = singular_values(layer.double(), (4, 8, 8))[:k]
        error = np.abs(found.S.double().numpy() / expected - 1).max()
        if found.converged and error > 1e-3:
            wrong.append((seed, float(error)))
    assert not wrong


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


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_values_beyond_the_rank_are_zero(solver: str, rank: int) -> None:
    with seeded(rank):
        layer = linear_with_values([float(rank - i) for i in range(rank)], 90, 110).float()
    found = svds(layer, (110,), 6, solver=SOLVERS[solver])
    assert_triplets(found, layer.weight.detach().double().numpy(), 6, 1e-3)
    assert float(found.S[rank:].max()) <= 1e-4 * rank


# --- Structured layers of a real size -----------------------------------------------------


def test_large_circular_convolution_against_fourier() -> None:
    conv = nn.Conv2d(8, 12, 5, padding=2, padding_mode="circular")
    expected = symbol_values(conv, (30, 26))
    values = sc.singular_values(conv, (8, 30, 26))
    np.testing.assert_allclose(values.numpy(), expected, rtol=0, atol=1e-5 * expected[0])
    for solver in ("auto", Lanczos(), Exact()):
        found = svds(conv, (8, 30, 26), 5, solver=solver)
        assert_values(found.S, expected[:5], 1e-3)
        assert found.converged


def test_large_1x1_convolution_is_its_matrix_many_times() -> None:
    conv = nn.Conv2d(40, 30, 1)
    matrix = conv.weight.detach().double().numpy()[:, :, 0, 0]
    expected = np.repeat(np.linalg.svd(matrix, compute_uv=False), 400)
    values = sc.singular_values(conv, (40, 20, 20))
    np.testing.assert_allclose(values.numpy(), expected, atol=1e-5 * expected[0])
    for solver in ("auto", Lanczos(), Exact()):
        found = svds(conv, (40, 20, 20), 3, solver=solver)
        assert_values(found.S, expected[:3], 1e-3)
        rows = flat(found.V)
        np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-5)


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


@UNCONVERGED
def test_budget_is_kept_and_its_end_is_told() -> None:
    (case,) = [c for c in CASES if c.name == "medium-conv"]
    for k in (1, 4):
        for budget in (20, 40):
            solver = Lanczos(max_matvecs=budget)
            found = svds(case.make().double(), case.in_shape, k, tol=1e-14, solver=solver)
            assert found.converged is False
            assert "Lanczos" in found.advice
            assert "tol" in found.advice
            assert "NOT converged" in repr(found)
            # The last step may be under way when the budget ends.
            assert found.num_matvecs <= budget + 4 * (k + 3)
            expected = dense_singular_values(case)[:k]
            assert torch.isfinite(found.S).all()
            assert (found.S.double().numpy() <= expected * (1 + 1e-5)).all()
            rows = flat(found.V)
            np.testing.assert_allclose(rows @ rows.T, np.eye(k), atol=1e-4)


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


def test_a_spectrum_unpacks_as_u_s_v() -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1)
    found = svds(layer, (2, 6, 6), 3)
    U, S, V = found
    assert U is found.U and S is found.S and V is found.V
    images = sc.as_operator(layer, (2, 6, 6)).matvec(V)
    torch.testing.assert_close(images, S[:, None, None, None] * U, rtol=0, atol=1e-3)


def test_a_spectrum_from_right_vectors() -> None:
    layer = linear_with_values([3.0, 2.0, 1.0, 0.5], 5, 4).double()
    op = sc.as_operator(layer, (4,))
    true = svds(layer, (4,), 2)
    mixed = torch.tensor([[2.0, 1.0], [1.0, 3.0]]).double() @ true.V  # neither unit nor orthogonal
    found = sc.Spectrum.from_right_vectors(op, mixed, tol=1e-6, num_matvecs=7)
    assert found.converged and found.num_matvecs == 7 + 4
    torch.testing.assert_close(found.S, torch.tensor([3.0, 2.0]).double())
    rough = sc.Spectrum.from_right_vectors(op, torch.eye(4).double()[:2], tol=1e-6)
    assert not rough.converged and "tol=1e-06" in rough.advice
    assert bool((rough.S <= true.S).all())


def test_converged_result_is_short_in_print() -> None:
    found = svds(nn.Linear(9, 8), (9,), 8)
    assert "converged" in repr(found)
    assert "NOT" not in repr(found)
    assert repr(found).count(",") <= 8


# --- Starts -------------------------------------------------------------------------------

MEDIUM = [c for c in CASES if c.name in ("medium-conv", "medium-dense", "medium-conv-bn")]


@pytest.mark.parametrize("case", params(MEDIUM))
def test_warm_start_is_cheaper_and_as_good(case: Case) -> None:
    for k in (1, 4):
        cold = svds(case.make(), case.in_shape, k, solver=Lanczos())
        warm = svds(case.make(), case.in_shape, k, solver=Lanczos(), v0=cold.V)
        assert warm.num_matvecs < cold.num_matvecs
        assert_triplets(warm, dense(case), k, 1e-3)


@pytest.mark.parametrize("case", params(MEDIUM))
def test_start_that_misses_the_leading_vectors(case: Case) -> None:
    _, _, right = np.linalg.svd(dense(case))
    last = torch.from_numpy(right[20:24].copy()).reshape(4, *case.in_shape)
    for k in (1, 3):
        for v0 in (last, last[0]):
            found = svds(case.make(), case.in_shape, k, solver=Lanczos(), v0=v0)
            assert_triplets(found, dense(case), k, 1e-3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("solver", ["auto", "lanczos", "exact"])
@pytest.mark.parametrize("case", params(MEDIUM))
def test_odd_starts(case: Case, solver: str) -> None:
    ones = torch.ones(case.in_shape)
    for v0 in (
        torch.zeros(case.in_shape),
        torch.stack([ones] * 5),
        torch.stack([ones, 2 * ones, torch.zeros_like(ones)]),
        1e-20 * ones,
        ones.double(),
        torch.randn(12, *case.in_shape, generator=torch.Generator().manual_seed(3)),
    ):
        found = svds(case.make(), case.in_shape, 3, solver=SOLVERS[solver], v0=v0)
        assert_triplets(found, dense(case), 3, 1e-3)


@UNCONVERGED
def test_start_is_not_changed() -> None:
    (case,) = [c for c in CASES if c.name == "medium-conv"]
    v0 = torch.randn(3, *case.in_shape, generator=torch.Generator().manual_seed(1))
    kept = v0.clone()
    for solver in (Lanczos(), PowerQR(iterations=3), Exact(), "auto"):
        svds(case.make(), case.in_shape, 3, solver=solver, v0=v0)
        assert torch.equal(v0, kept)


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


# --- The paper's method -------------------------------------------------------------------


def shifted_subspace_iteration(
    matrix: np.ndarray, start: np.ndarray, iterations: int, shift: float
) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 1 on the dense matrix: QR of `(A + mu I) X`, `S = sqrt(|diag R| - mu)`."""
    gram = matrix.T @ matrix + shift * np.eye(matrix.shape[1])
    X = start
    for _ in range(iterations):
        X, R = np.linalg.qr(gram @ X)
    return np.sqrt(np.maximum(np.abs(np.diag(R)) - shift, 0)), X


@pytest.mark.parametrize("shift", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("iterations", [1, 2, 8])
@pytest.mark.parametrize(
    "case",
    params(
        [
            c
            for c in CASES
            if c.name in ("conv2d-float64", "conv2d-reflect-float64", "linear-float64")
        ]
    ),
)
@UNCONVERGED
def test_power_qr_is_the_dense_iteration(case: Case, iterations: int, shift: float) -> None:
    matrix, k = dense(case), 4
    random = np.random.default_rng(7).standard_normal((matrix.shape[1], k))
    start, _ = np.linalg.qr(random)
    expected, right = shifted_subspace_iteration(matrix, start, iterations, shift)
    found = svds(
        case.make(),
        case.in_shape,
        k,
        solver=PowerQR(iterations=iterations, shift=shift),
        v0=torch.from_numpy(start.T.copy()).reshape(k, *case.in_shape),
    )
    order = np.argsort(-expected)
    np.testing.assert_allclose(found.S.numpy(), expected[order], rtol=1e-10)
    overlap = np.abs(np.sum(flat(found.V) * right.T[order], axis=1))
    np.testing.assert_allclose(overlap, 1, rtol=1e-10)


@pytest.mark.parametrize("shift", [0.0, 1.0, 5.0])
def test_power_qr_reaches_the_values(shift: float) -> None:
    (case,) = [c for c in CASES if c.name == "separated"]
    solver = PowerQR(iterations=400, shift=shift)
    found = svds(case.make(), case.in_shape, 3, solver=solver)
    assert_triplets(found, dense(case), 3, 1e-3)


@UNCONVERGED
def test_power_qr_goes_on_from_a_warm_start() -> None:
    (case,) = [c for c in CASES if c.name == "separated"]
    layer = case.make().double()
    results = []
    for first, second in ((6, 4), (3, 7)):
        begun = svds(layer, case.in_shape, 3, solver=PowerQR(iterations=first))
        results.append(svds(layer, case.in_shape, 3, solver=PowerQR(iterations=second), v0=begun.V))
    whole = svds(layer, case.in_shape, 3, solver=PowerQR(iterations=10))
    for result in results:
        np.testing.assert_allclose(result.S.numpy(), whole.S.numpy(), rtol=1e-10)
    assert float(begun.S[0]) != pytest.approx(float(whole.S[0]), rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("condition", [1.0, 10.0, 1e3, 1e6, np.inf])
def test_rows_are_factored_however_close_to_dependent(
    condition: float, dtype: torch.dtype, generator: torch.Generator
) -> None:
    left = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=generator)).Q
    right = torch.linalg.qr(torch.randn(40, 6, dtype=torch.float64, generator=generator)).Q
    values = torch.logspace(0, -np.log10(min(condition, 1e6)), 6, dtype=torch.float64)
    values[-1] = 0.0 if condition == np.inf else values[-1]
    rows = (left * values @ right.T).to(dtype)
    L, Q = rows_lq(rows)
    identity = torch.eye(6, dtype=dtype)
    torch.testing.assert_close(Q @ Q.T, identity, rtol=0, atol=2e-4)
    torch.testing.assert_close(L @ Q, rows, rtol=0, atol=100 * torch.finfo(dtype).eps)
    assert torch.equal(L, L.tril())
    expected = np.abs(np.linalg.qr(rows.double().numpy().T, mode="r").diagonal())
    np.testing.assert_allclose(L.diagonal().abs().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_power_qr_finds_values_that_are_far_apart(shift: float) -> None:
    layer = nn.Linear(30, 20, bias=False).requires_grad_(False)
    U, V = (torch.linalg.qr(torch.randn(n, 20)).Q for n in (20, 30))
    values = torch.logspace(1, -1, 20)
    layer.weight.copy_(U * values @ V.T)
    found = svds(layer, (30,), 10, solver=PowerQR(iterations=100, shift=shift))
    torch.testing.assert_close(found.S, values[:10], rtol=2e-3, atol=0)
    torch.testing.assert_close(found.V @ found.V.T, torch.eye(10), rtol=0, atol=1e-4)


@UNCONVERGED
def test_power_qr_says_when_it_is_not_there_yet() -> None:
    (case,) = [c for c in CASES if c.name == "medium-conv"]
    found = svds(case.make(), case.in_shape, 4, solver=PowerQR(iterations=2))
    assert found.converged is False
    assert "PowerQR" in found.advice
    matrix, S = dense(case), found.S.double().numpy()
    U, V = flat(found.U).T, flat(found.V).T
    residuals = np.hypot(
        np.linalg.norm(matrix @ V - U * S, axis=0), np.linalg.norm(matrix.T @ U - V * S, axis=0)
    )
    np.testing.assert_allclose(found.residuals.numpy(), residuals, rtol=1e-3)
    assert residuals.max() > 1e-2 * S[0]


# --- The norm's gradient ------------------------------------------------------------------


def shared_twice() -> nn.Module:
    conv = nn.Conv2d(2, 2, 3, padding=1)
    return nn.Sequential(conv, nn.Conv2d(2, 2, 1), conv)


DIFFERENTIABLE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "conv": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 5, 5)),
    "conv-reflect-stride": (
        lambda: nn.Conv2d(2, 3, 3, padding=1, stride=2, padding_mode="reflect"),
        (2, 6, 5),
    ),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 4, 4)),
    "conv-bn": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), (2, 6, 6)),
    "bn-conv": (lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3)), (2, 6, 6)),
    "conv-conv": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 3)), (2, 7, 7)),
    "weight-norm": (lambda: parametrizations.weight_norm(nn.Linear(6, 5)), (6,)),
    "low-rank": (lambda: LowRank(7, 3, 6), (7,)),
    "residual": (lambda: Residual(nn.Conv2d(2, 2, 3, padding=1)), (2, 4, 4)),
    "tied": (lambda: TiedPair(), (6,)),
    "shared": (shared_twice, (2, 4, 4)),
    "embedding": (lambda: nn.Sequential(nn.Identity(), nn.Linear(5, 4, bias=False)), (5,)),
}


def differentiable(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    make, in_shape = DIFFERENTIABLE[name]
    with seeded(3):
        layer = make().double()
        for module in layer.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                train_batch_norm(module)
    return layer, in_shape


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_of_the_norm_is_that_of_the_dense_norm(name: str) -> None:
    """Finite differences of NumPy's norm of the dense matrix, along random directions."""
    layer, in_shape = differentiable(name)
    layer.eval()
    values = singular_values(layer, in_shape)
    assert values[1] < 0.999 * values[0]
    norm = sc.spectral_norm(layer, in_shape, tol=1e-12, differentiable=True)
    assert norm.shape == ()
    assert float(norm.detach()) == pytest.approx(values[0], rel=1e-10)
    parameters = dict(layer.named_parameters())
    gradients = torch.autograd.grad(
        norm, list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    generator = torch.Generator().manual_seed(0)
    step = 1e-5
    for (key, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        for _ in range(3):
            direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            norms = []
            original = parameter.detach().clone()
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.copy_(original + sign * step * direction)
                norms.append(dense_norm(layer, in_shape))
            with torch.no_grad():
                parameter.copy_(original)
            slope = (norms[0] - norms[1]) / (2 * step)
            got = float(torch.sum(gradient * direction))
            assert got == pytest.approx(slope, rel=1e-5, abs=1e-7), key


@pytest.mark.parametrize("name", ["linear", "conv", "conv-bn"])
def test_gradcheck(name: str) -> None:
    layer, in_shape = differentiable(name)

    class Norm(torch.autograd.Function):
        """The norm as a function of the weights, so that gradcheck can move them."""

        @staticmethod
        def forward(ctx: Any, *weights: Tensor) -> Tensor:
            moved = copy.deepcopy(layer)
            ctx.parameters = list(moved.parameters())
            with torch.no_grad():
                for parameter, weight in zip(ctx.parameters, weights, strict=True):
                    parameter.copy_(weight)
            with torch.enable_grad():
                ctx.norm = sc.spectral_norm(moved, in_shape, tol=1e-12, differentiable=True)
            return ctx.norm.detach()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(
                *(ctx.norm, ctx.parameters, gradient),
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )

    weights = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(Norm.apply, weights, atol=1e-6, rtol=1e-4)


def test_gradient_of_the_norm_of_a_dense_layer_is_u_times_v() -> None:
    layer, in_shape = differentiable("linear")
    sc.spectral_norm(layer, in_shape, tol=1e-12, differentiable=True).backward()
    left, _, right = np.linalg.svd(layer.weight.detach().numpy())
    np.testing.assert_allclose(layer.weight.grad, np.outer(left[:, 0], right[0]), atol=1e-10)


def test_penalty_brings_the_norm_down() -> None:
    layer, in_shape = differentiable("conv-bn")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    before = float(sc.spectral_norm(layer, in_shape))
    for _ in range(10):
        optimizer.zero_grad()
        (sc.spectral_norm(layer, in_shape, differentiable=True) ** 2).backward()
        optimizer.step()
    assert float(sc.spectral_norm(layer, in_shape)) < 0.9 * before


@pytest.mark.parametrize("case", params(CASES))
def test_differentiable_norm_is_the_norm(case: Case) -> None:
    layer = case.make()
    value = sc.spectral_norm(layer, case.in_shape, differentiable=True).detach()
    assert_values(value[None], dense_singular_values(case)[:1], 1e-3)
