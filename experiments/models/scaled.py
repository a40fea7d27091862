"""A network whose scores are larger."""

from __future__ import annotations

from torch import Tensor, nn


class Scaled(nn.Module):
    """A network whose scores are multiplied by a constant, which bounds of it therefore count.

    Args:
        network: The network.
        scale: The constant.
    """

    def __init__(self, network: nn.Module, scale: float) -> None:
        super().__init__()
        self.network, self.scale = network, scale

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.scale * self.network(images)
        return scores

    def extra_repr(self) -> str:
        """The constant, for `print`."""
        return f"scale={self.scale:g}"
