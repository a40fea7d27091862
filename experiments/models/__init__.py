"""The networks of the study, plain: whatever keeps their norms in check comes from outside."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from experiments.models._parts import ImageData, Inputs
from experiments.models.dla import DLA
from experiments.models.normalize import Normalize
from experiments.models.resnet18 import ResNet18
from experiments.models.scaled import Scaled
from experiments.models.small import SETTINGS, USUAL, SmallNetwork
from spectralclip.nn import CenterNorm, ScalarBatchNorm, replace_batch_norms_

__all__ = ["NAMES", "ImageData", "Inputs", "Norm", "Normalize", "build"]

NAMES = ("small", "resnet18", "dla")
Norm = Literal["batch", "center", "scalar"]
_FITTING: dict[str, type[CenterNorm] | type[ScalarBatchNorm]] = {
    "center": CenterNorm,
    "scalar": ScalarBatchNorm,
}


def build(
    name: str,
    *,
    width: int,
    batch_norm: bool,
    dataset: ImageData,
    seed: int,
    setting: int | None = None,
    norm: Norm = "batch",
    score_scale: float = 1.0,
) -> nn.Module:
    """Make a network with weights from a seed. It takes pixels from 0 to 1.

    Its first layer is called `normalize`, its last one `linear`.

    Args:
        name: "small", "resnet18" or "dla".
        width: Channels of its first part; 64 in the paper.
        batch_norm: Whether a batch norm follows each convolution.
        dataset: A `Dataset`, or `Inputs` where there is none.
        seed: For the weights; the global random state stays as it is.
        setting: Of the small network, from 1 to 4; 2, with plain zero padding, by default.
        norm: "batch", or "center" or "scalar" for norms that fit a bound, in place of batch norms.
        score_scale: What the scores are multiplied with, as a part of the last layer's module.

    Raises:
        ValueError: There is no such network.
    """
    if name not in NAMES:
        raise ValueError(f"expected a model among {', '.join(NAMES)}, got {name!r}.")
    if width < 1:
        raise ValueError(f"expected a positive width for {name}, got {width}.")
    if setting is not None and (name != "small" or setting not in SETTINGS):
        raise ValueError(
            f"expected a setting from 1 to 4 for small and none for others, got {setting!r} for "
            f"{name}."
        )
    with torch.random.fork_rng(devices=[]):
        # The seed of the CPU alone: torch.manual_seed would set those of the other devices too.
        torch.default_generator.manual_seed(seed)
        if name == "small":
            model: nn.Module = SmallNetwork(dataset, width, batch_norm, setting or USUAL)
        else:
            model = (ResNet18 if name == "resnet18" else DLA)(dataset, width, batch_norm)
    if norm != "batch":
        replace_batch_norms_(model, _FITTING[norm])
    return model if score_scale == 1 else Scaled(model, score_scale)
