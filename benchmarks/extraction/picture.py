"""The README's picture and table."""

from __future__ import annotations

from pathlib import Path

from benchmarks.common.pages import Row, between_marks, pyplot, save_picture

MARK = "<!-- benchmark table -->"

COMPARED = {
    "published PowerQR": ("PowerQR, as published", "#c44e52"),
    "PowerQR, our operator": ("PowerQR on our operator", "#dd8452"),
    "ARPACK": ("ARPACK (SciPy)", "#4c72b0"),
}


def with_table(text: str, results: Row) -> str:
    """A page with the table between its two marks."""
    return between_marks(text, MARK, readme_table(results))


def times(results: Row, k: int) -> dict[str, dict[str, Row]]:
    """Rows of the layers with sigma_1 = 2, by layer and method."""
    found: dict[str, dict[str, Row]] = {}
    for row in results["times"]:
        if row["initialization"] == "sigma_1 = 2" and row["k"] == k:
            found.setdefault(row["layer"], {})[row["method"]] = row
    return found


def draw(results: Row, path: Path) -> None:
    by_layer = times(results, 1)
    layers = list(by_layer)
    figure, axes = pyplot().subplots(figsize=(8.5, 0.42 * len(layers) + 1.2), layout="constrained")
    height = 0.26
    for offset, (method, (label, color)) in enumerate(COMPARED.items()):
        ratios = [by_layer[layer][method]["ratio"] for layer in layers]
        places = [index + (offset - 1) * height for index in range(len(layers))]
        axes.barh(places, ratios, height, label=label, color=color)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(layers)), layers)
    axes.invert_yaxis()
    axes.set_xscale("log")
    ticks = [1, 2, 5, 10, 20, 50]
    axes.set_xticks(ticks, [f"{tick}x" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(0.9, 60)
    axes.set_xlabel("time to the norm within 1e-3, as a multiple of spectralclip's (log scale)")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    save_picture(figure, path)


def readme_table(results: Row) -> str:
    one, five = times(results, 1), times(results, 5)
    threads = results["machine"]["threads"]
    lines = [
        "Time to the norm within 1e-3, and to five values within 1e-2, and how many times longer",
        f"the others take. One machine, threads: {threads}, weights scaled to sigma_1 = 2. PowerQR",
        "is stopped by an oracle, at the moment its true error is small enough.",
        "",
        "| layer | svds, k = 1 | PowerQR as published | ARPACK "
        "| svds, k = 5 | PowerQR as published | ARPACK |",
        "|---|---|---|---|---|---|---|",
    ]
    for layer in one:
        cells = [layer]
        for rows in (one[layer], five[layer]):
            cells.append(f"{1e3 * rows['svds']['seconds']:.0f} ms")
            cells += [_ratio(rows[method]) for method in ("published PowerQR", "ARPACK")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _ratio(row: Row) -> str:
    return f"{'>= ' if row['lower_bound'] else ''}{row['ratio']:.1f} x"
