"""How many pairs of matvecs each solver takes until it stops by itself, and how well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.common.references import worst_error
from benchmarks.common.session import Session
from benchmarks.extraction.layers import BenchmarkLayer
from benchmarks.extraction.peers import METHODS, Outcome
from benchmarks.extraction.published import iterations_needed, published_start
from spectralclip import as_operator
from spectralclip._spectrum import START, torus_map

TOLS = (1e-2, 1e-3, 1e-6)
SEEDS = (0, 1, 2)
SCALES = (1e-3, 1.0, 1e3)
POWER_LIMIT = 800  # pairs
LEADING = ((5, 1e-2), (5, 1e-3), (20, 1e-2), (20, 1e-3))


@dataclass(frozen=True)
class PairRow:
    """One run for the largest value."""

    layer: str
    method: str
    tol: float
    seed: int
    scale: float
    pairs: float | None  # None: not within the limit
    error: float | None  # relative, true
    stopped: bool
    start_pairs: float = 0.0  # work of the start on a small torus, in pairs of the layer
    note: str = ""


@dataclass(frozen=True)
class LeadingRow:
    """One run for the k largest values."""

    layer: str
    method: str
    k: int
    tol: float
    pairs: float
    error: float | None
    stopped: bool
    repeated: bool  # the layer's values repeat
    found: bool  # each value agrees with the true one of its rank to 1.5 tol
    note: str = ""


def measure_pairs(session: Session, layer: BenchmarkLayer) -> list[PairRow]:
    rows = []
    for seed in SEEDS:
        module, reference = layer.build(seed), session.reference(layer, seed)
        start = start_work(module, layer.in_shape)
        names = METHODS if seed == 0 else ("svds", "svds Lanczos")
        for name in names:
            for tol in TOLS if name != "svd_lowrank" else TOLS[:1]:
                if layer.large and name == "lobpcg" and tol < 1e-3:
                    session.skip("pairs", layer, name, "too slow on the largest layer", tol=tol)
                    continue
                found = METHODS[name](module, layer.in_shape, 1, tol)
                rows.append(_pair_row(layer, name, tol, seed, 1.0, found, reference, start))
    for scale in SCALES:
        if scale == 1.0:
            continue  # measured above
        module, reference = layer.build(0, scale), session.reference(layer) * scale
        for tol in TOLS:
            found = METHODS["svds"](module, layer.in_shape, 1, tol)
            rows.append(_pair_row(layer, "svds", tol, 0, scale, found, reference, 0.0))
    return rows + _power_rows(session, layer)


def _pair_row(
    layer: BenchmarkLayer,
    method: str,
    tol: float,
    seed: int,
    scale: float,
    found: Outcome,
    reference: np.ndarray,
    start: float,
) -> PairRow:
    error = worst_error(found.values, reference) if len(found.values) else None
    start = start if method.startswith("svds") else 0.0
    return PairRow(
        layer.name, method, tol, seed, scale, found.pairs, error, found.stopped, start, found.note
    )


def _power_rows(session: Session, layer: BenchmarkLayer) -> list[PairRow]:
    """PowerQR with an oracle's stop."""
    op, reference = as_operator(layer.build(), layer.in_shape), session.reference(layer)
    tols = TOLS[:2] if layer.large else TOLS
    if layer.large:
        session.skip("pairs", layer, "PowerQR", "too slow on the largest layer", tol=TOLS[2])
    rows = []
    for shift in (1.0, 0.0):
        start = op.input_rows(published_start(1, layer.in_shape))
        needed = iterations_needed(op, start, shift, reference, tols, POWER_LIMIT)
        name = f"PowerQR mu={shift:g}"
        rows += [
            PairRow(layer.name, name, tol, 0, 1.0, pairs, None, False, note="stopped by an oracle")
            for tol, pairs in needed.items()
        ]
    return rows


def start_work(module: object, in_shape: tuple[int, ...]) -> float:
    """What Lanczos spends on its start vector for k = 1, in pairs of the layer itself.

    For some convolutions it filters a random vector on a small torus first; that is no
    product with the layer, but it is work of the same kind on a smaller image.
    """
    op = as_operator(module, in_shape)
    op = op if op.shape[1] <= op.shape[0] else op.adjoint()
    torus = torus_map(op.maps[0]) if len(op.maps) == 1 else None
    return 0.0 if torus is None else START.filter_steps * torus.source.size / op.shape[1]


def measure_leading(session: Session, layer: BenchmarkLayer) -> list[LeadingRow]:
    rows = []
    module, reference = layer.build(), session.reference(layer)
    repeated = layer.kind == "repeated" or "1x1" in layer.name
    for k, tol in LEADING:
        if layer.large and k > 5:
            session.skip("leading", layer, "all", "too slow on the largest layer", k=k, tol=tol)
            continue
        names = ["svds", "ARPACK", "ARPACK matched"] + ["svds Lanczos"] * repeated
        for name in names:
            outcome = METHODS[name](module, layer.in_shape, k, tol)
            error = worst_error(outcome.values, reference) if len(outcome.values) else None
            found = error is not None and len(outcome.values) == k and error <= 1.5 * tol
            rows.append(
                LeadingRow(
                    layer.name,
                    name,
                    k,
                    tol,
                    outcome.pairs,
                    error,
                    outcome.stopped,
                    repeated,
                    found,
                    outcome.note,
                )
            )
    return rows
