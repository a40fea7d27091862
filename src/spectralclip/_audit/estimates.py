"""What methods take for the norm of each layer, beside the interval that certainly holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import torch
from torch import nn

from spectralclip._audit.describe import kind_of
from spectralclip._audit.layer import LayerAudit
from spectralclip._audit.record import Audit
from spectralclip._audit.rows import Row, find_rows
from spectralclip._audit.table import Column, Sheet, interval_text, row_name
from spectralclip._bounds import Interval
from spectralclip._common import Shape
from spectralclip._models import ExampleInputs, Survey, gathered, left_as_it_was, unwrapped
from spectralclip._operators import evaluation_mode, plain_numerics, unchanged_rng

Estimator: TypeAlias = Callable[..., "float | None"]
"""A function of a module and the shape of one input, with a `generator` by keyword."""

# An estimate that is off by less is not told from the interval: iterations end somewhere.
SLACK = 1e-3
# What a layer may do to an estimate: refuse it, or not be made for it.
_REFUSALS = (ValueError, TypeError, RuntimeError, AttributeError)


@final
@dataclass(frozen=True)
class EstimatedLayer:
    """One layer, and what each method takes for its norm."""

    name: str  # the module's name in the model
    kind: str  # its type
    in_shape: Shape  # of one input, where the norm is largest
    norm: Interval | None  # an interval that holds the norm; None where it could not be had
    estimates: Mapping[str, float] = field(default_factory=dict)  # by method
    # By method, why it has no estimate for this layer
    refusals: Mapping[str, str] = field(default_factory=dict)

    def side(self, method: str) -> str:
        """Where an estimate stands: "-" below the interval, "+" above, "" within or nowhere."""
        estimate = self.estimates.get(method)
        if estimate is None or self.norm is None:
            return ""
        if estimate < (1 - SLACK) * self.norm.lower:
            return "-"
        return "+" if estimate > (1 + SLACK) * self.norm.upper else ""


def compare_estimates(
    model: nn.Module,
    example_inputs: ExampleInputs,
    estimators: Mapping[str, Estimator],
    found: Audit,
    *,
    seed: int = 0,
) -> list[EstimatedLayer]:
    """Each estimate of the largest singular value of each layer, beside the audit's interval."""
    known = {layer.name: layer for layer in found.layers}
    rows = [row for row in find_rows(Survey.of(model, example_inputs)) if row.role == "layer"]
    with left_as_it_was(unwrapped(model)):
        return [_estimated(row, known.get(row.layer.name), estimators, seed) for row in rows]


def _estimated(
    row: Row, audited: LayerAudit | None, estimators: Mapping[str, Estimator], seed: int
) -> EstimatedLayer:
    module = gathered(row.layer.modules[0])
    in_shape, norm = (audited.in_shape, audited.norm) if audited else (row.shapes[0], None)
    estimates, refusals = dict[str, float](), dict[str, str]()
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    for name, estimate in estimators.items():
        try:
            with evaluation_mode([module]), plain_numerics(), unchanged_rng(device):
                generator = torch.Generator("cpu").manual_seed(seed)
                value: Any = estimate(module, in_shape, generator=generator)
        except _REFUSALS as error:
            # One odd layer is to spoil no comparison.
            refusals[name] = str(error) or type(error).__name__
            continue
        if value is None or value is NotImplemented:
            refusals[name] = "it has no estimate"
        else:
            estimates[name] = float(value)
    kind = kind_of(row.layer.modules)
    return EstimatedLayer(row.layer.name, kind, in_shape, norm, estimates, refusals)


def estimates_sheet(layers: Sequence[EstimatedLayer]) -> Sheet:
    """The comparison as a table; methods without any estimate are named below it."""
    methods = sorted({name for layer in layers for name in layer.estimates})
    silent = {name for layer in layers for name in layer.refusals}
    columns = [Column("layer", "left"), Column("kind", "left"), Column("norm")]
    columns += [Column(method) for method in methods]
    rows = [
        (
            row_name(layer.name),
            layer.kind,
            interval_text(layer.norm),
            *(_cell(layer, method) for method in methods),
        )
        for layer in layers
    ]
    footer = (
        f"Behind an estimate: - below the interval that holds the norm, + above it, by {SLACK:.1%} "
        "and more. No number: the method is not defined for the layer."
    )
    missing = sorted(silent.difference(methods))
    if missing:
        footer += f"\nFor no layer here: {', '.join(missing)}."
    return Sheet("estimates of the largest singular value", columns, rows, footer)


def _cell(layer: EstimatedLayer, method: str) -> str:
    """Four digits and the side, so that numbers stand under each other."""
    if method not in layer.estimates:
        return ""
    return f"{layer.estimates[method]:.4g}{layer.side(method) or ' '}"
