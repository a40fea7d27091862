"""Attention heads in dashboards, whether or not anything holds them."""

from __future__ import annotations

import math
from typing import final

from torch import nn

from spectralclip import Head, attention_heads
from spectralclip._models import ExampleInputs
from spectralclip.integrations._dashboard import TAG, NormRecord, NormWriter, check_schedule


@final
class LargestHeads:
    """Of each attention layer, the largest norms of its heads' products, read when asked for.

    Raises:
        ValueError: The model has no head that is known.
    """

    def __init__(self, model: nn.Module, example_inputs: ExampleInputs) -> None:
        self._model, self._example_inputs = model, example_inputs
        found = attention_heads(model, example_inputs)
        self._names = list(_largest(found))
        if not self._names:
            why = "; ".join(dict.fromkeys(head.note for head in found.values() if head.note))
            raise ValueError(
                f"{type(model).__name__} has no attention head whose products are known"
                f"{f': {why}' if why else ''}. attention_heads(model, example_inputs) must find "
                "some; log the norms of layers with NormLogger instead."
            )

    def read(self) -> dict[str, float]:
        """The norms now, by `<layer>.logit` and `<layer>.value`; NaN if weights are not finite."""
        try:
            return _largest(attention_heads(self._model, self._example_inputs))
        except ValueError:  # a diverged run is to be seen in the dashboard, and not to end there
            return dict.fromkeys(self._names, math.nan)


def _largest(heads: dict[str, Head]) -> dict[str, float]:
    found: dict[str, float] = {}
    for head in heads.values():
        for kind, interval in (("logit", head.logit), ("value", head.value)):
            if interval is not None:
                name = f"{head.layer}.{kind}" if head.layer else kind
                found[name] = max(interval.upper, found.get(name, 0.0))
    return found


@final
class HeadLogger:
    """Writes the largest head norms of each attention layer to a dashboard every so many steps.

    Nothing has to be attached: the model is only looked at, as `attention_heads` does, in a forward
    pass of its own, and stays as it is. Where weights are sharded, every process has to call it.

    Args:
        writer: As for `NormLogger`.
        model: The model that is trained.
        example_inputs: As for `attention_heads`: tokens that differ, and at least four positions
            for rotary embeddings.
        every: How many steps lie between two entries.
        tag: What the names begin with, as in `NormRecord.scalars`.

    Raises:
        TypeError: `writer` has no `write`.
        ValueError: `every` is no positive integer, or the model has no head that is known.

    Example:
        >>> import torch
        >>> from spectralclip.integrations import HeadLogger
        >>> class Printer:
        ...     def write(self, record):
        ...         for name in record.scalars():
        ...             print(record.step, name)
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> logger = HeadLogger(Printer(), model, torch.zeros(1, 5, 8), every=2)
        >>> for _ in range(3):
        ...     model(torch.randn(4, 5, 8)).square().sum().backward()
        ...     optimizer.step()
        ...     logger.step()
        2 spectral_norm_heads/self_attn.logit
        2 spectral_norm_heads/self_attn.value
    """

    def __init__(
        self,
        writer: NormWriter,
        model: nn.Module,
        example_inputs: ExampleInputs,
        *,
        every: int = 50,
        tag: str = TAG,
    ) -> None:
        """See that there are heads; write nothing yet."""
        check_schedule(writer, every)
        self._writer, self._every, self._tag = writer, every, tag
        self._heads = LargestHeads(model, example_inputs)
        self._steps: int | None = None

    def step(self, step: int | None = None) -> None:
        """To be called once after each step of the optimizer.

        Args:
            step: The number of steps done, where the loop counts them, as in a resumed run; by
                default one more than at the last call.
        """
        at = (self._steps or 0) + 1 if step is None else step
        before = at - 1 if self._steps is None else self._steps
        self._steps = at
        if at // self._every > before // self._every:
            self.write()

    def write(self, step: int | None = None) -> None:
        """Write now.

        Args:
            step: Where on the axis; by default the number of steps done.
        """
        at = (self._steps or 0) if step is None else step
        self._writer.write(NormRecord(at, {}, {}, {}, tag=self._tag, heads=self._heads.read()))
