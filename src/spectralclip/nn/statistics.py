"""Means over a batch, by channel: on one process or on all, and as running averages."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# The numbers of axes of the inputs of BatchNorm1d, BatchNorm2d and BatchNorm3d.
AXES = {1: (2, 3), 2: (4,), 3: (5,)}


def checked_dims(dims: int | None) -> int | None:
    """Raise unless it is one of torch's 1, 2 and 3, or None for any."""
    if dims is not None and dims not in AXES:
        raise ValueError(
            f"dims must be 1, 2 or 3, as in BatchNorm1d to BatchNorm3d, or None for inputs of any "
            f"number of axes, got {dims!r}."
        )
    return dims


def check_input(norm: Any, input: Tensor) -> None:
    """Raise unless an input is `(N, C, ...)`, with as many axes as the norm is for."""
    fits = input.ndim >= 2 if norm.dims is None else input.ndim in AXES[norm.dims]
    if not fits:
        wanted = "two or more" if norm.dims is None else " or ".join(map(str, AXES[norm.dims]))
        raise ValueError(
            f"{type(norm).__name__} takes inputs of {wanted} axes, (N, C, ...), got shape "
            f"{tuple(input.shape)}."
        )
    if input.shape[1] != norm.num_features:
        raise ValueError(
            f"{type(norm).__name__} was made for {norm.num_features} channels, which is axis 1 of "
            f"its input, got shape {tuple(input.shape)}."
        )


def channel_means(norm: Any, input: Tensor) -> tuple[Tensor, Tensor | int]:
    """The mean of each channel, and over how many values; of all processes where synchronized.

    Raises:
        ValueError: There is one value a channel: all of them would become zero.
    """
    axes = [axis for axis in range(input.ndim) if axis != 1]
    count = input.shape[0] * input.shape[2:].numel()
    if not (norm.sync and norm.training and _processes(norm.process_group) > 1):
        if count < 2:
            raise ValueError(
                f"{type(norm).__name__} needs more than one value a channel while training, got "
                f"input of shape {tuple(input.shape)}: use larger batches, or evaluation mode."
            )
        return input.mean(axes), count
    sums = torch.cat([input.sum(axes), input.new_full((1,), count)])
    sums = _sum_of_all(sums, norm.process_group)
    return sums[:-1] / sums[-1], sums[-1]


@torch.no_grad()
def remember(norm: Any, **found: Tensor) -> None:
    """Bring running averages, named by their buffers, up to date as torch's batch norm does."""
    if not norm.training or not norm.track_running_stats or norm.running_mean is None:
        return
    norm.num_batches_tracked.add_(1)
    share = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
    for name, value in found.items():
        average = getattr(norm, name)
        average.add_((share * (value - average)).to(average.dtype))


def _processes(group: Any) -> int:
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def _sum_of_all(values: Tensor, group: Any) -> Tensor:
    """The sum over all processes; in the backward pass, that of the gradients."""
    from torch.distributed.nn.functional import all_reduce  # not in builds without distributed

    total: Tensor = all_reduce(values, group=dist.group.WORLD if group is None else group)
    return total
