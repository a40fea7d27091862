"""What is known of layers by their type: torch's own, and norms of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from spectralclip._operators.factor import Factor
from spectralclip._operators.rows import Rows
from spectralclip._operators.running_norms import RunningBatchNorm, RunningShift

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, RunningBatchNorm)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
KNOWN_AFFINE = (
    *(nn.Linear, Rows, Factor, nn.Embedding, nn.Identity, nn.Flatten, nn.Unflatten, RunningShift),
    *(CONVS + TRANSPOSED + BATCH_NORMS + DROPOUTS),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.PixelShuffle, nn.PixelUnshuffle),
)
AnyBatchNorm = nn.modules.batchnorm._BatchNorm


def describe(layer: object) -> str:
    """A short name for error messages: the module's own one-line form, or its type."""
    if isinstance(layer, nn.Module):
        text = " ".join(repr(layer).split())
        return text if len(text) <= 100 else f"{type(layer).__name__}(...)"
    if isinstance(layer, Sequence) and not isinstance(layer, str):
        return "[" + ", ".join(describe(part) for part in layer) + "]"
    return getattr(layer, "__name__", None) or type(layer).__name__


def is_plain(layer: Any, *types: type[nn.Module]) -> bool:
    """Whether a module is of such a type and computes just what the type does.

    Subclasses count while they keep the type's `forward` (as parametrized modules do); hooks
    may change anything, so a module that carries some does not count.
    """
    if not isinstance(layer, types) or isinstance(layer, torch.jit.ScriptModule):
        return False
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    hooked_globally = module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks
    if hooked or hooked_globally or "forward" in vars(layer):
        return False
    cls = type(layer)
    return any(
        cls.forward is base.forward
        and getattr(cls, "_conv_forward", None) is getattr(base, "_conv_forward", None)
        for base in types
        if isinstance(layer, base)
    )


def is_conv1d(layer: Any) -> bool:
    """Whether it is the dense layer of transformers that goes by this name.

    It keeps the transpose of what `nn.Linear` keeps.
    """
    cls = type(layer)
    if cls.__name__ != "Conv1D" or not cls.__module__.startswith("transformers."):
        return False
    return is_plain(layer, cls) and "weight" in layer._parameters


def is_known_affine(layer: Any) -> bool:
    """Whether a layer is affine by its type, so that no test at random points is needed."""
    if is_plain(layer, *BATCH_NORMS, RunningShift):
        return layer.running_mean is not None
    return is_plain(layer, *KNOWN_AFFINE)


def conv_paddings(layer: Any) -> list[tuple[int, int]]:
    """Padding at the low and at the high end of each axis of a convolution."""
    if layer.padding == "valid":
        return [(0, 0)] * len(layer.kernel_size)
    if layer.padding == "same":
        reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return [(size // 2, size - size // 2) for size in reach]
    return [(pad, pad) for pad in layer.padding]


def batch_norm_scale(variance: Tensor, eps: float, gamma: Tensor | None = None) -> Tensor:
    """`gamma / sqrt(variance + eps)`: what a batch norm multiplies each channel with."""
    scale = torch.rsqrt(variance + eps)
    return scale if gamma is None else scale * gamma
