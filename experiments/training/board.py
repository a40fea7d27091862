"""Curves for TensorBoard, where somebody asks for them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "SPECTRALCLIP_TENSORBOARD"


class Board:
    """Writes each epoch to `<folder>/<run>`, if the environment variable names a folder.

    It is no setting of a run, since no result depends on it.
    """

    def __init__(self, run: str, first: int) -> None:
        """Begin, or go on before epoch `first`.

        Raises:
            ImportError: A folder is named, but TensorBoard is not installed.
        """
        self._writer: Any = None
        folder = os.environ.get(VARIABLE)
        if folder:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError(
                    f"{VARIABLE} is set, and needs TensorBoard: pip install tensorboard, or unset "
                    "it."
                ) from error
            # What a killed run wrote of later epochs would stand there twice.
            self._writer = SummaryWriter(str(Path(folder) / run), purge_step=first)

    def write(self, epoch: Mapping[str, Any]) -> None:
        """Add an epoch's numbers."""
        if self._writer is None:
            return
        for key in ("loss", "train_accuracy", "test_accuracy"):
            if epoch[key] is not None:
                self._writer.add_scalar(key, epoch[key], epoch["epoch"])
        for group in ("norms", "tracked"):
            for layer, norm in epoch[group].items():
                self._writer.add_scalar(f"{group}/{layer}", norm, epoch["epoch"])

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
