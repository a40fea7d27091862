"""A callback for Lightning's Trainer."""

from __future__ import annotations

import sys
from typing import Any, final

from torch import Tensor

from spectralclip._clipping import ClipResult, Targets
from spectralclip._models import ExampleInputs, Pairs
from spectralclip._training import Attachment, Method, Schedule
from spectralclip.integrations._missing import missing
from spectralclip.integrations._run import Certify, Run

try:
    # The two packages are the same code twice: take the one that the program already uses.
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ImportError as error:
    raise missing("lightning", error) from error

__all__ = ["SpectralClipCallback"]


@final
class SpectralClipCallback(Callback):
    """Keeps the norms of a LightningModule's layers in check while a Trainer fits it.

    The method is attached when training starts, after optimizers have been configured and a
    checkpoint has been restored, to all optimizers. It is removed when training ends, by whatever
    cause. Its state is a part of Lightning's checkpoints, so that
    `trainer.fit(..., ckpt_path=...)` goes on exactly.

    For methods with a penalty, add `callback.penalty()` to the loss in `training_step`.

    Args:
        method: One of `spectralclip.methods`, or your own.
        example_inputs: What the module's `forward` is called with, with the batch dimension: a
            tensor, a tuple of tensors, or a dict of them for keywords. By default the module's
            own `example_input_array`.
        max_norm: As for `attach`; layers have the names that they have in the LightningModule.
        schedule: As for `attach`.
        pairs: As for `attach`.
        seed: As for `attach`.
        finalize: End the training with a full `clip_` of each layer. Checkpoints that have been
            written before have the weights of before.
        certify: As for `Attachment.finalize`.
        log: Send the norms to the Trainer's loggers, as `spectral_norm/<layer>`, as often as the
            Trainer logs.

    Raises:
        TypeError: `method` is not a `Method`.
        ValueError: `certify` without `finalize`; later, in `fit`: there are no example inputs, or
            what `attach` raises.

    Example:
        >>> import torch
        >>> from spectralclip.integrations.lightning import SpectralClipCallback
        >>> from spectralclip.methods import SpectralClip
        >>> callback = SpectralClipCallback(
        ...     SpectralClip(), torch.zeros(1, 1, 28, 28), max_norm=1.0, finalize=True
        ... )
        >>> # trainer = lightning.Trainer(callbacks=[callback]); trainer.fit(module, batches)
        >>> callback.norms()
        {}
    """

    def __init__(
        self,
        method: Method,
        example_inputs: ExampleInputs | None = None,
        *,
        max_norm: Targets = 1.0,
        schedule: Schedule | None = None,
        pairs: Pairs = (),
        seed: int = 0,
        finalize: bool = False,
        certify: Certify = False,
        log: bool = True,
    ) -> None:
        """Take note of the settings; the method is attached when training starts."""
        super().__init__()
        self._run = Run(
            method,
            max_norm=max_norm,
            schedule=schedule,
            pairs=pairs,
            seed=seed,
            finalize=finalize,
            certify=certify,
        )
        self._example_inputs, self._log = example_inputs, log
        self._restored: dict[str, Any] | None = None
        self._steps_logged = 0

    @property
    def state_key(self) -> str:
        """Where its state is found in a checkpoint; callbacks with different methods differ."""
        return f"{type(self).__name__}[{type(self._run.method).__name__}]"

    @property
    def attachment(self) -> Attachment | None:
        """What is at work during `fit`, and None at other times."""
        return self._run.attachment

    @property
    def results(self) -> dict[str, ClipResult]:
        """What the latest finalization did, by layer."""
        return dict(self._run.results)

    def penalty(self) -> Tensor:
        """What to add to the loss in `training_step`; zero outside of training."""
        return self._run.penalty()

    def norms(self) -> dict[str, float]:
        """The latest norm of each layer, as of `Attachment.norms`."""
        return self._run.norms()

    def state_dict(self) -> dict[str, Any]:
        """Called by the Trainer for a checkpoint."""
        return self._run.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called by the Trainer with what a checkpoint holds, before the training starts."""
        self._restored = state_dict

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Called before a checkpoint is read."""
        # Checkpoints are also read to validate and to test: no later fit is to go on from those.
        self._restored = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach."""
        inputs = self._example_inputs
        if inputs is None:
            inputs = pl_module.example_input_array
        if inputs is None:
            raise ValueError(
                f"SpectralClipCallback has to run {type(pl_module).__name__} once to find its "
                "layers, and has no input for it: pass example_inputs to the callback, or set "
                "example_input_array in the module."
            )
        # As the Trainer does with each batch: the module may be in half or double precision.
        inputs = trainer.precision_plugin.convert_input(inputs)
        self._run.start(pl_module, inputs, trainer.optimizers, self._restored)
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
            norms = {f"spectral_norm/{name}": norm for name, norm in self.norms().items()}
            # Not by `pl_module.log`, which takes its time for each of the layers.
            for logger in trainer.loggers:
                logger.log_metrics(norms, step=at)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Finalize if asked to, and remove."""
        self._run.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Remove, and leave the weights as they are."""
        self._run.remove()
