"""Adapters side by side: what each does to its layers, and which clash when they are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, count
from typing import Any, final

from torch import Tensor, nn

from spectralclip._audit import Column, Sheet, document_of, interval_text, plain_table, to_text
from spectralclip._clipping import ClipResult
from spectralclip._common import shown_name, shown_reason
from spectralclip.integrations.adapters.adapter import Adapter, checked_size
from spectralclip.integrations.adapters.base import base_matrix, matched_keys
from spectralclip.integrations.adapters.live import base_weights
from spectralclip.integrations.adapters.measures import (
    Clash,
    UpdateMeasures,
    measure_base,
    measure_clash,
    measure_update,
)

FORMAT, VERSION = "spectralclip.adapters", 1

_COLUMNS = (
    Column("layer", "left"),
    Column("adapter", "left", 5),
    Column("what", "left", 2),
    Column("norm"),
    Column("Frobenius", dispensable=4),
    Column("eff. rank", dispensable=3),
)
_WHOSE = 1  # the column that one adapter does without
_BASE_COLUMNS = (
    Column("base"),
    Column("sum"),
    Column("angle", dispensable=6),
    Column("intruders", dispensable=7),
)
_CLASH_COLUMNS = (
    Column("layer", "left"),
    Column("adapters", "left", 1),
    Column("norms", dispensable=2),
    Column("sum"),
    Column("alignment", dispensable=3),
    Column("cosine", dispensable=4),
    Column("overlap out", dispensable=5),
    Column("overlap in", dispensable=6),
    Column("remark", "left"),
)


@final
@dataclass(frozen=True)
class AdapterReport:
    """What was measured of one or several adapters; printed, it is two tables.

    Attributes:
        adapters: Their names.
        updates: Each update of each adapter.
        clashes: For each layer that several of them change: each pair, and all together.
        left_out: What was not measured, and why.
        clipped: What clipping did, by layer, if it was asked for.
    """

    adapters: tuple[str, ...]
    updates: tuple[UpdateMeasures, ...]
    clashes: tuple[Clash, ...]
    left_out: dict[str, str]
    clipped: dict[str, ClipResult] = field(default_factory=dict)

    def __str__(self) -> str:
        """The tables as plain text."""
        return "\n\n".join(map(plain_table, self.sheets()))

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes, as a dictionary."""
        return document_of(FORMAT, self, VERSION)

    def to_json(self) -> str:
        """All of it as JSON text."""
        return to_text(self.to_dict())

    def sheets(self) -> list[Sheet]:
        """The tables before they are drawn."""
        with_base = any(one.base is not None for one in self.updates)
        skipped = [
            f"left out: {shown_name(name)}: {shown_reason(why)}"
            for name, why in self.left_out.items()
        ]
        largest = max(self.updates, key=_largest)
        footer = f"largest update: {_norm_text(largest)}, of {shown_name(largest.layer)}"
        columns = (*_COLUMNS, *(_BASE_COLUMNS if with_base else ()))
        shown = [at for at in range(len(columns)) if at != _WHOSE or len(self.adapters) > 1]
        rows = [_update_row(one, with_base) for one in self.updates]
        updates = Sheet(
            f"updates of {', '.join(self.adapters)}",
            [columns[at] for at in shown],
            [[row[at] for at in shown] for row in rows],
            "\n".join([footer, *skipped]),
        )
        return [updates, self._clash_sheet()] if self.clashes else [updates]

    def _clash_sheet(self) -> Sheet:
        counts = {word: sum(one.remark == word for one in self.clashes) for word in _WORDS}
        said = [f"{count} {word}" for word, count in counts.items() if count]
        footer = f"of {len(self.clashes)} sums: {', '.join(said) or 'none add up or cancel'}."
        return Sheet("when added", _CLASH_COLUMNS, list(map(_clash_row, self.clashes)), footer)


_WORDS = ("add up", "cancel")


def _largest(one: UpdateMeasures) -> float:
    return one.norm if one.norm_at is None else one.norm_at.upper


def _norm_text(one: UpdateMeasures) -> str:
    if one.norm_at is not None:
        return interval_text(one.norm_at)
    return f"{one.norm:.4g}{' (reshaped)' if one.is_reshaped else ''}"


def _update_row(one: UpdateMeasures, with_base: bool) -> tuple[str, ...]:
    sides, kernel = f"{one.shape[1]} -> {one.shape[0]}", "x".join(map(str, one.shape[2:]))
    what = f"{f'conv {kernel} ' if kernel else ''}{sides}, rank {one.rank}"
    numbers = f"{one.frobenius:.4g}", f"{one.effective_rank:.3g}"
    row = (shown_name(one.layer), one.adapter, what, _norm_text(one), *numbers)
    if not with_base:
        return row
    if one.base is None:
        return (*row, "-", "-", "", "")
    angle = f"{one.base.output_angles[0]:.0f}" if one.base.output_angles else ""
    return (
        *row,
        f"{one.base.norm:.4g}",
        f"{one.base.sum_norm:.4g}",
        angle,
        f"{one.base.intruders}",
    )


