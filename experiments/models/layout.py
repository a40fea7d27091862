"""How the numbers of images and weights lie in memory."""

from __future__ import annotations

import torch


def layout(width: int) -> torch.memory_format:
    """Channels last, which is faster, where the first strided 1x1 convolution fills a block.

    With fewer channels in this layout, its backward pass writes past the memory of oneDNN
    (uxlfoundation/oneDNN#6035): the process dies, or goes on with wrong numbers.

    Args:
        width: Channels of the network's first stage.
    """
    block = 16 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 8
    return torch.channels_last if width >= block else torch.contiguous_format
