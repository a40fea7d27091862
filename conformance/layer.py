"""A layer of the suite: its weight, and how it slides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Layer:
    """A layer without a bias, as torch would have it; one entry for each spatial axis."""

    name: str
    kind: str  # which part of the suite it belongs to
    weight: Any  # in torch's order, float32
    in_shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: Pads = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    padding_mode: str = "zeros"
    output_padding: tuple[int, ...] | None = None  # of transposed convolutions
    out_shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", np.ascontiguousarray(self.weight, dtype=np.float32))
        object.__setattr__(self, "out_shape", self._out_shape())

    @property
    def axes(self) -> int:
        return self.weight.ndim - 2

    @property
    def transposed(self) -> bool:
        return self.output_padding is not None

    @property
    def module(self) -> str:
        """The name of torch's class."""
        if self.axes == 0:
            return "Linear"
        return f"{'ConvTranspose' if self.transposed else 'Conv'}{self.axes}d"

    def _out_shape(self) -> tuple[int, ...]:
        if self.axes == 0:
            return (self.weight.shape[0],)
        ends = zip(self.in_shape[1:], self.padding, self.extents, self.stride, strict=True)
        if self.output_padding is None:
            sides = [(n + low + high - reach) // s + 1 for n, (low, high), reach, s in ends]
            return (self.weight.shape[0], *sides)
        sides = [
            (n - 1) * s - low - high + reach + extra
            for (n, (low, high), reach, s), extra in zip(ends, self.output_padding, strict=True)
        ]
        return (self.weight.shape[1] * self.groups, *sides)

    @property
    def extents(self) -> list[int]:
        """How many positions a window spans on each axis."""
        taps = zip(self.dilation, self.weight.shape[2:], strict=True)
        return [d * (k - 1) + 1 for d, k in taps]

    def record(self) -> dict[str, Any]:
        """What the document says of it, its norm aside."""
        record: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "module": self.module,
            "in_shape": list(self.in_shape),
            "out_shape": list(self.out_shape),
            "kernel_size": list(self.weight.shape[2:]),
            "stride": list(self.stride),
            "padding": [list(pair) for pair in self.padding],
            "padding_mode": self.padding_mode,
            "dilation": list(self.dilation),
            "groups": self.groups,
        }
        if self.output_padding is not None:
            record["output_padding"] = list(self.output_padding)
        return record
