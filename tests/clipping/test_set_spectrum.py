"""`set_spectrum_` is the orthogonal projection onto the layer's form, or refuses."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from cases import (
    HALF_CASES,
    Case,
    LowRank,
    Residual,
    TiedPair,
    double,
    own_parameters,
    params,
    reference,
)
from clip_cases import named, probe
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from untouched import assert_same, disturb, equal, state, surroundings

import spectralclip as sc
from oracle import dense_matrix
from spectralclip._clipping.set_spectrum import set_spectrum_


def dense_change(layer: Any, in_shape: tuple[int, ...], name: str) -> np.ndarray:
    """A as a matrix, entry by entry of the weight, for a layer in float64 and evaluation."""
    twin = copy.deepcopy(layer)
    weight = own_parameters(twin)[name]
    columns = []
    with torch.no_grad():
        weight.zero_()
        origin = dense_matrix(twin, in_shape)
        for index in range(weight.numel()):
            entry = np.unravel_index(index, weight.shape)
            weight[entry] = 1.0
            columns.append((dense_matrix(twin, in_shape) - origin).ravel())
            weight[entry] = 0.0
    return np.stack(columns, 1)


def wished_change(spectrum: sc.Spectrum, new_values: Tensor) -> np.ndarray:
    U, V = (t.double().flatten(1).numpy() for t in (spectrum.U, spectrum.V))
    return (U.T * (new_values.double() - spectrum.S.double()).numpy()) @ V


# --- The projection, against dense least squares -------------------------------------------

# For each case, the parameter that is to move.
PROJECTED = {
    "linear-wide": "0.weight",
    "linear-leading": "0.weight",
    "linear-two-leading": "0.weight",
    "linear-float64": "0.weight",
    "embedding": "0.weight",
    "embedding-sequence": "0.weight",
    "embedding-padding-idx": "0.weight",
    "embedding-bag-mean": "0.weight",
    "embedding-bag-padding-idx": "0.weight",
    "conv1d-stride": "0.weight",
    "conv1d-dilation": "0.weight",
    "conv1d-groups": "0.weight",
    "conv1d-reflect": "0.weight",
    "conv1d-replicate-stride": "0.weight",
    "conv1d-causal-subclass": "0.weight",
    "conv2d-no-bias": "0.weight",
    "conv2d-rectangular-kernel": "0.weight",
    "conv2d-same-dilated": "0.weight",
    "conv2d-even-same-circular": "0.weight",
    "conv2d-stride-left-over": "0.weight",
    "conv2d-stride-dilation": "0.weight",
    "conv2d-groups": "0.weight",
    "conv2d-depthwise-multiplier": "0.weight",
    "conv2d-circular": "0.weight",
    "conv2d-circular-full-axis": "0.weight",
    "conv2d-circular-under-padded": "0.weight",
    "conv2d-reflect-stride": "0.weight",
    "conv2d-replicate": "0.weight",
    "conv2d-over-padded": "0.weight",
    "conv2d-1x1-padded": "0.weight",
    "conv2d-1x1-groups": "0.weight",
    "conv2d-on-one-pixel": "0.weight",
    "conv2d-subclass": "0.weight",
    "conv2d-hooked": "0.weight",
    "conv2d-channels-last": "0.weight",
    "conv2d-large-weight": "0.weight",
    "conv2d-small-weight": "0.weight",
    "conv3d": "0.weight",
    "conv3d-replicate": "0.weight",
    "transposed1d": "0.weight",
    "transposed2d-output-padding": "0.weight",
    "transposed2d-groups": "0.weight",
    "transposed2d-dilation-over-stride": "0.weight",
    "transposed2d-output-padding-over-stride": "0.weight",
    "transposed3d": "0.weight",
    "batch-norm1d": "0.weight",
    "batch-norm1d-sequence": "0.weight",
    "batch-norm2d-eps": "0.weight",
    "lazy-conv2d": "0.weight",
    "conv-bn": "0.weight",
    "conv-bn-groups": "0.weight",
    "bn-conv": "1.weight",
    "bn-conv-groups": "1.weight",
    "bn-conv-bn": "1.weight",
    "conv-reflect-bn": "0.weight",
    "conv1d-bn": "0.weight",
    "transposed-bn": "0.weight",
    "bn-transposed": "1.weight",
    "linear-bn": "0.weight",
    "bn-linear": "1.weight",
    "linear-leading-bn": "0.weight",
    "bn-linear-leading": "1.weight",
    "conv-identity-dropout-bn": "0.weight",
    "conv-flatten-bn": "0.weight",
    "bn-conv-flatten": "1.weight",
    "pool-conv": "1.weight",
    "upsample-conv": "1.weight",
    "conv-pixel-shuffle": "0.weight",
    "zero-pad-conv": "1.weight",
    "reflection-pad-conv": "1.weight",
    "residual": "0.branch.weight",
    "residual-bn-in-sequence": "0.branch.0.weight",
    "callable-then-linear": "1.weight",
    "dropout-linear": "0.1.weight",
    "partly-frozen": "0.0.weight",
    "zero-conv2d": "0.weight",
    "dead-input-channel": "0.weight",
    "rank-two-float64": "0.weight",
}

CLOSED = {name for name in PROJECTED if name.startswith(("conv", "linear", "transposed", "bn"))} - {
    *("conv1d-causal-subclass", "conv2d-subclass", "conv2d-hooked", "conv-pixel-shuffle"),
    *("transposed2d-output-padding-over-stride", "transposed2d-dilation-over-stride"),
    *("linear-leading-bn", "bn-linear-leading", "conv-flatten-bn"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", params(named(*PROJECTED)))
def test_projection_solves_the_least_squares_problem(
    case: Case, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.name in CLOSED:
        probe(monkeypatch, most_inputs=0)  # the closed form is used
    layer, name = reference(case), PROJECTED[case.name]
    k = min(5, *np.shape(dense_matrix(layer, case.in_shape)))
    spectrum = sc.svds(layer, case.in_shape, k, solver=sc.Exact())
    scale = float(spectrum.S[0]) or 1.0
    wish = scale * torch.rand(k, generator=generator, dtype=torch.float64)
    E = wished_change(spectrum, wish)
    A = dense_change(layer, case.in_shape, name)
    before = {key: value.detach().clone() for key, value in own_parameters(layer).items()}
    matrix = dense_matrix(layer, case.in_shape)

    unmet = set_spectrum_(layer, case.in_shape, spectrum, wish)

    after = own_parameters(layer)
    best, *_ = np.linalg.lstsq(A, E.ravel(), rcond=1e-11)
    moved = (after[name] - before[name]).detach().numpy().ravel()
    np.testing.assert_allclose(moved, best, rtol=0, atol=1e-8 * max(1e-30, np.abs(best).max()))
    defect = dense_matrix(layer, case.in_shape) - matrix - E
    assert np.abs(A.T @ defect.ravel()).max() <= 1e-8 * np.linalg.norm(A) * np.linalg.norm(E)
    assert unmet == pytest.approx(np.linalg.norm(defect) / np.linalg.norm(E), abs=1e-6)
    assert all(torch.equal(before[key], after[key]) for key in before if key != name)


# --- What layers can and cannot reach --------------------------------------------------------


@pytest.mark.parametrize("values", [[3.0, 2.0, 1.0], [0.1, 5.0, 2.0], [0.0, 0.0, 0.0]])
def test_dense_layer_reaches_any_spectrum(values: list[float]) -> None:
    layer = nn.Linear(8, 3)
    unmet = set_spectrum_(layer, (8,), sc.svds(layer, (8,), 3), torch.tensor(values))
    assert unmet < 1e-6
    found = np.linalg.svd(layer.weight.detach().double().numpy(), compute_uv=False)
    np.testing.assert_allclose(found, sorted(values, reverse=True), atol=1e-6)


def test_values_that_are_not_named_stay() -> None:
    layer = nn.Linear(9, 6).double()
    before = sc.singular_values(layer, (9,))
    assert set_spectrum_(layer, (9,), sc.svds(layer, (9,), 2), before[:2] / 100) < 1e-7
    expected = torch.cat([before[2:], before[:2] / 100])
    torch.testing.assert_close(sc.singular_values(layer, (9,)), expected, rtol=1e-9, atol=1e-12)


def test_1x1_convolution_has_only_equal_values() -> None:
    """The paper's example: a 1x1 kernel scales all pixels alike, and so do its singular values."""
    n, value = 4, 2.0
    layer = nn.Conv2d(1, 1, 1, bias=False)

    def asked(wish: list[float]) -> float:
        with torch.no_grad():
            layer.weight.fill_(value)
        spectrum = sc.svds(layer, (1, n, n), n * n)
        torch.testing.assert_close(spectrum.S, torch.full((n * n,), value))
        return set_spectrum_(layer, (1, n, n), spectrum, torch.tensor(wish))

    assert asked([0.5] * n * n) < 1e-6
    assert layer.weight.item() == pytest.approx(0.5, rel=1e-5)  # `svds` rounds values down
    # One of n^2 values: 1/n^2 of the change is reached, and the rest is not.
    assert asked([0.0] + [value] * (n * n - 1)) == pytest.approx(np.sqrt(1 - 1 / n**2), rel=1e-6)
    assert layer.weight.item() == pytest.approx(value - value / n**2)


