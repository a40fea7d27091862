"""The page of the method matrix, from its JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.common.pages import Row, one_line, table

INTRODUCTION = """\
# Which method holds which layer

Made by `python -m benchmarks.method_matrix`; do not edit. {cells} small layers, {methods} methods
and settings, {seconds:.0f} s on one thread. Versions: torch {torch}, NumPy {numpy}, Python
{python}, spectralclip {spectralclip}.

Each layer stands alone, with 4 channels on 6x6 images unless it says otherwise, and is scaled to
a norm of 3, where its bound is 1. A method is attached and trained beside, with gradients that
hardly move the layer, until the true norm is within {reached} of the bound, for {steps} steps at
most, or for as many as its promise asks for; then it is removed. *The number is the true norm that
is left*, over the bound, from the layer's dense matrix in float64.

| sign | meaning |
| --- | --- |
| `=` | the true norm is reached: at most {reached} times the bound |
| `>` | the method is done, and the true norm is still above |
| `*` | behind one of these: the method promises something of this layer, and keeps it |
| `!` | behind one of these: it breaks its promise |
| `~` | behind one of these: another layer is left, circular, its kernel spread over the image |
| - | refused: the method is not for this layer, and says so |
| failed | an error, or weights that are not finite |

A kept promise beside `>` is no contradiction: not every method promises the true norm (Miyato et
al. speak of the kernel as a matrix). Numbers well below one mean that a method takes away more
than the bound asks for. What `finalize()` does for every method at the end, an exact clip, is not
in these tables.
"""

ESTIMATES = """\
## What each method takes for the norm

Its estimate, over the true norm, of the same layers before anything is done to them; below one
it is too small. An empty place: it has none for this layer.
"""


def page(results: Row) -> str:
    rows = results["rows"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    head = INTRODUCTION.format(
        **results["versions"],
        cells=len(cells),
        methods=len(methods),
        seconds=results["seconds"],
        reached=results["reached"],
        steps=results["steps"],
    )
    by_place = {(row["method"], row["cell"]): row for row in rows}
    whole = [m for m in methods if (m, cells[0]) in by_place]  # the others are for compositions
    with_estimate = list(dict.fromkeys(row["method"] for row in rows if row["estimate"]))
    sections = [
        head,
        _summary(rows, methods),
        "## Paddings and strides, 3x3\n\n" + _grid(by_place, whole, _padded(cells), _cell_text),
        "## Kernels, groups and dilation\n\n" + _grid(by_place, whole, KERNELS, _cell_text),
        "## Other layers, and convolution with batch norm\n\n" + COMPOSED,
        _grid(by_place, methods, OTHERS, _cell_text),
        "## The whole product\n\n" + PRODUCT + _product(rows, whole),
        ESTIMATES,
        _grid(by_place, with_estimate, _padded(cells), _estimate_text),
        _grid(by_place, with_estimate, {**KERNELS, **OTHERS}, _estimate_text),
        _failures(rows),
        _missing(results["missing"]),
        _settings(results["variants"]),
    ]
    return "\n".join(section for section in sections if section)


KERNELS = {
    "1x1": "1x1, zeros, stride 1",
    "1x1 /2": "1x1, zeros, stride 2",
    "5x5": "5x5, zeros, stride 1",
    "5x5 circular": "5x5, circular, stride 1",
    "groups 2": "3x3, zeros, stride 1, groups 2",
    "depthwise": "depthwise",
    "dilation 2": "3x3, zeros, stride 1, dilation 2",
    "circular, dilation 2": "3x3, circular, stride 1, dilation 2",
    "no padding": "no padding",
    "circular, padding 2": "circular, padding 2",
}
OTHERS = {
    "dense, wide": "dense 12 to 6",
    "dense, tall": "dense 6 to 12",
    "1d zeros": "1d, zeros",
    "1d circular": "1d, circular",
    "transposed": "transposed, stride 1",
    "transposed /2": "transposed, stride 2",
    "batch norm": "batch norm",
    "conv + BN": "conv + batch norm, zeros",
    "conv + BN circular": "conv + batch norm, circular",
    "conv + BN reflect": "conv + batch norm, reflect",
}
COMPOSED = """\
With batch norm the number is the norm of both as one map, whose bound is 1, whether the method
bounds them as one, each by itself, or one of them.
"""
PRODUCT = """\
Of all convolutions with a value of an axis, how many reach the true norm, of those that the method
does not refuse.

