"""Upper bounds from a Lanczos run: they fail as rarely as they say, and are narrow."""

from __future__ import annotations

import math

import pytest
import torch
from bounds_cases import assert_holds
from cases import LowRank, linear_with_values
from torch import nn

import spectralclip as sc
from oracle import dense_matrix, dense_norm
from spectralclip._bounds import lanczos as _lanczos_bound
from spectralclip._bounds import norm_bounds
from spectralclip._bounds.lanczos import least_overlap, smallest_excluded
from spectralclip._linalg.krylov import LanczosRun


def test_the_density_of_a_coordinate_on_the_sphere() -> None:
    for n in (3, 10, 500):
        rows = torch.randn(20_000, n, dtype=torch.float64)
        coordinate = (rows[:, 0] / rows.norm(dim=1)).abs()
        share = float((coordinate < least_overlap(n, 0.1)).double().mean())
        assert share == pytest.approx(0.1, abs=0.01)


def test_the_polynomials_are_the_coordinates_of_the_basis() -> None:
    """`<v_(j+1), x> = p_j(lambda) <v_1, x>`: with delta = |<v_1, x>| the bound is the norm."""
    layer = linear_with_values([2.0, 1.5, 1.0, 0.7, 0.3], 5, 5)
    matrix = dense_matrix(layer, (5,))
    gram = torch.tensor(matrix.T @ matrix)
    values, vectors = torch.linalg.eigh(gram)
    run = LanczosRun(lambda rows: rows @ gram, torch.ones(1, 5, dtype=torch.float64))
    assert all(run.step() for _ in range(4))
    basis = torch.cat([run.rows(torch.eye(4)), run.rest / run.rest.norm()])
    torch.testing.assert_close(basis @ basis.T, torch.eye(5, dtype=torch.float64))
    delta = float((basis[0] @ vectors[:, -1]).abs())
    # Five orthonormal vectors hold all of x: the sum of squares meets its limit there exactly.
    assert smallest_excluded(run, delta) == pytest.approx(float(values[-1]), rel=1e-6)


PADDINGS = ["reflect", "replicate"]


@pytest.mark.parametrize("mode", PADDINGS)
@pytest.mark.parametrize(("channels", "side"), [(16, 20), (64, 8)])
def test_one_percent_takes_few_pairs(mode: str, channels: int, side: int) -> None:
    layer = nn.Conv2d(channels, channels, 3, padding=1, padding_mode=mode)
    in_shape = (channels, side, side)
    interval = norm_bounds(layer, in_shape)
    assert interval.kind == "probabilistic"
    assert interval.failure == 1e-6
    assert interval.width <= 0.01
    assert interval.num_matvecs <= 160
    assert float(sc.svds(layer.double(), in_shape, 1, tol=1e-8).S[0]) in interval


@pytest.mark.parametrize("rtol", [0.1, 1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_width_is_what_was_asked_for(rtol: float, dtype: torch.dtype) -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", dtype=dtype)
    interval = norm_bounds(layer, (4, 6, 6), tol=rtol)
    assert interval.width <= rtol
    assert_holds(interval, dense_norm(layer, (4, 6, 6)))


def test_the_rate_of_failures_is_the_nominal_one() -> None:
    """At a nominal rate so large that failures are seen; it is nearly reached, not exceeded."""
    layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect").double()
    truth, nominal, runs = dense_norm(layer, (4, 8, 8)), 0.2, 400
    failures = 0
    for seed in range(runs):
        seeded = torch.Generator().manual_seed(seed)
        interval = norm_bounds(layer, (4, 8, 8), tol=0.02, failure=nominal, generator=seeded)
        assert interval.lower <= truth
        failures += truth > interval.upper
    assert 0.5 * nominal <= failures / runs <= nominal + 2 * math.sqrt(nominal / runs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_a_basis_that_ends_early(rank: int, dtype: torch.dtype) -> None:
    """Nothing more can be learned from an invariant subspace than how far the start reached."""
    layer = LowRank(150, rank, 120).to(dtype)
    interval = norm_bounds(layer, (150,))
    assert interval.kind == "probabilistic"
    assert_holds(interval, dense_norm(layer, (150,)))
    assert interval.width <= 0.01


def test_too_few_steps_give_a_wide_interval_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lanczos_bound, "SEARCH", _lanczos_bound.SearchConstants(steps=12))
    layer = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
    interval = norm_bounds(layer, (4, 8, 8), tol=1e-3)
    assert 1e-3 < interval.width < 1
    assert_holds(interval, dense_norm(layer, (4, 8, 8)))


@pytest.mark.usefixtures("matrices_are_dear")
def test_groups_share_the_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    own = _lanczos_bound.least_overlap

    def noting(n: int, failure: float) -> float:
        seen.append(failure)
        return own(n, failure)

    monkeypatch.setattr(_lanczos_bound, "least_overlap", noting)
    interval = sc.norm_bounds(nn.Conv2d(60, 40, 1, groups=4), (60, 3, 3), failure=1e-4)
    assert seen == [2.5e-5] * 4 and interval.failure == 1e-4
