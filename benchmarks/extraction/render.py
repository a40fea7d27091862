"""The page of tables from a run's JSON."""

from __future__ import annotations

from statistics import median

from benchmarks.common.pages import Row, grouped, selected, table, targets

INTRODUCTION = """\
# Extraction, side by side

Made by `python -m benchmarks.extraction`; do not edit. All methods run on the same layers in one
run, in turns, in float32. Threads: {threads}. Machine: {cpu}, {cores} cores.
Versions: torch {torch}, NumPy {numpy}, SciPy {scipy}, Python {python}, spectralclip {spectralclip}.

A *pair* is one vector through `M` and one through `M^T`, counted at the operator for everybody;
counts of pairs do not depend on the machine. True errors are relative, against float64 values
found by other code (block by block with NumPy where values repeat, ARPACK elsewhere).

- `svds` is ours as a user calls it; `Lanczos` is ours without exact shortcuts. Median over three
  seeds of the weights, then the worst, with the worst error; the peers run on the first seed.
  For some convolutions Lanczos first filters its start on a small torus. That is no product
  with the layer and is given apart, as the number of pairs that would cost as much.
- ARPACK is `scipy.sparse.linalg.svds` with the same `tol`, which it squares; *matched* is the
  same with the loosest tolerance that bounds the error by `tol`.
- `lobpcg` and `svd_lowrank` are torch's, on the operator, unchanged. `lobpcg` gets the same `tol`,
  with which its test bounds the error by `tol`, and at most 200 iterations; `svd_lowrank` has no
  stop: two iterations with q = k + 6.
- PowerQR has no stop either: an oracle stops it once its true error is within `tol`.
  *Published* is by `.backward()` with `f(0)` recomputed and parameters that require gradients.
  Its iterations all cost the same: some are timed, and the time is scaled to the number needed.
  Where it was not within `tol` at its limit (k = 1: 800 iterations, else 300, on the largest
  layer 75), the ratio for that limit is given as a lower bound.
"""


def render(results: Row) -> str:
    context = {**results["versions"], **results["machine"]}
    parts = [
        INTRODUCTION.format(**context),
        "## Targets\n\n" + targets(results["figures"], 3),
        *[_pairs(results["pairs"], tol) for tol in (1e-2, 1e-3, 1e-6)],
        _scales(results["pairs"]),
        _leading(results["leading"]),
        *[_times(results["times"], start) for start in ("sigma_1 = 2", "default")],
        _whole(results["whole"]),
        _skipped(results["skipped"]),
    ]
    return "\n".join(parts)


def _number(pairs: float | None) -> str:
    return "-" if pairs is None else f"{pairs:.4g}"


def _seeds_cell(rows: list[Row]) -> str:
    """Median and worst pairs over the seeds, with the worst error."""
    pairs = [row["pairs"] for row in rows]
    open_ = "" if all(row["stopped"] for row in rows) else " not converged"
    error = max(row["error"] for row in rows)
    return f"{_number(median(pairs))}, {_number(max(pairs))} ({error:.0e}){open_}"


def _cell(rows: list[Row]) -> str:
    """Pairs, with the error at that point."""
    if not rows:
        return "-"
    (row,) = rows
    if row["method"].startswith("PowerQR"):
        return "> 800" if row["pairs"] is None else str(row["pairs"])
    if row["error"] is None:
        return f"failed after {_number(row['pairs'])}"
    unstopped = not row["stopped"] and row["method"] != "svd_lowrank"
    return f"{'> ' * unstopped}{_number(row['pairs'])} ({row['error']:.0e})"


def _pairs(rows: list[Row], tol: float) -> str:
    peers = ["ARPACK", "ARPACK matched", "lobpcg", "PowerQR mu=1", "PowerQR mu=0"]
    header = ["layer", "svds", "Lanczos", "start", *peers, "svd_lowrank"]
    body = []
    for layer, group in grouped(selected(rows, scale=1.0), "layer").items():
        here = selected(group, tol=tol)
        ours = [_seeds_cell(selected(here, method=name)) for name in ("svds", "svds Lanczos")]
        start = f"{max(row['start_pairs'] for row in here):.2g}"
        theirs = [_cell(selected(here, method=name)) for name in peers]
        lowrank = _cell(selected(group, method="svd_lowrank"))
        body.append([layer, *ours, start, *theirs, lowrank])
    title = f"## Largest value, tol {tol:g}: pairs (true error)\n\n"
    return title + table(header, body)


