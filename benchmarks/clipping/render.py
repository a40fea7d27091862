"""Page and picture of clipping from a run's JSON: `python -m benchmarks.clipping.render`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.extraction.figures import selected
from benchmarks.extraction.render import _table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "clipping.json"
PAGE = ROOT / "docs" / "benchmarks" / "clipping.md"
PICTURE = ROOT / "docs" / "images" / "clipping.png"
Row = dict[str, Any]

OURS, EXACT = "clip_", "clip_ exact"
FFT, PUBLISHED = "FFT-clip, 20 rounds", "Algorithm 2, published"
WITHIN = 1.001  # sigma_1 / c up to which a method has done what it was asked for

INTRODUCTION = """\
# Clipping, side by side

Made by `python -m benchmarks.clipping`; do not edit. All methods run on the same layers in one
run, in turns, in float32. Threads: {threads}. Machine: {cpu}, {cores} cores.
Versions: torch {torch}, NumPy {numpy}, SciPy {scipy}, Python {python}, spectralclip {spectralclip}.

The weights within a norm `c` that are nearest to the given ones are a projection onto a convex
set. So a method is judged by two numbers: the *true norm* that it leaves, over c, and the
*distance* `||M(W') - M(W)||_F` that it went, over a lower bound on the distance of all weights
within c. Both are computed in float64, by other code: norms from the dense matrix or by ARPACK,
distances from the layer with one channel. The bound is the dual one of `clip_(exact=True)`.

- A method that leaves the norm above c has gone less far than it should have. *At c* is the
  distance after an oracle has scaled such weights to c.
- An *application* is one vector through `M`, `M^T` or the gradient in the weights. *GFLOP* is all
  work, with decompositions of symbols at 20 a^2 b complex operations for a block a x b; a dash
  where a method does not say. Seconds are CPU time.
- *scale* multiplies the weights by c / sigma_1. *FFT-clip* clips the symbol at each frequency and
  cuts back to the kernel, once or 20 times, in a fast form: half of the frequencies, and the
  smaller Gram matrix. It takes zero padding for circular, and is not defined for other paddings.
- *Algorithm 2* is the paper's, by `.backward()`, with 10 iterations of PowerQR and 5 inner steps
  a round, at most 60 rounds. *Published* has the step and the loss of the published code:
  lambda 0.35, and the mean over the image's width. The others have the printed loss. It has
  diverged where the norm has grown.
- Small layers have c = 0.3, 0.5, 0.7 and 0.95 sigma_1, and Gaussian or trained-like weights: a
  few strong directions above noise, scaled to sigma_1 = 6. Large ones of these have c = 1.
