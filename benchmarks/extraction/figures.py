"""The targets, each with what was measured."""

from __future__ import annotations

from statistics import median

from benchmarks.common.pages import Row, at_least, at_most, grouped, selected


def figures(results: Row) -> list[Row]:
    """One entry for each target that the run has rows for."""
    whole = [row["ratio"] for row in results["whole"]]
    memory, loading = results["memory"]["megabytes"], results["import"]["seconds"]
    found = [
        *_pair_figures(results["pairs"]),
        *_leading_figures(results["leading"]),
        _accuracy_figure(results["pairs"], results["leading"]),
        *_time_figures(results["times"]),
        at_least("whole circular spectra, times faster than FFT + SVD, minimum", 3, whole),
        at_most("memory of svds(k=1) on the largest layer, MB", 200, [memory]),
        at_most("import beyond torch, seconds", 0.1, [loading]),
    ]
    return [row for row in found if row is not None]


def _pair_figures(rows: list[Row]) -> list[Row | None]:
    result = []
    for method, tol, most, worst in (
        ("svds", 1e-3, 25, 70),
        ("svds Lanczos", 1e-3, 25, 70),
        ("svds", 1e-6, 80, None),
        ("svds Lanczos", 1e-6, 80, None),
    ):
        chosen = selected(rows, method=method, tol=tol, scale=1.0)
        layers = grouped(chosen, "layer").values()
        middle = [median(row["pairs"] for row in group) for group in layers]
        label = f"{method}, k=1, tol {tol:g}: pairs"
        result.append(at_most(f"{label}, median over layers", most, middle, median))
        if worst is not None:
            pairs = [row["pairs"] for row in chosen]
            result.append(at_most(f"{label}, largest over layers and seeds", worst, pairs))
            whole = [median(row["pairs"] + row["start_pairs"] for row in group) for group in layers]
            result.append(at_most(f"{label} and work of the start, median", most, whole, median))
    scaled = selected(rows, method="svds", seed=0)
    spreads = [
        max(row["pairs"] for row in group) - min(row["pairs"] for row in group)
        for tol in sorted({row["tol"] for row in scaled})
        for group in grouped(selected(scaled, tol=tol), "layer").values()
    ]
    label = "svds: largest difference of pairs between scales 1e-3, 1 and 1e3"
    return [*result, at_most(label, 0, spreads)]


def _leading_figures(rows: list[Row]) -> list[Row | None]:
    result = []
    for k, most in ((5, 180), (20, 500)):
        pairs = [row["pairs"] for row in selected(rows, method="svds", k=k, tol=1e-3)]
        label = f"svds, k={k}, tol 0.001: pairs"
        result.append(at_most(f"{label}, median over layers", most, pairs, median))
        result.append(at_most(f"{label}, largest over layers", most, pairs))
    checked = [row for row in rows if row["repeated"] and row["method"].startswith("svds")]
    missed = sum(not row["found"] for row in checked)
    label = f"svds: runs that missed a copy of a repeated value, of {len(checked)}"
    return [*result, at_most(label, 0, [missed])]


def _accuracy_figure(pairs: list[Row], leading: list[Row]) -> Row | None:
    ratios = [
        row["error"] / row["tol"]
        for row in [*pairs, *leading]
        if row["method"].startswith("svds") and row["error"] is not None
    ]
    return at_most("svds: worst true error / tol at its stop", 1.5, ratios)


def _time_figures(rows: list[Row]) -> list[Row | None]:
    result = []
    for k, least in ((1, 10), (5, 7), (20, 7)):
        for initialization in ("sigma_1 = 2", "default"):
            chosen = selected(rows, method="published PowerQR", k=k, initialization=initialization)
            ratios = [row["ratio"] for row in chosen]
            label = f"times faster than published PowerQR, k={k}, {initialization}"
            result.append(at_least(f"{label}, median", least, ratios, median))
            result.append(at_least(f"{label}, minimum", least, ratios))
    for method in ("ARPACK", "ARPACK matched"):
        ratios = [row["ratio"] for row in selected(rows, method=method)]
        result.append(at_least(f"times faster than {method}, minimum over all", 1, ratios))
    return result