def test_batch_norm_reaches_what_is_the_same_within_a_channel() -> None:
    layer = reference(named("batch-norm1d")[0])
    assert set_spectrum_(layer, (9,), sc.svds(layer, (9,), 9), lambda S: S.clamp(max=0.3)) < 1e-7
    assert sc.singular_values(layer, (9,)).max() == pytest.approx(0.3)


def test_nothing_asked_changes_nothing() -> None:
    layer = nn.Conv2d(2, 3, 3)
    before = state(layer)
    assert set_spectrum_(layer, (2, 5, 5), sc.svds(layer, (2, 5, 5), 3), lambda S: S) == 0.0
    assert_same(before, state(layer))


@pytest.mark.parametrize("case", params(HALF_CASES[:8]))
def test_half_precision_reports_its_rounding(case: Case) -> None:
    layer = case.make()
    spectrum = sc.svds(layer, case.in_shape, 3, tol=1e-6)
    before = dense_matrix(double(layer), case.in_shape)
    wish = spectrum.S * torch.tensor([0.5, 0.9, 1.5])
    unmet = set_spectrum_(layer, case.in_shape, spectrum, wish)
    assert {p.dtype for p in own_parameters(layer).values()} <= {torch.bfloat16, torch.float16}
    E = wished_change(spectrum, wish)
    defect = dense_matrix(double(layer), case.in_shape) - before - E
    assert unmet == pytest.approx(np.linalg.norm(defect) / np.linalg.norm(E), rel=1e-5)