def _scales(rows: list[Row]) -> str:
    scales = sorted({row["scale"] for row in rows})
    header = ["layer", *[f"weights x {scale:g}" for scale in scales]]
    body = []
    for layer, group in grouped(selected(rows, method="svds", seed=0), "layer").items():
        cells = []
        for scale in scales:
            runs = sorted(selected(group, scale=scale), key=lambda row: -row["tol"])
            cells.append(" / ".join(_number(row["pairs"]) for row in runs))
        body.append([layer, *cells])
    title = "## Pairs of svds at other scales of the weights, tol 0.01 / 0.001 / 1e-06\n\n"
    return title + table(header, body)


def _leading(rows: list[Row]) -> str:
    methods = ["svds", "svds Lanczos", "ARPACK", "ARPACK matched"]
    header = ["layer", "k", "tol", *methods, "copies missed by"]
    body = []
    for layer, group in grouped(rows, "layer").items():
        for k, tol in sorted({(row["k"], row["tol"]) for row in group}):
            here = selected(group, k=k, tol=tol)
            cells = [_cell(selected(here, method=name)) for name in methods]
            answers = [row for row in here if row["repeated"] and row["error"] is not None]
            missed = [row["method"] for row in answers if not row["found"]]
            repeated = here[0]["repeated"]
            body.append(
                [layer, str(k), f"{tol:g}", *cells, ", ".join(missed) or "nobody" * repeated]
            )
    title = "## Leading values: pairs (worst true error)\n\n"
    text = (
        "The last column is filled where values repeat, exactly or nearly: a method misses a copy "
        "if one of its values is not within 1.5 tol of the true one of the same rank.\n\n"
    )
    return title + text + table(header, body)


def _times(rows: list[Row], initialization: str) -> str:
    peers = ["published PowerQR", "PowerQR, our operator", "ARPACK", "ARPACK matched"]
    rows = selected(rows, initialization=initialization)
    requests = sorted({(row["k"], row["tol"]) for row in rows})
    text = f"## Time, {initialization}: how many times longer than svds\n\n"
    if initialization == "default":
        text += "As torch initializes the layers.\n\n"
    for k, tol in requests:
        body = []
        here = selected(rows, k=k, tol=tol)
        for layer, group in grouped(here, "layer").items():
            (ours,) = selected(group, method="svds")
            cells = [_ratio(selected(group, method=name)[0]) for name in peers]
            body.append([layer, f"{1e3 * ours['seconds']:.0f} ms", *cells])
        for label, summary in (("median", median), ("minimum", min)):
            ratios = [
                f"{summary([row['ratio'] for row in selected(here, method=name)]):.3g}"
                for name in peers
            ]
            body.append([f"*{label}*", "", *ratios])
        text += f"k = {k}, tol {tol:g}:\n\n" + table(["layer", "svds", *peers], body) + "\n"
    return text


def _ratio(row: Row) -> str:
    bound = ">= " if row["lower_bound"] else ""
    return f"{bound}{row['ratio']:.3g}"


def _whole(rows: list[Row]) -> str:
    header = ["circular layer", "singular_values", "FFT + svdvals", "ratio", "difference / sigma_1"]
    body = [
        [
            row["layer"],
            f"{1e3 * row['seconds']:.0f} ms",
            f"{1e3 * row['fft_seconds']:.0f} ms",
            f"{row['ratio']:.3g}",
            f"{row['difference']:.0e}",
        ]
        for row in rows
    ]
    return "## Whole circular spectra\n\n" + table(header, body)


def _skipped(rows: list[Row]) -> str:
    if not rows:
        return ""
    header = ["part", "layer", "method", "k", "tol", "reason"]
    body = [
        [
            row["part"],
            row["layer"],
            row["method"],
            str(row["k"]),
            "" if row["tol"] is None else f"{row['tol']:g}",
            row["reason"],
        ]
        for row in rows
    ]
    return "## Left out\n\n" + table(header, body)
