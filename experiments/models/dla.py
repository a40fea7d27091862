"""Deep layer aggregation (Yu et al., 2018) for small images, in its form for CIFAR-10.

Blocks are the leaves of trees; the root of a tree joins what its leaves and subtrees made. Residual
sums are sums here: the paper left this network as it was.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.models._parts import BasicBlock, ImageData, convolution, normalization
from experiments.models.normalize import Normalize


class Root(nn.Module):
    """Joins several outputs by a 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int, batch_norm: bool) -> None:
        super().__init__()
        self.conv = convolution(inputs, outputs, 1)
        self.bn = normalization(outputs, batch_norm)

    def forward(self, *parts: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(torch.cat(parts, 1))))


class Tree(nn.Module):
    """Two blocks after each other, and a root that joins both."""

    def __init__(self, inputs: int, outputs: int, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.root = Root(2 * outputs, outputs, batch_norm)
        self.left_node = BasicBlock(inputs, outputs, stride, batch_norm)
        self.right_node = BasicBlock(outputs, outputs, 1, batch_norm)

    def forward(self, x: Tensor) -> Tensor:
        left = self.left_node(x)
        joined: Tensor = self.root(left, self.right_node(left))
        return joined


class DeepTree(nn.Module):
    """A tree before two blocks, and a root that joins these three and a block on the input."""

    def __init__(self, inputs: int, outputs: int, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.root = Root(4 * outputs, outputs, batch_norm)
        self.level_1 = Tree(inputs, outputs, stride, batch_norm)
        self.prev_root = BasicBlock(inputs, outputs, stride, batch_norm)
        self.left_node = BasicBlock(outputs, outputs, 1, batch_norm)
        self.right_node = BasicBlock(outputs, outputs, 1, batch_norm)

    def forward(self, x: Tensor) -> Tensor:
        tree = self.level_1(x)
        left = self.left_node(tree)
        joined: Tensor = self.root(self.prev_root(x), tree, left, self.right_node(left))
        return joined


class DLA(nn.Module):
    """Three convolutions, then four trees with `width`, 2, 4 and 8 times `width` channels.

    Args:
        data: What the images are like.
        width: Channels of the first tree, a multiple of 4; 64 in the paper.
        batch_norm: Whether a batch norm follows each convolution.
    """

    def __init__(self, data: ImageData, width: int, batch_norm: bool) -> None:
        super().__init__()
        if width % 4:
            raise ValueError(f"expected a width for dla that is a multiple of 4, got {width}.")
        self.normalize = Normalize(data.mean, data.std)
        self.base = _convolved(data.in_shape[0], width // 4, batch_norm)
        self.layer1 = _convolved(width // 4, width // 4, batch_norm)
        self.layer2 = _convolved(width // 4, width // 2, batch_norm)
        self.layer3 = Tree(width // 2, width, 1, batch_norm)
        self.layer4 = DeepTree(width, 2 * width, 2, batch_norm)
        self.layer5 = DeepTree(2 * width, 4 * width, 2, batch_norm)
        self.layer6 = Tree(4 * width, 8 * width, 2, batch_norm)
        self.linear = nn.Linear(8 * width, data.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.base(self.normalize(images))))
        x = self.layer6(self.layer5(self.layer4(self.layer3(x))))
        scores: Tensor = self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return scores


def _convolved(inputs: int, outputs: int, batch_norm: bool) -> nn.Sequential:
    layers = convolution(inputs, outputs, 3), normalization(outputs, batch_norm), nn.ReLU()
    return nn.Sequential(*layers)
