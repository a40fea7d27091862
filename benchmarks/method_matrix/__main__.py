"""Which method holds which layer: `python -m benchmarks.method_matrix`.

Each method is attached to each small layer alone, whose norm is three times its bound, and taken
through steps with small random gradients until the layer is within the bound, its norm rests, or
the steps are used up. Then the method is removed and the true norm taken from the dense matrix in
float64. Writes all cells to one JSON file, and the page from it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from benchmarks.common.pages import page_file, write
from benchmarks.common.runs import limit_threads, load, results_file, save, surroundings
from benchmarks.method_matrix.readme import with_table
from benchmarks.method_matrix.render import page

if TYPE_CHECKING:
    from torch import nn

    from benchmarks.common.method_variants import Variant
    from benchmarks.method_matrix.cells import Cell
    from spectralclip import Attachment
    from spectralclip._training import Promise

SUMMARY = page_file("summary")
RESULTS = results_file("method_matrix")
REACHED = 1.01  # true norm over bound that counts as reached
READINGS = (1, 3, 10, 30, 100)  # steps after which the true norm is taken
RESTS = 1e-4  # a norm that changes by less from one reading to the next is what is left
LR, NOISE = 0.2, 1e-3  # of the optimizer, and the size of the gradients


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.method_matrix", description=__doc__)
    parser.add_argument("--render", action="store_true", help="write the page from the JSON only")
    parser.add_argument("--only", help="methods whose name begins so, printed and not stored")
    options = parser.parse_args()
    if options.only:
        for row in measured(options.only)[0]:
            print(json.dumps(row))
        return
    if not options.render:
        began = time.perf_counter()
        rows, missing = measured()
        results = {
            **surroundings(),
            "seconds": time.perf_counter() - began,
            "reached": REACHED,
            "steps": READINGS[-1],
            "variants": {name: list(one) for name, one in _variants("").items()},
            "missing": missing,
            "rows": rows,
        }
        save(results, RESULTS)
    stored = load(RESULTS)
    write(page(stored), page_file("methods"))
    SUMMARY.write_text(with_table(SUMMARY.read_text(), stored))


def _variants(beginning: str) -> dict[str, Variant]:
    from benchmarks.common.method_variants import variants

    return {name: one for name, one in variants().items() if name.startswith(beginning)}


def measured(beginning: str = "") -> tuple[list[dict[str, Any]], dict[str, str]]:
    """All cells of the methods whose name begins so, and the methods that cannot run here."""
    limit_threads()
    from benchmarks.method_matrix.cells import CELLS

    rows, missing = [], {}
    for name, variant in _variants(beginning).items():
        began = time.perf_counter()
        composed = variant.composes()
        cells = [c for c in CELLS if not composed or c.axes["kind"] == "conv + batch norm"]
        try:
            rows += [{"method": name, "cell": c.name, **_cell(variant, c)} for c in cells]
        except ImportError as error:
            missing[name] = str(error)
        print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return rows, missing


def _cell(variant: Variant, cell: Cell) -> dict[str, Any]:
    """What became of a layer, and of its estimate."""
    row: dict[str, Any] = {"axes": cell.axes, **_estimate(variant, cell)}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        row |= _outcome(variant, cell)
    row["warnings"] = sorted({str(one.message) for one in said})
    return row


def _outcome(variant: Variant, cell: Cell) -> dict[str, Any]:
    from torch import nn

    from benchmarks.method_matrix.cells import kernel_norm, true_norm

    model = nn.Sequential(*cell.modules())
    form = _form(model[0])
    try:
        steps, taken = _run(variant, cell, model)
    except ValueError as error:
        known = type(error).__name__ == "OutsideDomain" or "found no layer" in str(error)
        return {"outcome": "refused" if known else "failed", "message": str(error)}
    except ImportError:  # the method is left out
        raise
    except Exception as error:  # a cell that fails is a finding
        return {"outcome": "failed", "message": f"{type(error).__name__}: {error}"}
    norm = true_norm(model, cell.in_shape)
    if not math.isfinite(norm):
        return {"outcome": "failed", "message": "weights are not finite"}
    kernel = kernel_norm(model[0])
    return {
        "outcome": "reached" if norm <= REACHED else "above",
        "promise": _kept(_stated(variant, cell), norm, kernel, taken == [_whole(model)]),
        "norm": norm,
        "kernel_norm": kernel,
        "steps": steps,
        "taken": taken,
        "same_form": _form(model[0]) == form,
    }


def _form(module: nn.Module) -> tuple[Any, ...]:
    """All but the weight itself: its shape, and how it is applied."""
    names = ("padding_mode", "padding", "stride", "dilation", "groups")
    return tuple(module.weight.shape), [getattr(module, name, None) for name in names]


def _run(variant: Variant, cell: Cell, model: nn.Sequential) -> tuple[int, list[str]]:
    """Train beside the method until the layer is within its bound; the steps, and the layers."""
    import torch

    from benchmarks.method_matrix.cells import true_norm
    from spectralclip import attach

    model.train()
    for module in model[1:]:
        module.eval()  # statistics that move would hide what the method does
    if cell.axes["kind"] == "batch norm":
        model.eval()
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(4, *cell.in_shape, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    method = variant.make()
    attachment = attach(model, optimizer, inputs[:2], method=method, seed=1)
    promise, norm = _stated(variant, cell), math.inf
    # At the earliest: when the promise is due, and the method has worked at least once.
    least = max(1 if promise is None else promise.steps, getattr(method, "every", 1))
    penalized = attachment.penalty().requires_grad  # it moves the layer by gradients, and slowly
    for step in range(1, max(READINGS[-1], least) + 1):
        _step(model, optimizer, attachment, inputs, generator)
        if step in READINGS or step == least:
            before, norm = norm, true_norm(model, cell.in_shape)
            rests = step >= 10 and not penalized and abs(norm / before - 1) < RESTS
            if step >= least and (norm <= REACHED or rests):
                break
    taken = list(attachment.layers)
    attachment.remove()
    return step, taken


def _whole(model: nn.Sequential) -> str:
    """The name of all its layers as one."""
    return "+".join(str(index) for index in range(len(model)))


def _step(
    model: nn.Sequential, optimizer: Any, attachment: Attachment, inputs: Any, generator: Any
) -> None:
    import torch

    optimizer.zero_grad()
    outputs = model(inputs)
    pull = torch.randn(outputs.shape, generator=generator)
    (NOISE * (outputs * pull).mean() + attachment.penalty()).backward()
    optimizer.step()


def _stated(variant: Variant, cell: Cell) -> Promise | None:
    """What the method promises of the layer, with these settings."""
    from spectralclip.methods import get

    stated = [p for p in get(variant.method).promises if dict(p.settings) == variant.settings]
    return stated[0] if stated and stated[0].covers(cell.modules()[0]) else None


def _kept(promise: Promise | None, norm: float, kernel: float | None, whole: bool) -> str:
    """Whether a promise holds; it is about layers, and of a composition only if taken as one."""
    if promise is None or not whole:
        return "none"
    held = norm if promise.of == "norm" or kernel is None else kernel
    return "kept" if held <= 1 + promise.margin else "broken"


def _estimate(variant: Variant, cell: Cell) -> dict[str, Any]:
    """What the method takes for the norm, over the truth; or why it does not."""
    import torch

    from benchmarks.method_matrix.cells import START_NORM
    from spectralclip.methods import get

    estimate: Any = getattr(get(variant.method), "estimate", None)
    if not callable(estimate) or (variant.settings and "padding_form" not in variant.settings):
        return {"estimate": None, "no_estimate": "none, or as with its defaults"}
    modules = cell.modules()
    layer = modules[0] if len(modules) == 1 else modules
    settings = {k: v for k, v in variant.settings.items() if k in ("padding_form", "iterations")}
    try:
        generator = torch.Generator().manual_seed(2)
        found = estimate(layer, cell.in_shape, generator=generator, **settings)
    except Exception as error:
        return {"estimate": None, "no_estimate": f"{type(error).__name__}: {error}"}
    if found is None or found is NotImplemented:
        return {"estimate": None, "no_estimate": "it has none"}
    return {"estimate": float(found) / START_NORM, "no_estimate": ""}


if __name__ == "__main__":
    main()
