"""Norms in a run of Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from spectralclip.integrations._dashboard import NormRecord

if TYPE_CHECKING:
    import wandb

__all__ = ["WandbWriter"]


@final
class WandbWriter:
    """Logs the scalars of a `NormRecord` to a run, over steps of the optimizer.

    The charts have an axis of their own, `<tag>_step`: what else the run logs, and how often, does
    not matter to them, nor they to it.

    Args:
        run: What `wandb.init` returned, online or offline.

    Example:
        >>> from spectralclip.integrations.wandb import WandbWriter
        >>> # run = wandb.init(mode="offline")
        >>> # logger = NormLogger(WandbWriter(run), attachment), and in the loop:
        >>> # optimizer.step(); logger.step()
    """

    def __init__(self, run: wandb.Run) -> None:
        """Log nothing yet."""
        self._run = run
        self._axes: set[str] = set()

    def write(self, record: NormRecord) -> None:
        """Log one row."""
        axis = f"{record.tag}_step"
        if axis not in self._axes:
            self._run.define_metric(axis, hidden=True)
            for group in ("", "_bound", "_pressure", "_network", "_heads"):
                self._run.define_metric(f"{record.tag}{group}/*", step_metric=axis)
            self._axes.add(axis)
        self._run.log({axis: record.step, **record.scalars()})
