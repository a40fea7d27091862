"""README's picture and table, from the JSON alone: `python -m benchmarks.extraction.picture`."""

from __future__ import annotations

import json
import re
from typing import Any

from benchmarks.extraction.render import RESULTS, ROOT

PICTURE = ROOT / "docs" / "images" / "extraction.png"
README = ROOT / "README.md"
MARK = "<!-- benchmark table -->"
Row = dict[str, Any]

COMPARED = {
    "published PowerQR": ("PowerQR, as published", "#c44e52"),
    "PowerQR, our operator": ("PowerQR on our operator", "#dd8452"),
    "ARPACK": ("ARPACK (SciPy)", "#4c72b0"),
}


def main() -> None:
    results = json.loads(RESULTS.read_text())
    draw(results)
    text = README.read_text()
    table = f"{MARK}\n\n{readme_table(results)}\n{MARK}"
    pattern = re.compile(f"{MARK}.*{MARK}|{MARK}", re.DOTALL)
    README.write_text(pattern.sub(lambda _: table, text, count=1))


def times(results: Row, k: int) -> dict[str, dict[str, Row]]:
    """Rows of the layers with sigma_1 = 2, by layer and method."""
    found: dict[str, dict[str, Row]] = {}
    for row in results["times"]:
        if row["initialization"] == "sigma_1 = 2" and row["k"] == k:
            found.setdefault(row["layer"], {})[row["method"]] = row
    return found


def draw(results: Row) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    by_layer = times(results, 1)
    layers = list(by_layer)
    figure, axes = plt.subplots(figsize=(8.5, 0.42 * len(layers) + 1.2), layout="constrained")
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
    axes.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)


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


if __name__ == "__main__":
    main()