def test_other_sizes_of_the_same_change_leave_the_same_part_unmet() -> None:
    """Squares of such numbers leave the range of the type."""
    results = []
    for size in (1e-170, 1.0, 1e160):
        layer = reference(named("conv2d-no-bias")[0])
        with torch.no_grad():
            layer.weight.mul_(size)
        spectrum = sc.svds(layer, (2, 6, 6), 2, solver=sc.Exact())
        results.append(set_spectrum_(layer, (2, 6, 6), spectrum, lambda S: S / 2))
    assert results == pytest.approx([results[1]] * 3, rel=1e-6)


def test_layer_with_a_constant_in_its_own_precision() -> None:
    """It cannot be evaluated in float64; then its own precision has to do."""
    constant = torch.randn(5, 5)
    layer = [nn.Linear(6, 5), lambda x: x @ constant]
    twin = [double(layer[0]), lambda x: x @ constant.double()]
    before = dense_matrix(twin, (6,))
    spectrum = sc.svds(layer, (6,), 2, tol=1e-6)
    unmet = set_spectrum_(layer, (6,), spectrum, spectrum.S / 2)
    assert unmet < 1e-2
    after = dense_matrix([double(layer[0]), twin[1]], (6,))
    wished = wished_change(spectrum, spectrum.S / 2)
    np.testing.assert_allclose(after - before, wished, rtol=0, atol=1e-4)


