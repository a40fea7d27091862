"""The table of `docs/conformance.md`: functions of this package and others, held against the suite.

`python -m conformance.table` runs them and writes `table.json`, after each function; with names,
those alone, and the others stay as they were. Then, and with `--render` alone, it writes the table
into the page. `--failures` looks again at what is known to go wrong.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from conformance.peers import others, ours, published
from spectralclip import norm_bounds
from spectralclip.integrations.conformance import Report, load, run

FOLDER = Path(__file__).resolve().parent
RESULTS, PAGE = FOLDER / "table.json", FOLDER.parent / "docs" / "conformance.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
TOL = 1e-3
VERDICTS = ("right", "above", "below", "wrong", "raised")
GROUPS: tuple[tuple[str, Callable[[], dict[str, Any]]], ...] = (
    ("this package", ours),
    ("other packages", others),
    ("`spectralclip.methods`", published),
)


# What is known to go wrong, each on a layer that shows it: the function, the layer, and why.
FAILURES = (
    ("torch", "blur-circular", "takes the kernel for a matrix; here its nine taps add up"),
    ("torch", "one-pixel", "the same; here eight of nine taps see padding alone"),
    ("torch", "huge-conv2d", "squares leave the range of float32"),
    ("orthogonium", "conv2d-zeros-s1-d1-g2", "multiplies the norms of groups"),
    ("orthogonium", "depthwise", "the same, with twelve groups"),
    ("orthogonium", "huge-conv2d", "squares leave the range of float32"),
    ("deel-torchlip", "conv2d-reflect-s2-d2-g2", "its factor for windows is that of zero padding"),
    ("deel-torchlip", "kernel-is-the-image", "the factor counts windows that overlap; here is one"),
    ("`methods.sedghi`", "conv2d-reflect-s1-d1-g1", "takes every padding for a circular one"),
    ("`methods.delattre`", "conv2d-reflect-s1-d1-g1", "the same, in its circular form"),
    ("`methods.miyato`", "edges-circular", "takes the kernel for a matrix, as published"),
)


def measure_failures() -> None:
    """What functions return where they are known to fail, and beside it our own interval."""
    layers = {layer.name: layer for layer in load()}
    functions = {**others(), **published()}
    rows = []
    for start, layer, why in FAILURES:
        name = next(name for name in functions if name.startswith(start))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (theirs,) = run(functions[name], [layers[layer]], tol=TOL).outcomes
            (held,) = run(norm_bounds, [layers[layer]], tol=TOL).outcomes
        returned = "NaN" if theirs.verdict == "wrong" else f"{theirs.upper:.4g}"
        ends = f"{held.lower:.4g} .. {held.upper:.4g}"
        rows.append([name, f"`{layer}`", returned, f"{theirs.truth:.4g}", ends, why])
    RESULTS.write_text(json.dumps(_read() | {"failures": rows}, indent=1) + "\n")


def measure(names: list[str]) -> None:
    layers, results = load(), _read()
    for group, functions in GROUPS:
        for name, function in functions().items():
            if names and not any(one in name for one in names):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of other packages
                report = run(function, layers, tol=TOL)
            results[name] = {"group": group} | _summary(report)
            RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
            print(f"{name}: {report.conclusion}", flush=True)


def _summary(report: Report) -> dict[str, Any]:
    kinds = dict.fromkeys(one.kind for one in report.outcomes)
    answered = [one for one in report.outcomes if one.lower is not None]
    numbers = [one for one in answered if one.verdict != "wrong" and one.truth > 0]
    ratios = [one.ratio for one in numbers if one.ratio is not None]
    return {
        "counts": {verdict: report.count(verdict) for verdict in VERDICTS},
        "right by kind": {kind: report.count("right", kind) for kind in kinds},
        "layers by kind": Counter(one.kind for one in report.outcomes),
        "upper": sum(one.meets("upper") for one in answered),
        "lower": sum(one.meets("lower") for one in answered),
        "answered": len(answered),
        "ratios": [min(ratios), max(ratios)] if ratios else None,
        "seconds": round(sum(one.seconds for one in report.outcomes), 2),
    }


def _read() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def render() -> None:
    results = _read()
    blocks = []
    failures = results.pop("failures", [])
    for group, _ in GROUPS:
        rows = {name: one for name, one in results.items() if one["group"] == group}
        if rows:
            blocks.append("\n".join([*_head(next(iter(rows.values())), group), *_rows(rows)]))
    head = ["function", "layer", "returns", "norm", "`norm_bounds`", "why"]
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *failures)]
    lines.insert(1, "|---" * len(head) + "|")
    blocks.append("\n".join(["What is known to go wrong:", "", *lines]))
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n\n".join(blocks) + f"\n\n{END}{after}")


def _head(first: dict[str, Any], group: str) -> list[str]:
    kinds = [f"{kind} ({count})" for kind, count in first["layers by kind"].items()]
    heads = [group, *VERDICTS, "smallest", "largest", "upper bound", "seconds", *kinds]
    return ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]


def _rows(results: dict[str, Any]) -> list[str]:
    rows = []
    for name, one in results.items():
        ends = [f"{ratio:.3g}" for ratio in one["ratios"]] if one["ratios"] else ["", ""]
        bound = f"{one['upper']} of {one['answered']}"
        counts = [str(one["counts"][verdict] or "") for verdict in VERDICTS]
        right = [str(count or "") for count in one["right by kind"].values()]
        cells = [name, *counts, *ends, bound, f"{one['seconds']:.1f}", *right]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["--failures"]:
        measure_failures()
    elif sys.argv[1:] != ["--render"]:
        measure(sys.argv[1:])
        measure_failures()
    render()
