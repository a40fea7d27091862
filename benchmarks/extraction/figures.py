"""The targets, each with what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

Row = dict[str, Any]


def figures(results: Row) -> list[Row]:
    """One entry for each target, from the rows of a run."""
    return [
        *_pair_figures(results["pairs"]),
        *_leading_figures(results["leading"]),
        _accuracy_figure(results["pairs"], results["leading"]),
        *_time_figures(results["times"]),
        _at_least(
            "whole circular spectra, times faster than FFT + SVD, minimum", 3, results["whole"]
        ),
        _at_most(
            "memory of svds(k=1) on the largest layer, MB", 200, results["memory"]["megabytes"]
        ),
        _at_most("import beyond torch, seconds", 0.1, results["import"]["seconds"]),
    ]


def selected(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """The rows with the given entries."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def by_layer(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["layer"], []).append(row)
    return groups


def _pair_figures(rows: list[Row]) -> list[Row]:
    result = []
    for method, tol, most, worst in (
        ("svds", 1e-3, 25, 70),
        ("svds Lanczos", 1e-3, 25, 70),
        ("svds", 1e-6, 80, None),
        ("svds Lanczos", 1e-6, 80, None),
    ):
        chosen = selected(rows, method=method, tol=tol, scale=1.0)
        layers = by_layer(chosen).values()
        middle = median(median(row["pairs"] for row in group) for group in layers)
        label = f"{method}, k=1, tol {tol:g}: pairs"
        result.append(_at_most(f"{label}, median over layers", most, middle))
        if worst is not None:
            largest = max(row["pairs"] for row in chosen)
            result.append(_at_most(f"{label}, largest over layers and seeds", worst, largest))
            with_start = median(
                median(row["pairs"] + row["start_pairs"] for row in group) for group in layers
            )
            result.append(_at_most(f"{label} and work of the start, median", most, with_start))
    scaled = selected(rows, method="svds", seed=0)
    spreads = [
        max(row["pairs"] for row in group) - min(row["pairs"] for row in group)
        for tol in sorted({row["tol"] for row in scaled})
        for group in by_layer(selected(scaled, tol=tol)).values()
    ]
    label = "svds: largest difference of pairs between scales 1e-3, 1 and 1e3"
    return [*result, _at_most(label, 0, max(spreads))]


def _leading_figures(rows: list[Row]) -> list[Row]:
    result = []
    for k, most in ((5, 180), (20, 500)):
        pairs = [row["pairs"] for row in selected(rows, method="svds", k=k, tol=1e-3)]
        if pairs:
            label = f"svds, k={k}, tol 0.001: pairs"
            result.append(_at_most(f"{label}, median over layers", most, median(pairs)))
            result.append(_at_most(f"{label}, largest over layers", most, max(pairs)))
    checked = [row for row in rows if row["repeated"] and row["method"].startswith("svds")]
    missed = sum(not row["found"] for row in checked)
    label = f"svds: runs that missed a copy of a repeated value, of {len(checked)}"
    return [*result, _at_most(label, 0, missed)]


def _accuracy_figure(pairs: list[Row], leading: list[Row]) -> Row:
    ratios = [
        row["error"] / row["tol"]
        for row in [*pairs, *leading]
        if row["method"].startswith("svds") and row["error"] is not None
    ]
    return _at_most("svds: worst true error / tol at its stop", 1.5, max(ratios))


def _time_figures(rows: list[Row]) -> list[Row]:
    result = []
    for k, least in ((1, 10), (5, 7), (20, 7)):
        for initialization in ("sigma_1 = 2", "default"):
            chosen = selected(rows, method="published PowerQR", k=k, initialization=initialization)
            if not chosen:
                continue
            ratios = [row["ratio"] for row in chosen]
            label = f"times faster than published PowerQR, k={k}, {initialization}"
            result.append(_figure(f"{label}, median", f">= {least}", median(ratios), least, 1))
            result.append(_figure(f"{label}, minimum", f">= {least}", min(ratios), least, 1))
    for method in ("ARPACK", "ARPACK matched"):
        ratios = [row["ratio"] for row in selected(rows, method=method)]
        result.append(
            _figure(f"times faster than {method}, minimum over all", ">= 1", min(ratios), 1, 1)
        )
    return result


def _at_most(label: str, target: float, measured: float) -> Row:
    return _figure(label, f"<= {target:g}", measured, target, -1)


def _at_least(label: str, target: float, rows: list[Row]) -> Row:
    return _figure(label, f">= {target:g}", min(row["ratio"] for row in rows), target, 1)


def _figure(label: str, target: str, measured: float, bound: float, direction: int) -> Row:
    met = direction * (measured - bound) >= 0
    return {"figure": label, "target": target, "measured": measured, "met": met}
