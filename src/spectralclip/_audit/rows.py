"""The rows of an audit: which layers and chains a model has, and what is said of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias, final

from torch import Tensor, nn

from spectralclip._audit.describe import compensates, geometry_of, kind_of, remark_on
from spectralclip._audit.examine import Findings, Request, row_shape
from spectralclip._audit.layer import LayerAudit
from spectralclip._audit.work import Job
from spectralclip._bounds import Interval
from spectralclip._common import Shape
from spectralclip._models import BATCH_NORM, FoundLayer, Survey, distinct_shapes, gathered
from spectralclip._operators import Rows

Key: TypeAlias = tuple[int, ...]
"""A composition by the identities of its modules."""


class Row(NamedTuple):
    """A layer or chain, before it is examined, at shapes of one row where it acts on rows."""

    layer: FoundLayer
    role: Literal["layer", "chain"]
    shapes: tuple[Shape, ...]

    @property
    def batch_norms(self) -> list[nn.Module]:
        """The batch norms of a chain; none for others."""
        return [m for m in self.layer.modules if isinstance(m, BATCH_NORM) and self.role == "chain"]

    @property
    def without_batch_norm(self) -> tuple[nn.Module, ...]:
        """The rest of a chain that has batch norm in it; empty for others."""
        if not self.batch_norms:
            return ()
        return tuple(m for m in self.layer.modules if not isinstance(m, BATCH_NORM))


def find_rows(survey: Survey) -> list[Row]:
    """Each layer, and each chain after the last of its layers; pairs before longer chains."""
    layers = survey.layers("none")
    chains = {**survey.layers("conv_bn"), **survey.layers("chains")}
    after: dict[str, list[FoundLayer]] = {}
    for chain in chains.values():
        parts = [name for name in chain.name.split("+") if name in layers]
        if len(chain.modules) > 1 and parts:
            after.setdefault(parts[-1], []).append(chain)
    rows: list[Row] = []
    for name, layer in layers.items():
        rows.append(_row(layer, "layer"))
        rows += [_row(chain, "chain") for chain in after.get(name, [])]
    return rows


def _row(layer: FoundLayer, role: Literal["layer", "chain"]) -> Row:
    shapes = dict.fromkeys(row_shape(layer.modules, shape) for shape in layer.in_shapes)
    return Row(layer, role, tuple(shapes))


def key_of(modules: Sequence[nn.Module]) -> Key:
    return tuple(map(id, modules))


def jobs_for(rows: Sequence[Row], survey: Survey) -> dict[Key, Job]:
    """One job for each composition: the rows, and of chains the batch norms and the rest."""
    jobs = {
        key_of(row.layer.modules): Job(row.layer.name, row.layer.modules, row.shapes, True)
        for row in rows
    }
    for row in rows:
        rest = row.without_batch_norm
        if rest and key_of(rest) not in jobs:
            name = f"{row.layer.name} without batch norm"
            jobs[key_of(rest)] = Job(name, rest, row.shapes, False)
        for norm in row.batch_norms:
            if key_of((norm,)) not in jobs:  # it has no parameters
                shapes = distinct_shapes(survey.calls[norm])
                jobs[key_of((norm,))] = Job(survey.names[norm], (norm,), shapes, False)
    return jobs


def _counted(module: nn.Module) -> Iterable[Tensor]:
    """The parameters of a layer; of rows of one, these alone."""
    return [module.weight] if isinstance(module, Rows) else module.parameters()


@final
class Book:
    """What was found, by composition; intervals that nobody has asked for yet are added."""

    def __init__(self, findings: Mapping[Key, Findings], request: Request) -> None:
        self._findings = findings
        self._request = request

    def interval_of(self, modules: Sequence[nn.Module], in_shape: Sequence[int]) -> Interval:
        """The norm of a composition, from the book or computed now."""
        key, shape = key_of(modules), row_shape(modules, tuple(in_shape))
        known = self._findings.get(key)
        if known is not None and shape in known.intervals:
            return known.intervals[shape]
        return self._request.bounded([gathered(module) for module in modules], shape)[0]

    def layers(self, rows: Sequence[Row]) -> Iterator[tuple[str, LayerAudit | str]]:
        """For each row what is said of it, or why there is nothing to say."""
        chains = {
            id(module): row.layer.name
            for row in reversed(rows)
            for module in row.layer.modules
            if row.role == "chain"
        }
        for row in rows:
            findings = self._findings[key_of(row.layer.modules)]
            chain = chains.get(id(row.layer.modules[0]), "") if row.role == "layer" else ""
            yield row.layer.name, findings.error or self._layer(row, findings, chain)

    def _layer(self, row: Row, findings: Findings, chain: str) -> LayerAudit:
        layer, shape, norm = row.layer, findings.in_shape, findings.values[0]
        own = {id(p): p.numel() for module in layer.modules for p in _counted(module)}
        found = LayerAudit(
            name=layer.name,
            role=row.role,
            parts=tuple(layer.name.split("+")),
            kind=kind_of(layer.modules),
            geometry=geometry_of(layer.modules, shape, findings.out_shape),
            in_shape=shape,
            out_shape=findings.out_shape,
            uses=layer.uses,
            parameters=sum(own.values()),
            shared=layer.shared,
            norm=findings.intervals[shape],
            singular_values=findings.values,
            frobenius=findings.frobenius,
            frobenius_is_exact=findings.frobenius_is_exact,
            stable_rank=(findings.frobenius / norm) ** 2 if norm else 0.0,
            reshaped_norm=self._reshaped_norm(row, findings),
            batch_norm=self._batch_norm(row),
            linear=self._without_batch_norm(row, shape),
            compensates=False,
            remark="",
        )
        return replace(found, compensates=compensates(found), remark=remark_on(found, chain))

    def _reshaped_norm(self, row: Row, findings: Findings) -> float | None:
        """What torch would see of the one kernel, if there is one."""
        kernels = [row.layer.modules[place] for place in findings.kernels]
        found = self._findings.get(key_of(kernels)) if len(kernels) == 1 else None
        return None if found is None else found.reshaped_norm

    def _batch_norm(self, row: Row) -> float | None:
        """The product of the norms of a chain's batch norms."""
        found = [self._findings[key_of((norm,))] for norm in row.batch_norms]
        if not found or any(one.error for one in found):
            return None
        return math.prod(max(i.upper for i in one.intervals.values()) for one in found)

    def _without_batch_norm(self, row: Row, shape: Shape) -> float | None:
        findings = self._findings.get(key_of(row.without_batch_norm))
        return None if findings is None or findings.error else findings.norm(shape)
