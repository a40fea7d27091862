"""Norms that leave channels in proportion: `CenterNorm` and `ScalarBatchNorm`."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._operators import HALF_PRECISION, RunningBatchNorm, RunningShift, on_channels
from spectralclip.nn.statistics import channel_means, check_input, checked_dims, remember


@final
class CenterNorm(RunningShift):
    """Subtracts from each channel its mean, and adds a learned bias; nothing is rescaled.

    While training, the means are those of the batch; in evaluation they are running averages, and
    the layer only adds a constant: its norm is exactly 1. Beside layers whose norms are held, it
    does what batch norm does for the means, and has nothing that would have to be held itself.

    In place of `BatchNorm1d` to `BatchNorm3d`: the input is `(N, C, ...)`.

    Args:
        num_features: The number of channels C.
        momentum: The share of the newest batch in the running means; None for the plain average
            of all batches.
        bias: Whether to learn one.
        track_running_stats: Whether to keep running means. Without them, batches are centred by
            their own means in evaluation too, and the layer is no affine map.
        sync: Take the means over the batches of all processes, as `SyncBatchNorm` does.
        process_group: The processes to do so with; by default all of them.
        dims: 1, 2 or 3: take inputs as `BatchNorm1d` to `BatchNorm3d` do, and be exported as such
            by `to_batch_norms_`. None for inputs of any number of axes.
        device: Of the parameters and buffers.
        dtype: Of the parameters and buffers.

    Example:
        >>> import torch
        >>> from spectralclip import norm_bounds
        >>> from spectralclip.nn import CenterNorm
        >>> norm = CenterNorm(8)
        >>> y = norm(torch.randn(16, 8, 5, 5) + 3)
        >>> bool(y.mean((0, 2, 3)).abs().max() < 1e-5)
        True
        >>> round(norm_bounds(norm, (8, 5, 5)).upper, 6)
        1.0
    """

    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        *,
        momentum: float | None = 0.1,
        bias: bool = True,
        track_running_stats: bool = True,
        sync: bool = False,
        process_group: Any = None,
        dims: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a norm with means and bias zero."""
        super().__init__()
        self.num_features, self.momentum = num_features, momentum
        self.track_running_stats = track_running_stats
        self.sync, self.process_group, self.dims = sync, process_group, checked_dims(dims)
        zeros = torch.zeros(num_features, device=device, dtype=dtype)
        self.bias = nn.Parameter(zeros) if bias else None
        count = torch.tensor(0, dtype=torch.long, device=device)
        self.register_buffer("running_mean", zeros.clone() if track_running_stats else None)
        self.register_buffer("num_batches_tracked", count if track_running_stats else None)

    def reset_running_stats(self) -> None:
        """Forget the running means."""
        if self.running_mean is not None and self.num_batches_tracked is not None:
            self.running_mean.zero_()
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Forget the running means and the bias."""
        self.reset_running_stats()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def by_batch(self, input: Tensor) -> Tensor:
        """Centre by the means of the batch, and take note of them."""
        x = _full(input)
        mean, _ = channel_means(self, x)
        remember(self, running_mean=mean)
        shift = -mean if self.bias is None else self.bias - mean
        return (x + on_channels(shift, x)).to(input.dtype)

    def _check_input_dim(self, input: Tensor) -> None:
        check_input(self, input)

    def extra_repr(self) -> str:
        """The settings, as torch prints them."""
        return (
            f"{self.num_features}, momentum={self.momentum}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}{_extras(self)}"
        )


@final
class ScalarBatchNorm(RunningBatchNorm):
    """Batch norm that divides all channels by one number: the largest of their deviations.

    `y_c = weight_c * (x_c - mean_c) / sqrt(max_k var_k + eps) + bias_c`. Batch norm divides each
    channel by its own deviation, which multiplies channels that hardly vary by large factors; here
    they stay in proportion, and only `weight` can change that.

    In evaluation it is torch's batch norm with the same number in each entry of `running_var`, the
    running average of the largest variance. Its norm is `max |weight| / sqrt(running_var + eps)`,
    its state has torch's keys and shapes, and it makes no difference whether states are averaged
    before or after an export. (With variances kept by channel it would: the largest of averages is
    not the average of the largest ones.) The state of torch's batch norm can be loaded and is
    evaluated as there, but training would go on with other scales; `replace_batch_norms_` moves
    them into the weights.

    In place of `BatchNorm1d` to `BatchNorm3d`: the input is `(N, C, ...)`. For torch it is a batch
    norm, and `SyncBatchNorm.convert_sync_batchnorm` would turn it into torch's: set `sync` instead.

    Args:
        num_features: The number of channels C.
        eps: What is added to the variance.
        momentum: The share of the newest batch in the running statistics; None for the plain
            average of all batches.
        affine: Whether to learn a weight and a bias for each channel.
        track_running_stats: Whether to keep running statistics. Without them, batches are
            normalized by their own in evaluation too, and the layer is no affine map.
        sync: Take the statistics over the batches of all processes, as `SyncBatchNorm` does.
        process_group: The processes to do so with; by default all of them.
        dims: 1, 2 or 3: take inputs as `BatchNorm1d` to `BatchNorm3d` do, and be exported as such
            by `to_batch_norms_`. None for inputs of any number of axes.
        device: Of the parameters and buffers.
        dtype: Of the parameters and buffers.

    Example:
        >>> import torch
        >>> from spectralclip.nn import ScalarBatchNorm
        >>> norm = ScalarBatchNorm(3)
        >>> x = torch.randn(1000, 3) * torch.tensor([4.0, 2.0, 1.0])
        >>> (4 * norm(x).std(0)).round().tolist()
        [4.0, 2.0, 1.0]
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        sync: bool = False,
        process_group: Any = None,
        dims: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a norm with means and bias zero, variance and weight one."""
        place = {"device": device, "dtype": dtype}
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **place)  # type: ignore[arg-type]
        self.sync, self.process_group, self.dims = sync, process_group, checked_dims(dims)

    def by_batch(self, input: Tensor) -> Tensor:
        """Normalize by the statistics of the batch, and take note of them."""
        x = _full(input)
        mean, count = channel_means(self, x)
        centered = x - on_channels(mean, x)
        variance = channel_means(self, centered.square())[0].amax()
        # As in torch, the running variance is the unbiased estimate, and the batch's is not.
        remember(self, running_mean=mean, running_var=variance * (count / (count - 1)))
        scale = torch.rsqrt(variance + self.eps)
        y = centered * (scale if self.weight is None else on_channels(scale * self.weight, x))
        return (y if self.bias is None else y + on_channels(self.bias, x)).to(input.dtype)

    def _check_input_dim(self, input: Tensor) -> None:
        check_input(self, input)

    def extra_repr(self) -> str:
        """The settings, as torch prints them."""
        return f"{super().extra_repr()}{_extras(self)}"  # type: ignore[no-untyped-call]


def _full(input: Tensor) -> Tensor:
    """Half precision is too short for sums over a batch."""
    return input.float() if input.dtype in HALF_PRECISION else input


def _extras(norm: Any) -> str:
    """Settings that torch's norms do not have, where they are not the default."""
    shown = {"sync": norm.sync or None, "dims": norm.dims}
    return "".join(f", {name}={value}" for name, value in shown.items() if value is not None)
