"""One configuration, clipped by every method in turn, and judged by other code."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.clipping.baselines import BASELINES, Method, NotApplicable, Outcome
from benchmarks.clipping.figures import OURS
from benchmarks.clipping.layers import (
    ClipCase,
    Problem,
    TrueDistance,
    gaussian,
    movable,
    multiply_adds,
    small_cases,
    true_norm,
)
from benchmarks.common.session import Session
from spectralclip import clip_, norm_bounds

REPEATS = 3  # and 1 for large layers
SLOW = 2.0  # seconds: what takes longer is not repeated, since noise matters little there
EXACT_LIMIT = 10**6  # weights


@dataclass(frozen=True)
class ClipRow:
    """One method on one configuration."""

    case: str
    kind: str
    weights: str
    large: bool
    family: str
    fraction: float  # c / sigma_1 before
    method: str
    norm: float | None  # true sigma_1 / c; None where the weights are no longer finite
    diverged: bool  # the norm has grown, or the weights are not finite
    distance: float | None  # ||M(W') - M(W)||_F
    distance_at_c: float | None  # after an oracle scaled what was left above c
    num_matvecs: int
    flops: float | None
    work: float  # flops, or else matvecs, in products with the layer
    rounds: int | None
    converged: bool | None
    seconds: float  # of CPU time, median
    bound: float | None = None  # a lower bound on the distance
    ratio: float | None = None  # of seconds to ours


@dataclass(frozen=True)
class CertifyRow:
    """`clip_(..., certify=True)`: the true norm and its bounds afterwards, all over c."""

    case: str
    large: bool
    norm: float
    reported: float  # the upper end that clip_ itself returns
    lower: float  # of `norm_bounds` with its defaults, and the upper end
    upper: float
    kind: str
    seconds: float


def methods() -> dict[str, Method]:
    """Ours and the baselines."""
    return {OURS: _ours(), "clip_ exact": _ours(exact=True), **BASELINES}


def _ours(**options: bool) -> Method:
    def run(module: nn.Module, in_shape: tuple[int, ...], limit: float) -> Outcome:
        if options.get("exact") and movable(module).weight.numel() > EXACT_LIMIT:
            raise NotApplicable("exact clipping of so many weights takes minutes")
        result = clip_(module, in_shape, limit, **options)
        flops = getattr(result, "flops", None)  # beyond the matvecs
        if flops is not None:
            flops += 2.0 * result.num_matvecs * multiply_adds(module, in_shape)
        return Outcome(
            movable(module).weight.detach(),
            result.num_matvecs,
            flops,
            result.rounds,
            result.distance_lower_bound,
            result.converged,
        )

    return run


def warm_up(methods: dict[str, Method]) -> None:
    """Everything once on a small layer: what only first calls pay for is not timed."""
    problem = small_cases()[0].build()
    for run in methods.values():
        try:
            run(copy.deepcopy(problem.module), problem.in_shape, problem.limit)
        except (NotApplicable, ArithmeticError, RuntimeError, ValueError):
            continue  # it will be met again, and noted, where it is measured


def measure_case(
    session: Session,
    case: ClipCase,
    problem: Problem,
    methods: dict[str, Method],
    failed: list[dict[str, str]],
) -> list[ClipRow]:
    outcomes, seconds = _interleaved(session, case, problem, methods, failed)
    rows = _judged(case, problem, outcomes, seconds)
    bounds = [outcome.bound for outcome in outcomes.values() if outcome.bound is not None]
    bound = max(filter(math.isfinite, bounds), default=None)
    ours = seconds.get(OURS)
    ratios = [None if ours is None else row["seconds"] / ours for row in rows]
    return [ClipRow(**row, bound=bound, ratio=r) for row, r in zip(rows, ratios, strict=True)]


def _interleaved(
    session: Session,
    case: ClipCase,
    problem: Problem,
    methods: dict[str, Method],
    failed: list[dict[str, str]],
) -> tuple[dict[str, Outcome], dict[str, float]]:
    """First outcomes and median CPU seconds; each round runs all, and begins with another."""
    names = list(methods)
    outcomes: dict[str, Outcome] = {}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    dropped: set[str] = set()
    for repeat in range(1 if case.large or session.quick else REPEATS):
        shift = repeat % len(names)
        for name in names[shift:] + names[:shift]:
            if name in dropped or seconds[name][:1] > [SLOW]:
                continue
            try:
                outcome, taken = _timed(problem, methods[name])
            except NotApplicable as reason:
                session.skip("clipping", case, name, str(reason))
                dropped.add(name)
                continue
            except (ArithmeticError, RuntimeError, ValueError) as error:
                failed.append(_failure(case, name, error))
                dropped.add(name)
                continue
            outcomes.setdefault(name, outcome)
            seconds[name].append(taken)
    kept = {name: outcomes[name] for name in names if name in outcomes and name not in dropped}
    return kept, {name: statistics.median(seconds[name]) for name in kept}


def _timed(problem: Problem, run: Callable[..., Any]) -> tuple[Any, float]:
    module = copy.deepcopy(problem.module)
    began = time.process_time()
    outcome = run(module, problem.in_shape, problem.limit)
    return outcome, time.process_time() - began


def _judged(
    case: ClipCase, problem: Problem, outcomes: dict[str, Outcome], seconds: dict[str, float]
) -> list[dict[str, Any]]:
    """What each method really reached, in float64."""
    distance = TrueDistance(problem.module, problem.in_shape)
    before = movable(problem.module).weight
    per_matvec = 2.0 * multiply_adds(problem.module, problem.in_shape)
    rows = []
    for name, outcome in outcomes.items():
        norm = norm_with(problem, outcome.weight)
        finite = math.isfinite(norm)
        at_c = outcome.weight.double() * min(1.0, problem.limit / norm) if norm > 0 else before
        flops = outcome.flops
        rows.append(
            {
                "case": case.name,
                "kind": case.kind,
                "weights": case.weights,
                "large": case.large,
                "family": case.family,
                "fraction": case.fraction,
                "method": name,
                "norm": norm / problem.limit if finite else None,
                "diverged": not norm <= problem.sigma * (1 + 1e-4),
                "distance": distance(before, outcome.weight) if finite else None,
                "distance_at_c": distance(before, at_c) if finite else None,
                "num_matvecs": outcome.num_matvecs,
                "flops": flops,
                "work": outcome.num_matvecs if flops is None else flops / per_matvec,
                "rounds": outcome.rounds,
                "converged": None if outcome.converged is None else bool(outcome.converged),
                "seconds": seconds[name],
            }
        )
    return rows


def norm_with(problem: Problem, weight: Any) -> float:
    """The true norm of the layer with another weight."""
    module = copy.deepcopy(problem.module)
    with torch.no_grad():
        movable(module).weight.copy_(weight)
    return true_norm(module, problem.in_shape)


def measure_certified(
    case: ClipCase, problem: Problem, failed: list[dict[str, str]]
) -> list[dict[str, Any]]:
    def certified(
        module: nn.Module, in_shape: tuple[int, ...], limit: float
    ) -> tuple[nn.Module, Any]:
        return module, clip_(module, in_shape, limit, certify=True)

    try:
        (module, result), seconds = _timed(problem, certified)
        interval = norm_bounds(module, problem.in_shape)
        if not math.isfinite(interval.upper):
            raise ArithmeticError("norm_bounds has no finite upper end")
    except (ArithmeticError, RuntimeError, ValueError) as error:
        failed.append(_failure(case, "clip_ certify", error))
        return []
    row = CertifyRow(
        case.name,
        case.large,
        true_norm(module, problem.in_shape) / problem.limit,
        float(result.norm_after) / problem.limit,
        float(interval.lower) / problem.limit,
        float(interval.upper) / problem.limit,
        str(getattr(interval, "kind", "")),
        seconds,
    )
    return [asdict(row)]


def measure_dense(shape: tuple[int, int], methods: dict[str, Method]) -> list[dict[str, Any]]:
    """A Gaussian dense layer to half of its norm, against its whole SVD."""

    def by_svd(module: nn.Module, in_shape: tuple[int, ...], limit: float) -> Outcome:
        U, S, Vh = torch.linalg.svd(module.weight, full_matrices=False)
        return Outcome((U * S.clamp_max(limit)) @ Vh, 0, None)

    rows_, columns = shape
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        layer = nn.Linear(columns, rows_, bias=False)
        layer.weight.copy_(gaussian(shape, torch.Generator().manual_seed(0)))
    layer.requires_grad_(False)
    sigma = true_norm(layer, (columns,))
    problem = Problem(layer, (columns,), sigma, 0.5 * sigma)
    nearest = _nearest_distance(layer.weight, problem.limit)
    contestants = {name: run for name, run in methods.items() if name == OURS}
    contestants["full SVD"] = by_svd
    rows = []
    for name, run in contestants.items():
        outcome, seconds = _timed(problem, run)
        distance = float((outcome.weight.double() - layer.weight.double()).norm())
        rows.append(
            {
                "layer": f"{rows_}x{columns}",
                "method": name,
                "norm": norm_with(problem, outcome.weight) / problem.limit,
                "distance_ratio": distance / nearest,
                "num_matvecs": outcome.num_matvecs,
                "seconds": seconds,
            }
        )
    return rows


def _nearest_distance(weight: Any, limit: float) -> float:
    """Of the projection of a matrix, from its singular values in float64."""
    wide = weight.double()
    gram = wide @ wide.T if wide.shape[0] < wide.shape[1] else wide.T @ wide
    values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    return float((values - limit).clamp_min(0).norm())


def _failure(case: ClipCase, method: str, error: Exception) -> dict[str, str]:
    text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
    return {"case": case.name, "method": method, "error": text}


def in_short(rows: list[ClipRow]) -> str:
    parts = []
    for row in rows:
        norm = "diverged" if row.diverged else f"{row.norm:.4f} c"
        far = ""
        if row.bound and row.distance is not None and not row.diverged:
            far = f", {row.distance / row.bound:.3f}"
        parts.append(f"{row.method} {norm}{far}, {row.seconds:.2f} s")
    return "; ".join(parts)