def _clash_row(one: Clash) -> tuple[str, ...]:
    pair = (one.cosine, one.output_overlap, one.input_overlap)
    return (
        shown_name(one.layer),
        " + ".join(one.adapters),
        ", ".join(f"{norm:.3g}" for norm in one.norms),
        f"{one.sum_norm:.4g}",
        f"{one.alignment:.2f}",
        *("" if value is None else f"{value:.2f}" for value in pair),
        one.remark,
    )


def report(
    adapters: Adapter | Sequence[Adapter],
    base: Mapping[str, Tensor] | nn.Module | None = None,
    *,
    k: int = 8,
    size: Sequence[int] | None = None,
) -> AdapterReport:
    """Measure adapters: each update, beside its base if there is one, and beside each other.

    Args:
        adapters: One, or several that may be added to the same model.
        base: Weights by key, as a `state_dict` or a file has them, read one by one; or the model
            that holds the adapters.
        k: How many singular values, and leading directions, to look at.
        size: Sides of the images that convolutions get, such as (32, 32). Without it the norms of
            their reshaped kernels are given, and named so.

    Raises:
        TypeError: Something is no `Adapter`.
        ValueError: Adapters or base do not fit each other.

    Example:
        >>> import torch
        >>> from spectralclip.integrations import adapters
        >>> A, B = torch.eye(2, 5), torch.eye(4, 2)
        >>> one = adapters.from_tensors({"fc.lora_A": A, "fc.lora_B": B}, name="one")
        >>> two = adapters.from_tensors({"fc.lora_A": A, "fc.lora_B": 2 * B}, name="two")
        >>> found = adapters.report([one, two], base={"fc.weight": torch.zeros(4, 5)})
        >>> found.clashes[0].sum_norm, found.clashes[0].remark
        (3.0, 'add up')
    """
    given = _by_name([adapters] if isinstance(adapters, Adapter) else list(adapters))
    if not given:
        raise ValueError("report needs an adapter, or several: got none.")
    if not k >= 1:
        raise ValueError(f"k: expected a number of directions of at least 1, got {k!r}.")
    size = checked_size(size, given.values())
    weights = base_weights(base) if isinstance(base, nn.Module) else base
    rows, left_out = [], {}
    for name, adapter in given.items():
        keys = {} if weights is None else matched_keys(adapter, weights)
        if weights is not None and not keys:
            raise ValueError(
                f"{name}: expected its layers in the base, such as {next(iter(adapter))!r}, "
                f"got {', '.join(list(weights)[:3])}: is it the model that it was made for?"
            )
        for layer, update in adapter.items():
            beside = None
            if weights is not None and layer in keys:
                matrix = base_matrix(update, weights, keys[layer])
                beside = measure_base(update, matrix, keys[layer], k=k, size=size)
            elif weights is not None:
                left_out[f"base of {layer}"] = "no such weight among those given"
            rows.append(measure_update(name, update, k=k, size=size, base=beside))
        where = f" of {name}" if len(given) > 1 else ""
        left_out |= {f"{part}{where}": why for part, why in adapter.left_out.items()}
    return AdapterReport(tuple(given), tuple(rows), tuple(_clashes(given, size)), left_out)


def _clashes(adapters: Mapping[str, Adapter], size: Sequence[int] | None) -> list[Clash]:
    found: list[Clash] = []
    for layer in dict.fromkeys(layer for one in adapters.values() for layer in one):
        there = [(name, one[layer]) for name, one in adapters.items() if layer in one]
        groups = list(combinations(there, 2))
        if len(there) > 2:
            groups.append(tuple(there))  # type: ignore[arg-type]
        found.extend(measure_clash(layer, group, size) for group in groups)
    return found


def _by_name(adapters: Sequence[Adapter]) -> dict[str, Adapter]:
    """Adapters of one name are told apart by numbers."""
    for one in adapters:
        if not isinstance(one, Adapter):
            raise TypeError(
                "report takes adapters, such as spectralclip.integrations.adapters.load(path), got "
                f"{one!r:.80}."
            )
    names = [adapter.name for adapter in adapters]
    found: dict[str, Adapter] = {}
    for adapter in adapters:
        name = adapter.name
        if names.count(name) > 1:
            numbered = (f"{name} ({number})" for number in count(1))
            name = next(one for one in numbered if one not in found and one not in names)
        found[name] = adapter
    return found
