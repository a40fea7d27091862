"""The page of bounds from a run's JSON."""

from __future__ import annotations

from benchmarks.common.pages import Row, at_least, at_most, selected, table, targets


def figures(rows: list[Row]) -> list[Row]:
    """The targets, each with what was measured."""
    random = selected(rows, kind="probabilistic", asked="default")
    at_size = [row for row in rows if row["asked"] != "every size"]
    cholesky = selected(rows, layer="64->64 reflect n16", kind="cholesky")
    certificate = "Cholesky, 64 channels n = 16 reflect"
    widths = [row["upper"] / row["lower"] for row in random]

    def entries(key: str, of: list[Row]) -> list[float]:
        return [row[key] for row in of]

    found = [
        at_most("probabilistic at failure 1e-6: pairs, most", 80, entries("pairs", random)),
        at_most("probabilistic: upper / lower end, largest", 1.01, widths),
        at_most(
            "zero padding, n >= 16: upper / truth, largest",
            1.005,
            entries("upper", selected(rows, kind="embedding")),
        ),
        at_most(f"{certificate}: upper / truth", 1.0002, entries("upper", cholesky)),
        at_most(f"{certificate}: CPU seconds", 15, entries("seconds", cholesky)),
        at_least("upper / truth, smallest", 1, entries("upper", rows)),
        at_most("lower / truth, largest", 1.00001, entries("lower", at_size)),
    ]
    return [row for row in found if row is not None]


def render(results: Row) -> str:
    versions, machine = results["versions"], results["machine"]
    lines = [
        "# Bounds",
        "",
        "Made by `python -m benchmarks.bounds`; do not edit. Layers as torch initializes them,",
        f"in float32. Threads: 1. Machine: {machine['cpu']}, {machine['cores']} cores.",
        f"Versions: torch {versions['torch']}, NumPy {versions['numpy']}, Python",
        f"{versions['python']}.",
        "",
        "A *pair* is one vector through `M` and one through `M^T`. Ends are given over the true",
        "norm, which ARPACK or a dense decomposition finds in float64; for *every size* over the",
        "norm at one size. CPU seconds, one run.",
        "",
        targets(results["figures"], 6),
        table(
            ["layer", "asked for", "kind", "failure", "lower end", "upper end", "pairs", "seconds"],
            [
                [
                    row["layer"],
                    row["asked"],
                    row["kind"],
                    f"{row['failure']:g}",
                    f"{row['lower']:.5f}",
                    f"{row['upper']:.5f}",
                    f"{row['pairs']:g}",
                    f"{row['seconds']:.2f}",
                ]
                for row in results["rows"]
            ],
        ),
    ]
    return "\n".join(lines)
