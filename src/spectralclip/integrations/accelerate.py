"""`attach` for training loops written with Hugging Face Accelerate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from spectralclip._clipping import Targets
from spectralclip._common import missing_package
from spectralclip._models import ExampleInputs, Pairs
from spectralclip._training import Attachment, Method, Schedule, attach
from spectralclip.integrations._callback import moved
from spectralclip.integrations._dashboard import NormRecord

try:
    from accelerate import Accelerator
except ImportError as error:
    raise missing_package(__name__, "accelerate", "integrations", error) from error

__all__ = ["AcceleratorWriter", "attach_accelerated"]


def attach_accelerated(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    example_inputs: ExampleInputs,
    *,
    method: Method | None = None,
    max_norm: Targets | None = None,
    max_lipschitz: float | None = None,
    proportions: Targets = 1.0,
    schedule: Schedule | None = None,
    pairs: Pairs = (),
    seed: int = 0,
    checkpoint: str | None = "spectralclip.pt",
) -> Attachment:
    """Keep norms in check in a loop whose model and optimizer `accelerator.prepare` has made.

    As `attach`, with the model and the optimizer inside Accelerate's wrappers, and as a part of
    what `accelerator.save_state` and `accelerator.load_state` write and read. Work is done
    where the optimizer really steps: not while gradients accumulate, and not where a step was
    skipped for infinite gradients.

    Args:
        accelerator: The one that prepared them.
        model: The prepared model.
        optimizer: The prepared optimizer, or several.
        example_inputs: As for `attach`; on any device.
        method: As for `attach`.
        max_norm: As for `attach`.
        max_lipschitz: As for `attach`.
        proportions: As for `attach`.
        schedule: As for `attach`.
        pairs: As for `attach`.
        seed: As for `attach`.
        checkpoint: The name of the state's file in a checkpoint's folder; several attachments
            need different ones. None to leave checkpoints alone.

    Example:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> from spectralclip.integrations.accelerate import attach_accelerated
        >>> accelerator = Accelerator(cpu=True)
        >>> model = torch.nn.Linear(8, 8)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        >>> model, optimizer = accelerator.prepare(model, optimizer)
        >>> attachment = attach_accelerated(
        ...     accelerator, model, optimizer, torch.zeros(1, 8), max_norm=0.5
        ... )
        >>> accelerator.backward(model(torch.randn(32, 8)).square().sum())
        >>> optimizer.step()
        >>> bool(torch.linalg.matrix_norm(model.weight, 2) <= 0.5001)
        True
    """
    attachment = attach(
        model,
        optimizer,
        moved(example_inputs, accelerator.device),
        method=method,
        max_norm=max_norm,
        max_lipschitz=max_lipschitz,
        proportions=proportions,
        schedule=schedule,
        pairs=pairs,
        seed=seed,
    )
    if checkpoint is not None:
        _keep_in_checkpoints(accelerator, attachment, checkpoint)
    return attachment


@final
class AcceleratorWriter:
    """Sends the scalars of a `NormRecord` to the trackers of an Accelerator.

    Args:
        accelerator: One whose trackers have been started by `init_trackers`.

    Example:
        >>> from accelerate import Accelerator
        >>> from spectralclip.integrations import NormRecord
        >>> from spectralclip.integrations.accelerate import AcceleratorWriter
        >>> accelerator = Accelerator(cpu=True)  # with log_with="tensorboard", for example
        >>> AcceleratorWriter(accelerator).write(NormRecord(7, {"conv": 0.9}, {"conv": 1.0}, {}))
    """

    def __init__(self, accelerator: Accelerator) -> None:
        """Log nothing yet."""
        self._accelerator = accelerator

    def write(self, record: NormRecord) -> None:
        """Log them, on the main process."""
        self._accelerator.log(record.scalars(), step=record.step)


def _keep_in_checkpoints(accelerator: Accelerator, attachment: Attachment, name: str) -> None:
    # Not by `register_for_checkpointing`, which reads with a pickle that may run code.
    def save(models: Any, weights: Any, output_dir: str) -> None:
        if attachment.is_removed:  # it has been removed, and the weights are all there is
            return
        state = attachment.state_dict()
        if accelerator.is_main_process:
            torch.save(state, Path(output_dir) / name)

    def load(models: Any, input_dir: str) -> None:
        if attachment.is_removed:
            return
        file = Path(input_dir) / name
        if not file.is_file():
            raise FileNotFoundError(
                f"{input_dir} has no {name!r}, the state of {attachment!r}: it was saved without "
                "it. Attach with checkpoint=None to load it all the same."
            )
        attachment.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
