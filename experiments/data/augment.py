"""Random crops and mirror images, for a whole batch at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def crop_and_flip(images: Tensor, generator: torch.Generator, *, padding: int = 4) -> Tensor:
    """Shift each image at random, with black pixels moving in, and mirror every other one.

    Args:
        images: Pixels, `(N, channels, height, width)`, of any type; black is zero.
        generator: For the shifts and mirrors.
        padding: The longest shift, in pixels, in each direction.

    Returns:
        A new batch of the same shape and type.
    """
    count, _, height, width = images.shape
    where = generator.device

    def draw(choices: int) -> Tensor:
        drawn = torch.randint(choices, (count,), generator=generator, device=where)
        return drawn.to(images.device)

    top, left, mirrored = draw(2 * padding + 1), draw(2 * padding + 1), draw(2).bool()
    padded = F.pad(images, (padding,) * 4)
    # All crops of all images, as a view: only those chosen are copied.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    crops = windows[torch.arange(count, device=images.device), :, top, left]
    return torch.where(mirrored[:, None, None, None], crops.flip(3), crops)