# --- Rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    params(
        named(
            *("linear-wide", "conv-bn", "mixed-modes", "batch-norm2d", "embedding-max-norm"),
            *("partly-frozen", "conv2d-channels-last", "residual", "conv-bn-bfloat16"),
            *("weight-norm", "spectral-norm", "old-spectral-norm", "shared-module-twice"),
        )
    ),
)
def test_only_the_content_of_one_weight_changes(case: Case) -> None:
    layer = case.make()
    disturb(layer)
    spectrum = sc.svds(layer, case.in_shape, 2)
    before, outside = state(layer), surroundings()
    try:
        set_spectrum_(layer, case.in_shape, spectrum, lambda S: S / 2)
        changes = 1
    except ValueError:
        changes = 0
    assert_same(outside, surroundings())
    after = state(layer)
    assert list(before) == list(after)
    changed = [key for key in before if not equal(before[key], after[key])]
    assert len(changed) == changes
    for key in changed:
        # Same tensor, same place, written into once.
        identity, place, version, *_ = before[key]
        assert after[key][:3] == (identity, place, version + 1)
        assert after[key][3:-1] == before[key][3:-1]


def replaced(spectrum: sc.Spectrum, **fields: Any) -> sc.Spectrum:
    return dataclasses.replace(spectrum, **fields)


