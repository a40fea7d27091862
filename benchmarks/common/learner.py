"""A network on its way, one step at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from benchmarks.common.images import Labelled, batches

SHARE_OF_LAST = 20  # the last twentieth of the steps is what a loss at the end is taken over


class Learner:
    """A network with its optimizer, schedule and batches.

    Args:
        model: In training mode.
        optimizer: Of its parameters.
        rates: Its schedule, stepped with it.
        loss: Of scores and labels.
        part: The images that are trained on.
        batch: How many at a time.
        seed: Of their order.
        shift: By how many pixels they are moved at most, besides being mirrored.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        rates: torch.optim.lr_scheduler.LRScheduler,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        part: Labelled,
        batch: int,
        seed: int,
        shift: int,
    ) -> None:
        self.model = model
        self._optimizer, self._rates, self._loss = optimizer, rates, loss
        self._batches: Iterator[tuple[Tensor, Tensor]] = batches(
            part, batch, torch.Generator().manual_seed(1000 + seed), shift
        )

    def step(self) -> float:
        """One batch, and its loss.

        Raises:
            ArithmeticError: The loss is no number any more.
        """
        images, labels = next(self._batches)
        self._optimizer.zero_grad()
        loss = self._loss(self.model(images), labels)
        loss.backward()
        self._optimizer.step()
        self._rates.step()
        value = loss.item()
        if not math.isfinite(value):
            raise ArithmeticError(f"the loss is {value} after {self._rates.last_epoch} steps")
        return value


def at_the_end(losses: Sequence[float]) -> float:
    """The mean of the last losses."""
    last = losses[-max(1, len(losses) // SHARE_OF_LAST) :]
    return sum(last) / len(last)
