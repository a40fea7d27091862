"""Norms as curves and histograms, for TensorBoard and whatever writes like it."""

from __future__ import annotations

from typing import Any, Protocol, final

import numpy as np

from spectralclip._models import ExampleInputs
from spectralclip._training import Attachment

__all__ = ["NormLogger", "Writer", "log_norms"]


class Writer(Protocol):
    """What is needed of a `SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Add a point to the curve `tag`."""

    def add_histogram(self, tag: str, values: Any, global_step: int) -> Any:
        """Add a histogram."""


def log_norms(
    writer: Writer,
    attachment: Attachment,
    step: int | None = None,
    *,
    tag: str = "spectral_norm",
    inputs: ExampleInputs | None = None,
) -> None:
    """Write the norms that an attachment knows of.

    There is a curve `<tag>/<layer>` for each layer, one of its bound `<tag>_bound/<layer>`, one of
    the share of a step that clipping undoes, `<tag>_pressure/<layer>`, where it is known, and two
    histograms over the layers: `<tag>s` of the norms, and `<tag>s_over_bound` of what part of its
    bound each uses up. With `inputs`, three curves of the network besides: `<tag>_network/bound`,
    `/spread` and `/gain`, as of `Attachment.report`.

    Args:
        writer: A `torch.utils.tensorboard.SummaryWriter`, or another object with its
            `add_scalar` and `add_histogram`.
        attachment: What `attach` returned.
        step: Where on the axis; by default the number of steps that the attachment has followed.
        tag: What the names begin with.
        inputs: A batch for `Attachment.report`.

    Example:
        >>> import torch
        >>> from spectralclip import attach
        >>> from spectralclip.integrations.tensorboard import log_norms
        >>> from spectralclip.methods import SpectralClip
        >>> class Printer:
        ...     def add_scalar(self, tag, value, step):
        ...         print(step, tag)
        ...
        ...     def add_histogram(self, tag, values, step):
        ...         pass
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        >>> attachment = attach(model, optimizer, torch.zeros(1, 8), max_norm=0.5)
        >>> model(torch.randn(32, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> log_norms(Printer(), attachment)
        1 spectral_norm/0
        1 spectral_norm_bound/0
    """
    norms, bounds = attachment.norms(), attachment.max_norms
    if not norms:
        return
    at = attachment.steps if step is None else step
    for name, norm in norms.items():
        writer.add_scalar(f"{tag}/{name}", norm, at)
        writer.add_scalar(f"{tag}_bound/{name}", bounds[name], at)
    writer.add_histogram(f"{tag}s", np.array(list(norms.values())), at)
    shares = np.array([norm / bounds[name] for name, norm in norms.items()])
    writer.add_histogram(f"{tag}s_over_bound", shares, at)
    for name, pressure in attachment.pressures().items():
        writer.add_scalar(f"{tag}_pressure/{name}", pressure, at)
    if inputs is not None:
        report = attachment.report(inputs)
        known = {"bound": report.bound, "spread": report.spread, "gain": report.gain}
        for name, value in known.items():
            if value is not None:
                writer.add_scalar(f"{tag}_network/{name}", value, at)


@final
class NormLogger:
    """Writes norms every so many steps, from within a training loop.

    Args:
        writer: As for `log_norms`.
        attachment: As for `log_norms`.
        every: How many steps of the optimizer lie between two entries.
        tag: As for `log_norms`.
        inputs: As for `log_norms`.

    Raises:
        ValueError: `every` is not positive.

    Example:
        >>> # logger = NormLogger(SummaryWriter(), attachment, every=10), and in the loop:
        >>> # optimizer.step(); logger.step()
    """

    def __init__(
        self,
        writer: Writer,
        attachment: Attachment,
        *,
        every: int = 50,
        tag: str = "spectral_norm",
        inputs: ExampleInputs | None = None,
    ) -> None:
        """Write nothing yet."""
        if every < 1:
            raise ValueError(f"every must be a positive number of steps, got {every!r}.")
        self._writer, self._attachment, self._every = writer, attachment, every
        self._tag, self._inputs = tag, inputs
        # A resumed run does not write once more what was written before.
        self._written = attachment.steps // every

    def step(self) -> None:
        """To be called once in each round of the loop, after the optimizer's step."""
        due = self._attachment.steps // self._every
        # Rounds that only accumulate gradients do not count.
        if due > self._written:
            self._written = due
            log_norms(self._writer, self._attachment, tag=self._tag, inputs=self._inputs)
