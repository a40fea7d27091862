"""The targets of clipping, each with what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from benchmarks.common.pages import (
    Row,
    at_least,
    at_most,
    selected,
)

OURS, EXACT = "clip_", "clip_ exact"
FFT, PUBLISHED = "FFT-clip, 20 rounds", "Algorithm 2, published"


def ratio_to_bound(row: Row, key: str = "distance") -> float | None:
    """A distance over the bound, where there is one."""
    if row[key] is None or not row["bound"]:
        return None
    return row[key] / row["bound"]


def figures(results: Row) -> list[Row]:
    """One entry for each target that the run has rows for."""
    rows = results["rows"]
    small, large = selected(rows, large=False), selected(rows, large=True)
    return [
        *_small_figures(small),
        *_large_figures(large),
        *_certified_figures(results["certified"]),
        *_dense_figures(results["dense"]),
        *_check_figures(results),
    ]


def _small_figures(rows: list[Row]) -> list[Row]:
    ours, exact = selected(rows, method=OURS), selected(rows, method=EXACT)
    if not ours:
        return []
    label = f"default on {len(ours)} small ones"
    result = [
        at_least(f"{label}: sigma_1 / c, smallest", 0.995, _norms(ours)),
        at_most(f"{label}: sigma_1 / c, largest", 1.001, _norms(ours)),
        at_most(f"{label}: distance / bound, median", 1.03, distance_ratios(ours), median),
        at_most(f"{label}: distance / bound, worst", 1.15, distance_ratios(ours)),
        at_most("exact on the same: distance / bound, worst", 1.01, distance_ratios(exact)),
        at_most("exact on the same: sigma_1 / c, largest", 1.001, _norms(exact)),
    ]
    published = selected(rows, method=PUBLISHED)
    if published:
        label = "median CPU time, default / Algorithm 2 as published"
        mine = median(row["seconds"] for row in ours)
        for until, times in (
            ("until it stops", [row["seconds"] for row in published]),
            ("over 60 rounds", [_over_all_rounds(row) for row in published]),
        ):
            result.append(at_most(f"{label}, {until}", 1, [mine / median(times)]))
    return [row for row in result if row is not None]


def _over_all_rounds(row: Row, rounds: int = 60) -> float:
    """Seconds, had it not stopped early: nearly all is PowerQR, once a round and once before."""
    return row["seconds"] * (rounds + 1) / (row["rounds"] + 1)


def _large_figures(rows: list[Row]) -> list[Row]:
    ours = selected(rows, method=OURS)
    if not ours:
        return []
    result = [at_most("large: sigma_1 / c, largest", 1.001, _norms(ours))]
    for family, most in (
        ("64 channels", 1.015),
        ("256 channels", 1.03),
        ("256 channels, circular", 1.01),
        ("reflect", 1.06),
    ):
        ratios = distance_ratios(selected(ours, family=family, weights="trained"))
        label = f"large, trained-like, {family}: distance / bound, worst"
        result.append(at_most(label, most, ratios))
    for method in (FFT, PUBLISHED):
        times = [row["ratio"] for row in selected(rows, method=method)]
        result.append(at_least(f"large: times faster than {method}, minimum", 1, times))
    seconds = [row["seconds"] for row in selected(ours, family="512 channels")]
    result.append(at_most("512->512 n4: CPU seconds", 15, seconds))
    return [row for row in result if row is not None]


def _certified_figures(rows: list[Row]) -> list[Row]:
    reported, uppers, lowers = (
        [row[end] for row in rows] for end in ("reported", "upper", "lower")
    )
    result = [
        at_most("certified: upper end that clip_ returns / c, largest", 1, reported),
        at_most("certified: upper end of norm_bounds / c, largest", 1, uppers),
        at_least("certified: lower end of norm_bounds / c, smallest", 0.985, lowers),
    ]
    return [row for row in result if row is not None]


def _dense_figures(rows: list[Row]) -> list[Row]:
    seconds = {row["method"]: row["seconds"] for row in rows}
    if OURS not in seconds:
        return []
    faster = seconds["full SVD"] / seconds[OURS]
    return [at_least(f"dense {rows[0]['layer']}: times faster than full SVD", 1, [faster])]


def _check_figures(results: Row) -> list[Row]:
    """What makes the others worth something: bounds are there and are bounds, nothing failed."""
    ours = selected(results["rows"], method=OURS)
    if not ours:
        return []
    # On the largest layer exact clipping, which gives the bound, is left out.
    unbounded = sum(not row["bound"] for row in ours if row["family"] != "512 channels")
    reached = [ratio_to_bound(row, "distance_at_c") for row in results["rows"]]
    reached = [ratio for ratio in reached if ratio is not None]
    failures = len(results["failed"])
    result = [
        at_most("configurations without a bound on the distance", 0, [unbounded]),
        at_least("any method within c: distance / bound, smallest", 0.999, reached),
        at_most("methods that failed on a configuration", 0, [failures]),
    ]
    return [row for row in result if row is not None]


def _norms(rows: Iterable[Row]) -> list[float]:
    return [float("inf") if row["norm"] is None else row["norm"] for row in rows]


def distance_ratios(rows: Iterable[Row], key: str = "distance") -> list[float]:
    ratios = [ratio_to_bound(row, key) for row in rows]
    return [ratio for ratio in ratios if ratio is not None]