"""


def _padded(cells: Sequence[str]) -> dict[str, str]:
    """Columns "zeros", "zeros /2", ..."""
    found = {}
    for padding in ("zeros", "circular", "reflect", "replicate"):
        for stride in (1, 2, 3):
            name = f"3x3, {padding}, stride {stride}"
            if name in cells:
                found[f"{padding} /{stride}" if stride > 1 else padding] = name
    return found


def _grid(
    by_place: dict[tuple[str, str], Row],
    methods: Sequence[str],
    columns: dict[str, str],
    text: Callable[[Row], str],
) -> str:
    body = [
        [
            name,
            *(
                text(by_place[name, cell]) if (name, cell) in by_place else ""
                for cell in columns.values()
            ),
        ]
        for name in methods
    ]
    return table(["method", *columns], body)


def _cell_text(row: Row) -> str:
    if row["outcome"] in ("refused", "failed"):
        return "-" if row["outcome"] == "refused" else "failed"
    sign = "=" if row["outcome"] == "reached" else ">"
    mark = {"kept": "*", "broken": "!", "none": ""}[row["promise"]]
    mark += "" if row["same_form"] else "~"
    return f"`{sign}{mark}` {row['norm']:.3g}"


def _estimate_text(row: Row) -> str:
    return "" if row["estimate"] is None else f"{row['estimate']:.3f}"


def _summary(rows: Sequence[Row], methods: Sequence[str]) -> str:
    header = [
        "method",
        "reached",
        "above",
        "refused",
        "failed",
        "promise kept",
        "largest norm left",
    ]
    body = []
    for name in methods:
        own = [row for row in rows if row["method"] == name]
        count = Counter(row["outcome"] for row in own)
        promises = Counter(row.get("promise", "none") for row in own)
        made = promises["kept"] + promises["broken"]
        norms = [row["norm"] for row in own if "norm" in row]
        body.append(
            [
                name,
                *(str(count[outcome]) for outcome in ("reached", "above", "refused", "failed")),
                f"{promises['kept']} of {made}" if made else "none made",
                f"{max(norms):.3g}" if norms else "",
            ]
        )
    return "## At a glance\n\nNumbers of layers.\n\n" + table(header, body)


def _product(rows: Sequence[Row], methods: Sequence[str]) -> str:
    axes = {
        "padding": ("zeros", "circular", "reflect", "replicate"),
        "stride": (1, 2, 3),
        "kernel": (1, 3, 5),
        "groups": (1, 2),
        "dilation": (1, 2),
    }
    columns = [(axis, value) for axis, values in axes.items() for value in values]
    header = [str(value) if axis == "padding" else f"{axis} {value}" for axis, value in columns]
    body = []
    for name in methods:
        own = [r for r in rows if r["method"] == name and r["axes"]["kind"] == "conv2d"]
        body.append([name, *(_share(own, axis, value) for axis, value in columns)])
    return table(["method", *header], body)


def _share(rows: Sequence[Row], axis: str, value: object) -> str:
    taken = [row for row in rows if row["axes"][axis] == value and row["outcome"] != "refused"]
    reached = sum(row["outcome"] == "reached" for row in taken)
    return f"{reached} of {len(taken)}" if taken else "-"


def _failures(rows: Sequence[Row]) -> str:
    failed = [row for row in rows if row["outcome"] == "failed"]
    if not failed:
        return ""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in failed:
        groups.setdefault((row["method"], one_line(row["message"], 160)), []).append(row["cell"])
    body = [
        [method, f"{cells[0]}, and {len(cells) - 1} more" if cells[1:] else cells[0], message]
        for (method, message), cells in groups.items()
    ]
    return "## Failures\n\n" + table(["method", "layers", "what was said"], body)


def _missing(missing: dict[str, str]) -> str:
    if not missing:
        return ""
    body = [[name, one_line(why, 160)] for name, why in missing.items()]
    return "## Left out\n\n" + table(["method", "why"], body)


def _settings(variants: dict[str, list[Any]]) -> str:
    body = [
        [name, ", ".join(f"`{key}={value!r}`" for key, value in settings.items()) or "defaults"]
        for name, (_, settings) in variants.items()
    ]
    return "## Settings\n\n" + table(["method", "settings"], body)
