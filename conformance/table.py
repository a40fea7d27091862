"""The table of `docs/conformance.md`: functions of this package and others, held against the suite.

`python -m conformance.table` runs them and writes `table.json`, after each function; with names,
those alone, and the others stay as they were. Then, and with `--render` alone, it writes the table
into the page.
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
from spectralclip.conformance import Report, load, run

FOLDER = Path(__file__).resolve().parent
RESULTS, PAGE = FOLDER / "table.json", FOLDER.parent / "docs" / "conformance.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
TOL = 1e-3
VERDICTS = ("right", "above", "below", "wrong", "raised")
GROUPS: tuple[tuple[str, Callable[[], dict[str, Any]]], ...] = (
    ("this package", ours),
    ("other packages", others),
    ("methods of the literature", published),
)


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
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{name}: {report.conclusion}", flush=True)


def _summary(report: Report) -> dict[str, Any]:
    kinds = dict.fromkeys(one.kind for one in report.outcomes)
    answered = [one for one in report.outcomes if one.lower is not None]
    ratios = [one.ratio for one in answered if one.ratio is not None and one.truth > 0]
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
    for group, _ in GROUPS:
        rows = {name: one for name, one in results.items() if one["group"] == group}
        if rows:
            blocks.append("\n".join([*_head(next(iter(rows.values())), group), *_rows(rows)]))
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
    if sys.argv[1:] != ["--render"]:
        measure(sys.argv[1:])
    render()
