"""A callback for Lightning's Trainer."""

from __future__ import annotations

import sys
from typing import Any, final

from spectralclip._common import missing_package
from spectralclip.integrations._callback import NormCallback

try:
    # The two packages are the same code twice: take the one that the program already uses.
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ImportError as error:
    raise missing_package(__name__, "lightning", "integrations", error) from error

__all__ = ["SpectralClipCallback"]


@final
class SpectralClipCallback(NormCallback, Callback):
    """Keeps the norms of a LightningModule's layers in check while a Trainer fits it.

    The method is attached when training starts, after optimizers have been configured and a
    checkpoint has been restored, to all optimizers. It is removed when training ends, by whatever
    cause. Its state is a part of Lightning's checkpoints, so that
    `trainer.fit(..., ckpt_path=...)` goes on exactly.

    For methods with a penalty, add `callback.penalty()` to the loss in `training_step`. Norms are
    sent to the Trainer's loggers, as often as the Trainer logs.

    The arguments are those of `spectralclip.integrations.NormCallback`; `example_inputs` is by
    default the module's own `example_input_array`, and layers have the names that they have in the
    LightningModule.

    Example:
        >>> import torch
        >>> from spectralclip.integrations.lightning import SpectralClipCallback
        >>> callback = SpectralClipCallback(torch.zeros(1, 1, 28, 28), finalize=True)
        >>> # trainer = lightning.Trainer(callbacks=[callback]); trainer.fit(module, batches)
        >>> callback.norms()
        {}
    """

    _own_inputs = "example_input_array"
    _restored: dict[str, Any] | None = None
    _steps_logged = 0

    @property
    def state_key(self) -> str:
        """Where its state is found in a checkpoint; callbacks with different methods differ."""
        return f"{type(self).__name__}[{type(self._method).__name__}]"

    def state_dict(self) -> dict[str, Any]:
        """Called by the Trainer for a checkpoint."""
        return self._state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called by the Trainer with what a checkpoint holds, before the training starts."""
        self._restored = state_dict

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Called before a checkpoint is read."""
        # Checkpoints are also read to validate and to test: no later fit is to go on from those.
        self._restored = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach."""
        # As the Trainer does with each batch: the module may be in half or double precision.
        convert = trainer.precision_plugin.convert_input
        self._start(pl_module, trainer.optimizers, self._restored, convert)
        self._restored, self._steps_logged = None, trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        """Log the norms, if there has been a step and the Trainer is to log it."""
        due = trainer.log_every_n_steps
        if not self._log or not due or trainer.global_step == self._steps_logged:
            return
        self._steps_logged = trainer.global_step
        # Where the Trainer puts this batch on the axis; optimizers that step in turns make
        # `global_step` run ahead of it.
        at = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", trainer.global_step)
        if (at + 1) % due == 0:
            # Not by `pl_module.log`, which takes its time for each of the layers.
            logged = self._logged()
            for logger in trainer.loggers:
                logger.log_metrics(logged, step=at)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Finalize if asked to, and remove."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Remove, and leave the weights as they are."""
        self.remove()
