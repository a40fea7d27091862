"""What all dashboards share: what is known of a run at a step, and when it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, final

from spectralclip._models import ExampleInputs
from spectralclip._training import Attachment

TAG = "spectral_norm"


@final
@dataclass(frozen=True)
class NormRecord:
    """What an attachment knows after a step, as plain numbers.

    Attributes:
        step: The number of steps done.
        norms: The norm of each layer, as of `Attachment.norms`.
        max_norms: The bound of each layer.
        pressures: The share of a step that clipping undoes, where it is known.
        network: The network's `bound`, `spread` and `gain`, as of `Attachment.report`; empty where
            they were not asked for.
        tag: What the names of the scalars begin with.
        heads: Of each attention layer, the largest norm of its heads' logit and value products, by
            `<layer>.logit` and `<layer>.value`; empty where they were not asked for. Heads that are
            held are among the layers too, one by one.
    """

    step: int
    norms: Mapping[str, float]
    max_norms: Mapping[str, float]
    pressures: Mapping[str, float]
    network: Mapping[str, float] = field(default_factory=dict)
    tag: str = TAG
    heads: Mapping[str, float] = field(default_factory=dict)

    def scalars(self) -> dict[str, float]:
        """The numbers by name, which is the same in every dashboard.

        `<tag>/<layer>` is a norm, `<tag>_bound/<layer>` its bound, `<tag>_pressure/<layer>` the
        pressure on the layer; `<tag>_network/bound`, `/spread` and `/gain` are the network's, and
        `<tag>_heads/<layer>.logit` and `.value` those of the heads of an attention layer.
        """
        groups = {
            self.tag: self.norms,
            f"{self.tag}_bound": self.max_norms,
            f"{self.tag}_pressure": self.pressures,
            f"{self.tag}_network": self.network,
            f"{self.tag}_heads": self.heads,
        }
        return {
            f"{group}/{name}": value
            for group, values in groups.items()
            for name, value in values.items()
        }


def record_of(
    attachment: Attachment,
    *,
    step: int | None = None,
    tag: str = TAG,
    inputs: ExampleInputs | None = None,
    heads: Mapping[str, float] | None = None,
) -> NormRecord:
    """What an attachment knows now, of the layers whose norms are known."""
    norms = {name: float(norm) for name, norm in attachment.norms().items()}
    bounds = {name: bound for name, bound in attachment.max_norms.items() if name in norms}
    network: dict[str, float] = {}
    if inputs is not None:
        report = attachment.report(inputs)
        known = {"bound": report.bound, "spread": report.spread, "gain": report.gain}
        network = {name: value for name, value in known.items() if value is not None}
    at = attachment.steps if step is None else step
    return NormRecord(at, norms, bounds, attachment.pressures(), network, tag, heads or {})


class NormWriter(Protocol):
    """Where norms go: an object of your own with this method is a dashboard too."""

    def write(self, record: NormRecord) -> None:
        """Write what is known after a step."""


def check_schedule(writer: object, every: object) -> None:
    """Refuse what cannot be written to, and what is no number of steps."""
    if not callable(getattr(writer, "write", None)):
        raise TypeError(
            f"writer must have a method write(record), such as CsvWriter(path), "
            f"TensorBoardWriter(summary_writer) or WandbWriter(run), got {writer!r}."
        )
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"every must be a positive number of steps, got {every!r}.")


@final
class NormLogger:
    """Writes norms, bounds and pressures to a dashboard every so many steps of a training loop.

    Args:
        writer: A `CsvWriter`, `TensorBoardWriter`, `WandbWriter` or `AcceleratorWriter`, or an
            object of your own whose `write` takes a `NormRecord`.
        attachment: What `attach` returned.
        every: How many steps of the optimizer lie between two entries.
        tag: What the names begin with, as in `NormRecord.scalars`.
        inputs: A batch for `Attachment.report`: write the network's bound, spread and gain too.

    Raises:
        TypeError: `writer` has no `write`, or `attachment` is something else.
        ValueError: `every` is no positive integer.

    Example:
        >>> import torch
        >>> import spectralclip as sc
        >>> from spectralclip.integrations import NormLogger
        >>> class Printer:
        ...     def write(self, record):
        ...         for name in record.scalars():
        ...             print(record.step, name)
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        >>> attachment = sc.attach(model, optimizer, torch.zeros(1, 8), max_norm=0.5)
        >>> logger = NormLogger(Printer(), attachment, every=2)
        >>> for _ in range(3):
        ...     loss = model(torch.randn(32, 8)).square().sum()
        ...     loss.backward()
        ...     optimizer.step()
        ...     logger.step()
        2 spectral_norm/0
        2 spectral_norm_bound/0
        2 spectral_norm_pressure/0
    """

    def __init__(
        self,
        writer: NormWriter,
        attachment: Attachment,
        *,
        every: int = 50,
        tag: str = TAG,
        inputs: ExampleInputs | None = None,
    ) -> None:
        """Write nothing yet."""
        check_schedule(writer, every)
        if not isinstance(attachment, Attachment):
            raise TypeError(f"attachment must be what attach returned, got {attachment!r:.80}.")
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
            self.write()

    def write(self, step: int | None = None) -> None:
        """Write now, unless no norm is known yet.

        Args:
            step: Where on the axis; by default the number of steps that have been followed.
        """
        if self._attachment.norms():
            record = record_of(self._attachment, step=step, tag=self._tag, inputs=self._inputs)
            self._writer.write(record)