"""


def ratio_to_bound(row: Row, key: str = "distance") -> float | None:
    """A distance over the bound, where there is one."""
    if row[key] is None or not row["bound"]:
        return None
    return row[key] / row["bound"]


# --- Targets ------------------------------------------------------------------------------


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
        _at_least(f"{label}: sigma_1 / c, smallest", 0.995, _norms(ours), min),
        _at_most(f"{label}: sigma_1 / c, largest", 1.001, _norms(ours), max),
        _at_most(f"{label}: distance / bound, median", 1.03, _ratios(ours), median),
        _at_most(f"{label}: distance / bound, worst", 1.15, _ratios(ours), max),
        _at_most("exact on the same: distance / bound, worst", 1.01, _ratios(exact), max),
        _at_most("exact on the same: sigma_1 / c, largest", 1.001, _norms(exact), max),
    ]
    published = selected(rows, method=PUBLISHED)
    if published:
        label = "median CPU time, default / Algorithm 2 as published"
        mine = median(row["seconds"] for row in ours)
        for until, times in (
            ("until it stops", [row["seconds"] for row in published]),
            ("over 60 rounds", [_over_all_rounds(row) for row in published]),
        ):
            result.append(_at_most(f"{label}, {until}", 1, [mine / median(times)], max))
    return [row for row in result if row is not None]


def _over_all_rounds(row: Row, rounds: int = 60) -> float:
    """Seconds, had it not stopped early: nearly all is PowerQR, once a round and once before."""
    return row["seconds"] * (rounds + 1) / (row["rounds"] + 1)


def _large_figures(rows: list[Row]) -> list[Row]:
    ours = selected(rows, method=OURS)
    if not ours:
        return []
    result = [_at_most("large: sigma_1 / c, largest", 1.001, _norms(ours), max)]
    for family, most in (
        ("64 channels", 1.015),
        ("256 channels", 1.03),
        ("256 channels, circular", 1.01),
        ("reflect", 1.06),
    ):
        ratios = _ratios(selected(ours, family=family, weights="trained"))
        label = f"large, trained-like, {family}: distance / bound, worst"
        result.append(_at_most(label, most, ratios, max))
    for method in (FFT, PUBLISHED):
        times = [row["ratio"] for row in selected(rows, method=method)]
        result.append(_at_least(f"large: times faster than {method}, minimum", 1, times, min))
    seconds = [row["seconds"] for row in selected(ours, family="512 channels")]
    result.append(_at_most("512->512 n4: CPU seconds", 15, seconds, max))
    return [row for row in result if row is not None]


def _certified_figures(rows: list[Row]) -> list[Row]:
    reported, uppers, lowers = (
        [row[end] for row in rows] for end in ("reported", "upper", "lower")
    )
    result = [
        _at_most("certified: upper end that clip_ returns / c, largest", 1, reported, max),
        _at_most("certified: upper end of norm_bounds / c, largest", 1, uppers, max),
        _at_least("certified: lower end of norm_bounds / c, smallest", 0.985, lowers, min),
    ]
    return [row for row in result if row is not None]


def _dense_figures(rows: list[Row]) -> list[Row]:
    seconds = {row["method"]: row["seconds"] for row in rows}
    if OURS not in seconds:
        return []
    faster = seconds["full SVD"] / seconds[OURS]
    return [_at_least(f"dense {rows[0]['layer']}: times faster than full SVD", 1, [faster], min)]


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
        _at_most("configurations without a bound on the distance", 0, [unbounded], max),
        _at_least("any method within c: distance / bound, smallest", 0.999, reached, min),
        _at_most("methods that failed on a configuration", 0, [failures], max),
    ]
    return [row for row in result if row is not None]


def _norms(rows: Iterable[Row]) -> list[float]:
    return [float("inf") if row["norm"] is None else row["norm"] for row in rows]


def _ratios(rows: Iterable[Row], key: str = "distance") -> list[float]:
    ratios = [ratio_to_bound(row, key) for row in rows]
    return [ratio for ratio in ratios if ratio is not None]


Summary = Callable[[list[float]], float]


def _at_most(label: str, target: float, values: list[float], summary: Summary) -> Row | None:
    return _figure(label, f"<= {target:g}", values, summary, lambda value: value <= target)


def _at_least(label: str, target: float, values: list[float], summary: Summary) -> Row | None:
    return _figure(label, f">= {target:g}", values, summary, lambda value: value >= target)


def _figure(
    label: str, target: str, values: list[float], summary: Summary, met: Callable[[float], bool]
) -> Row | None:
    if not values:
        return None
    measured = summary(values)
    finite = None if measured == float("inf") else measured
    return {"figure": label, "target": target, "measured": finite, "met": met(measured)}


# --- The page -----------------------------------------------------------------------------


def render(results: Row, picture: str = "../images/clipping.png") -> str:
    rows = results["rows"]
    small, large = selected(rows, large=False), selected(rows, large=True)
    parts = [
        INTRODUCTION.format(**results["versions"], **results["machine"]),
        _targets(results["figures"]),
        _image(results, picture),
        _summary(small),
        _large(large),
        _certified(results["certified"]),
        _dense(results["dense"]),
        _every(small),
        _failed(results["failed"]),
        _skipped(results["skipped"]),
    ]
    return "\n".join(part for part in parts if part)


def write_page(results: Row, path: Path | None = None) -> None:
    picture = "../images/clipping.png" if path is None else path.with_suffix(".png").name
    path = path or PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(results, picture))


def _image(results: Row, picture: str) -> str:
    if not _drawable(results):
        return ""
    text = (
        "Larger marks with a rim are large layers. Where sigma_1 was left above 1.001 c, the "
        "distance is that at c.\n"
    )
    return f"![Distance over its bound against the work, by method]({picture})\n\n{text}"


def _targets(rows: list[Row]) -> str:
    body = [
        [
            row["figure"],
            row["target"],
            "-" if row["measured"] is None else f"{row['measured']:.5g}",
            "yes" if row["met"] else "**no**",
        ]
        for row in rows
    ]
    return "## Targets\n\n" + _table(["figure", "target", "measured", "met"], body)


def _summary(rows: list[Row]) -> str:
    header = [
        "method",
        "layers",
        "diverged",
        "sigma_1 / c",
        "distance / bound",
        "at c / bound",
        "applications",
        "GFLOP",
        "seconds",
        "times ours",
    ]
    body = []
    for method, group in _by(rows, "method").items():
        kept = selected(group, diverged=False)
        body.append(
            [
                method,
                str(len(group)),
                str(len(group) - len(kept)),
                _spread([row["norm"] for row in kept], 4),
                _spread(_ratios(kept), 3),
                _spread(_ratios(kept, "distance_at_c"), 3),
                _spread([row["applications"] for row in kept], 0),
                _spread([_giga(row) for row in kept], 2),
                _spread([row["seconds"] for row in kept], 3),
                _spread([row["ratio"] for row in kept], 2),
            ]
        )
    count = len(_by(rows, "case"))
    text = f"## {count} small configurations: median (largest), without the diverged\n\n"
    return text + _table(header, body) if rows else ""


def _spread(values: Iterable[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{median(known):.{digits}f} ({max(known):.{digits}f})"


def _giga(row: Row) -> float | None:
    return None if row["flops"] is None else row["flops"] / 1e9


def _large(rows: list[Row]) -> str:
    header = [
        "method",
        "sigma_1 / c",
        "distance / bound",
        "at c / bound",
        "applications",
        "GFLOP",
        "seconds",
        "times ours",
    ]
    text = "## Large layers\n\n" if rows else ""
    for case, group in _by(rows, "case").items():
        body = [
            [
                row["method"],
                "diverged" if row["diverged"] else f"{row['norm']:.4f}",
                *_distances(row),
                str(row["applications"]),
                _number(_giga(row), 1),
                f"{row['seconds']:.2f}",
                _number(row["ratio"], 2),
            ]
            for row in group
        ]
        text += f"{case}:\n\n" + _table(header, body) + "\n"
    return text


def _distances(row: Row) -> list[str]:
    if row["diverged"]:
        return ["-", "-"]
    return [_number(ratio_to_bound(row, key), 3) for key in ("distance", "distance_at_c")]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _certified(rows: list[Row]) -> str:
    if not rows:
        return ""
    text = "## Certified: what `clip_(..., certify=True)` leaves, over c\n\n"
    text += "The ends are those of `norm_bounds` with its defaults, after clipping.\n\n"
    keys = ("lower", "norm", "upper", "reported")
    small = selected(rows, large=False)
    body = []
    if small:
        body.append(
            [
                f"{len(small)} small ones: smallest, largest",
                *[_range([row[key] for row in small]) for key in keys],
                ", ".join(sorted({row["kind"] for row in small})),
                _spread([row["seconds"] for row in small], 2),
            ]
        )
    for row in selected(rows, large=True):
        ends = [f"{row[key]:.4f}" for key in keys]
        body.append([row["case"], *ends, row["kind"], f"{row['seconds']:.2f}"])
    header = ["layer", "lower end", "true sigma_1", "upper end", "returned", "kind", "seconds"]
    return text + _table(header, body)


def _range(values: list[float]) -> str:
    return f"{min(values):.4f}, {max(values):.4f}"


def _dense(rows: list[Row]) -> str:
    if not rows:
        return ""
    header = ["method", "sigma_1 / c", "distance / nearest", "applications", "seconds"]
    body = [
        [
            row["method"],
            f"{row['norm']:.5f}",
            f"{row['distance_ratio']:.5f}",
            str(row["applications"]),
            f"{row['seconds']:.2f}",
        ]
        for row in rows
    ]
    return f"## Dense {rows[0]['layer']}, c = 0.5 sigma_1\n\n" + _table(header, body)


def _every(rows: list[Row]) -> str:
    if not rows:
        return ""
    methods = list(_by(rows, "method"))
    body = []
    for case, group in _by(rows, "case").items():
        found = {row["method"]: row for row in group}
        body.append([case, *[_pair(found.get(method)) for method in methods]])
    title = "## Every small configuration: sigma_1 / c, distance / bound\n\n"
    return title + _table(["configuration", *methods], body)


def _pair(row: Row | None) -> str:
    if row is None:
        return "-"
    if row["diverged"]:
        return "diverged"
    return f"{row['norm']:.3f}, {_number(ratio_to_bound(row), 3)}"


def _failed(rows: list[Row]) -> str:
    if not rows:
        return ""
    body = [[row["case"], row["method"], row["error"]] for row in rows]
    return "## Failed\n\n" + _table(["configuration", "method", "error"], body)


def _skipped(rows: list[Row]) -> str:
    if not rows:
        return ""
    layers: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        layers.setdefault((row["method"], row["reason"]), []).append(row["layer"])
    body = [[method, reason, str(len(names))] for (method, reason), names in layers.items()]
    return "## Left out\n\n" + _table(["method", "reason", "configurations"], body)


def _by(rows: Iterable[Row], key: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


# --- The picture --------------------------------------------------------------------------

MARKS = {
    OURS: ("o", "#55a868", 3),
    EXACT: ("D", "#2d6a3e", 3),
    "scale": ("s", "#8c8c8c", 1),
    "FFT-clip, once": ("v", "#9ab3d5", 1),
    FFT: ("^", "#4c72b0", 2),
    PUBLISHED: ("X", "#c44e52", 2),
    "Algorithm 2, lambda 0.1": ("P", "#dd8452", 2),
    "Algorithm 2, lambda 1": ("*", "#e8b48f", 1),
}


LEAST_EXCESS = 5e-4  # nearer to the bound than this is drawn here


def draw(results: Row, path: Path = PICTURE) -> None:
    """Distance over its bound against the work, for everything that has not diverged."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawable = _drawable(results)
    if not drawable:
        return
    figure, axes = plt.subplots(figsize=(8.5, 6.0), layout="constrained")
    for method, group in _by(drawable, "method").items():
        marker, color, order = MARKS[method]
        points = [(max(1.0, row["work"]), _excess(row), row["large"]) for row in group]
        for large in (False, True):
            chosen = [(x, y) for x, y, size in points if size == large]
            if chosen:
                axes.scatter(
                    *zip(*chosen, strict=True),
                    s=60 if large else 22,
                    marker=marker,
                    color=color,
                    edgecolors="black" if large else "none",
                    linewidths=0.6,
                    alpha=0.85,
                    zorder=order,
                )
        axes.scatter([], [], s=30, marker=marker, color=color, label=method)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10]
    axes.set_yticks(ticks, [f"{1 + tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0.8 * LEAST_EXCESS)
    axes.set_xlabel("work, in applications of the layer (log scale)")
    axes.set_ylabel("distance / lower bound (log scale of the excess over 1)")
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _drawable(results: Row) -> list[Row]:
    """What has not diverged, where there is a bound."""
    return [row for row in selected(results["rows"], diverged=False) if row["bound"]]


def _excess(row: Row) -> float:
    """The distance over the bound, less one; where c was missed, after scaling to c."""
    key = "distance" if row["norm"] <= WITHIN else "distance_at_c"
    return max(LEAST_EXCESS, row[key] / row["bound"] - 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clipping.render", description=__doc__
    )
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--page", type=Path, help="where the page goes; the picture goes beside it")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    results["figures"] = figures(results)
    write_page(results, arguments.page)
    draw(results, PICTURE if arguments.page is None else arguments.page.with_suffix(".png"))


if __name__ == "__main__":
    main()
