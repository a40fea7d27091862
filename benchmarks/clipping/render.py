"""The page of clipping from a run's JSON."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from benchmarks.clipping.figures import distance_ratios, ratio_to_bound
from benchmarks.clipping.picture import drawable
from benchmarks.common.pages import (
    Row,
    grouped,
    number,
    selected,
    table,
    targets,
)

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
- A *matvec* is one vector through `M`, `M^T` or the gradient in the weights. *GFLOP* is all
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

COLUMNS = (
    "sigma_1 / c",
    "distance / bound",
    "at c / bound",
    "matvecs",
    "GFLOP",
    "seconds",
    "times ours",
)


def render(results: Row, picture: str = "../images/clipping.png") -> str:
    rows = results["rows"]
    small, large = selected(rows, large=False), selected(rows, large=True)
    parts = [
        INTRODUCTION.format(**results["versions"], **results["machine"]),
        "## Targets\n\n" + targets(results["figures"]),
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


def _image(results: Row, picture: str) -> str:
    if not drawable(results):
        return ""
    text = (
        "Larger marks with a rim are large layers. Where sigma_1 was left above 1.001 c, the "
        "distance is that at c.\n"
    )
    return f"![Distance over its bound against the work, by method]({picture})\n\n{text}"


def _summary(rows: list[Row]) -> str:
    header = ["method", "layers", "diverged", *COLUMNS]
    body = []
    for method, group in grouped(rows, "method").items():
        kept = selected(group, diverged=False)
        body.append(
            [
                method,
                str(len(group)),
                str(len(group) - len(kept)),
                _spread([row["norm"] for row in kept], 4),
                _spread(distance_ratios(kept), 3),
                _spread(distance_ratios(kept, "distance_at_c"), 3),
                _spread([row["num_matvecs"] for row in kept], 0),
                _spread([_giga(row) for row in kept], 2),
                _spread([row["seconds"] for row in kept], 3),
                _spread([row["ratio"] for row in kept], 2),
            ]
        )
    count = len(grouped(rows, "case"))
    text = f"## {count} small configurations: median (largest), without the diverged\n\n"
    return text + table(header, body) if rows else ""


def _spread(values: Iterable[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{median(known):.{digits}f} ({max(known):.{digits}f})"


def _giga(row: Row) -> float | None:
    return None if row["flops"] is None else row["flops"] / 1e9


def _large(rows: list[Row]) -> str:
    header = ["method", *COLUMNS]
    text = "## Large layers\n\n" if rows else ""
    for case, group in grouped(rows, "case").items():
        body = [
            [
                row["method"],
                "diverged" if row["diverged"] else f"{row['norm']:.4f}",
                *_distances(row),
                str(row["num_matvecs"]),
                number(_giga(row), 1),
                f"{row['seconds']:.2f}",
                number(row["ratio"], 2),
            ]
            for row in group
        ]
        text += f"{case}:\n\n" + table(header, body) + "\n"
    return text


def _distances(row: Row) -> list[str]:
    if row["diverged"]:
        return ["-", "-"]
    return [number(ratio_to_bound(row, key), 3) for key in ("distance", "distance_at_c")]


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
    return text + table(header, body)


def _range(values: list[float]) -> str:
    return f"{min(values):.4f}, {max(values):.4f}"


def _dense(rows: list[Row]) -> str:
    if not rows:
        return ""
    header = ["method", "sigma_1 / c", "distance / nearest", "matvecs", "seconds"]
    body = [
        [
            row["method"],
            f"{row['norm']:.5f}",
            f"{row['distance_ratio']:.5f}",
            str(row["num_matvecs"]),
            f"{row['seconds']:.2f}",
        ]
        for row in rows
    ]
    return f"## Dense {rows[0]['layer']}, c = 0.5 sigma_1\n\n" + table(header, body)


def _every(rows: list[Row]) -> str:
    if not rows:
        return ""
    methods = list(grouped(rows, "method"))
    body = []
    for case, group in grouped(rows, "case").items():
        found = {row["method"]: row for row in group}
        body.append([case, *[_pair(found.get(method)) for method in methods]])
    title = "## Every small configuration: sigma_1 / c, distance / bound\n\n"
    return title + table(["configuration", *methods], body)


def _pair(row: Row | None) -> str:
    if row is None:
        return "-"
    if row["diverged"]:
        return "diverged"
    return f"{row['norm']:.3f}, {number(ratio_to_bound(row), 3)}"


def _failed(rows: list[Row]) -> str:
    if not rows:
        return ""
    body = [[row["case"], row["method"], row["error"]] for row in rows]
    return "## Failed\n\n" + table(["configuration", "method", "error"], body)


def _skipped(rows: list[Row]) -> str:
    if not rows:
        return ""
    layers: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        layers.setdefault((row["method"], row["reason"]), []).append(row["layer"])
    body = [[method, reason, str(len(names))] for (method, reason), names in layers.items()]
    return "## Left out\n\n" + table(["method", "reason", "configurations"], body)
