"""Norms as curves and histograms, for TensorBoard and whatever writes like it."""

from __future__ import annotations

from typing import Any, Protocol, final

import numpy as np

from spectralclip.integrations._dashboard import NormRecord

__all__ = ["TensorBoardWriter"]


class _SummaryWriter(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...

    def add_histogram(self, tag: str, values: Any, global_step: int) -> Any: ...


@final
class TensorBoardWriter:
    """Writes the scalars of a `NormRecord` as curves, and two histograms over the layers.

    The histograms are `<tag>s` of the norms, and `<tag>s_over_bound` of what part of its bound each
    layer uses up; heads that are held count as layers.

    Args:
        writer: A `torch.utils.tensorboard.SummaryWriter`, or another object with its
            `add_scalar` and `add_histogram`.

    Example:
        >>> from spectralclip.integrations import NormRecord
        >>> from spectralclip.integrations.tensorboard import TensorBoardWriter
        >>> class Printer:
        ...     def add_scalar(self, tag, value, step):
        ...         print(step, tag, value)
        ...
        ...     def add_histogram(self, tag, values, step):
        ...         print(step, tag, len(values))
        >>> TensorBoardWriter(Printer()).write(NormRecord(7, {"conv": 0.9}, {"conv": 1.0}, {}))
        7 spectral_norm/conv 0.9
        7 spectral_norm_bound/conv 1.0
        7 spectral_norms 1
        7 spectral_norms_over_bound 1
    """

    def __init__(self, writer: _SummaryWriter) -> None:
        """Write nothing yet."""
        self._writer = writer

    def write(self, record: NormRecord) -> None:
        """Add a point to each curve, and the two histograms where there are layers."""
        for name, value in record.scalars().items():
            self._writer.add_scalar(name, value, record.step)
        if not record.norms:  # of heads alone
            return
        norms = np.array(list(record.norms.values()))
        bounds = np.array([record.max_norms[name] for name in record.norms])
        self._writer.add_histogram(f"{record.tag}s", norms, record.step)
        self._writer.add_histogram(f"{record.tag}s_over_bound", norms / bounds, record.step)