BAD: dict[str, tuple[Any, Any, str]] = {
    "too few values": (lambda s: s, torch.ones(2), "one entry for each of the 3"),
    "too many values": (lambda s: s, torch.ones(4), "one entry for each of the 3"),
    "a column": (lambda s: s, torch.ones(3, 1), "one entry for each of the 3"),
    "a number": (lambda s: s, 1.0, "one entry for each of the 3"),
    "from a function": (lambda s: s, lambda S: S[:2], "one entry for each of the 3"),
    "negative": (lambda s: s, torch.tensor([1.0, -0.1, 0.5]), "none negative"),
    "nan": (lambda s: s, torch.tensor([1.0, float("nan"), 0.5]), "finite real"),
    "infinite": (lambda s: s, torch.tensor([float("inf"), 1.0, 0.5]), "finite real"),
    "complex": (lambda s: s, torch.ones(3, dtype=torch.complex64), "finite real"),
    "overflow": (lambda s: s, torch.tensor([1e300, 1.0, 1.0], dtype=torch.float64), "overflow"),
    "fewer vectors": (lambda s: replaced(s, V=s.V[:2]), torch.ones(3), "spectrum.V has shape"),
    "nan in vectors": (lambda s: replaced(s, U=s.U * torch.nan), torch.ones(3), "call svds again"),
    "stale": (lambda s: replaced(s, S=1.1 * s.S), torch.ones(3), "Call svds again"),
    "not a spectrum": (lambda s: s.S, torch.ones(3), "must be a Spectrum"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_refused_and_changes_nothing(bad: str) -> None:
    change, values, message = BAD[bad]
    layer = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    spectrum = change(sc.svds(layer, (2, 6, 6), 3))
    disturb(layer)
    before, outside = state(layer), surroundings()
    with pytest.raises((ValueError, TypeError), match=message):
        set_spectrum_(layer, (2, 6, 6), spectrum, values)
    assert_same(before, state(layer))
    assert_same(outside, surroundings())


def test_spectrum_of_another_layer_is_refused() -> None:
    layer, other = nn.Conv2d(2, 3, 3), nn.Conv2d(2, 3, 3)
    with pytest.raises(ValueError, match=r"expected \(2, 3, 4, 4\)"):
        set_spectrum_(layer, (2, 6, 6), sc.svds(layer, (2, 7, 7), 2), [1.0, 1.0])
    with pytest.raises(ValueError, match=r"not that of Conv2d.*as it is now"):
        set_spectrum_(layer, (2, 6, 6), sc.svds(other, (2, 6, 6), 2), [1.0, 1.0])


def test_rough_triplets_are_taken_as_they_are() -> None:
    """What says of itself that it has not converged still defines a wish."""
    layer = reference(named("conv2d-no-bias")[0])
    with pytest.warns(sc.ConvergenceWarning):
        spectrum = sc.svds(layer, (2, 6, 6), 2, solver=sc.PowerQR(iterations=2))
    assert not spectrum.converged
    before = dense_matrix(layer, (2, 6, 6))
    unmet = set_spectrum_(layer, (2, 6, 6), spectrum, spectrum.S / 2)
    E = wished_change(spectrum, spectrum.S / 2)
    defect = dense_matrix(layer, (2, 6, 6)) - before - E
    assert unmet == pytest.approx(np.linalg.norm(defect) / np.linalg.norm(E), abs=1e-7)


REFUSED: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(5, 4)), (5,), "original0"),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(5, 4)), (5,), "not affine"),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(5, 5)), (5,), "not affine"),
    "low rank": (lambda: LowRank(6, 2, 5), (6,), "'left', 'right'"),
    "tied": (TiedPair, (6,), "not affine"),
    "two layers": (lambda: [nn.Linear(5, 4), nn.Linear(4, 3)], (5,), "'0.weight', '1.weight'"),
    "two norms": (lambda: [nn.BatchNorm1d(4), nn.BatchNorm1d(4)], (4,), "'0.weight', '1.weight'"),
    "used twice": (lambda: [layer := nn.Linear(4, 4), layer], (4,), "not affine"),
    "norm used twice": (lambda: [norm := nn.BatchNorm1d(4), norm], (4,), "not affine"),
    "no parameters": (lambda: nn.AvgPool2d(2), (2, 4, 4), "no parameters"),
    "fixed norm": (lambda: nn.BatchNorm1d(4, affine=False), (4,), "no parameters"),
    "large": (
        lambda: Residual(nn.Conv2d(1, 1, 3, padding=1)),
        (1, 70, 70),
        "4900 inputs and no closed form",
    ),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_layers_without_one_weight_to_move_are_refused(refused: str) -> None:
    make, in_shape, message = REFUSED[refused]
    layer = make()
    spectrum = sc.svds(layer, in_shape, 1)
    disturb(layer)
    before, outside = state(layer), surroundings()
    with pytest.raises(ValueError, match=message):
        set_spectrum_(layer, in_shape, spectrum, spectrum.S / 2)
    assert_same(before, state(layer))
    assert_same(outside, surroundings())


class _InSinglePrecision(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, table)
        return x @ weight.T @ table.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, table = ctx.saved_tensors
        left = gradients[0] @ table.T  # fails unless the gradient is in single precision
        return left @ weight, left.T @ x, None


def test_a_backward_pass_of_one_precision_is_used_in_that() -> None:
    """The float64 attempt fails in the backward pass, where torch raises a RuntimeError."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 5))
            self.table = torch.eye(4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = _InSinglePrecision.apply(x, self.weight, self.table)
            return y

    torch.manual_seed(0)
    layer = Layer()
    spectrum = sc.svds(layer, (5,), 2)
    assert set_spectrum_(layer, (5,), spectrum, spectrum.S / 2) < 1e-3
