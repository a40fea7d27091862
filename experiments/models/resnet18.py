"""ResNet-18 for small images (He et al., 2016), with each residual sum divided by two.

The stem is a 3x3 convolution without pooling, as usual for CIFAR-10. A mean of two paths has a
Lipschitz constant of at most 1 if each of them has; a sum could have 2.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from experiments.models._parts import BasicBlock, ImageData, convolution, normalization
from experiments.models.normalize import Normalize


class ResNet18(nn.Module):
    """Four stages of two blocks, with `width`, 2, 4 and 8 times `width` channels.

    Args:
        data: What the images are like.
        width: Channels of the first stage; 64 in the paper.
        batch_norm: Whether a batch norm follows each convolution.
    """

    def __init__(self, data: ImageData, width: int, batch_norm: bool) -> None:
        super().__init__()
        self.normalize = Normalize(data.mean, data.std)
        self.conv1 = convolution(data.in_shape[0], width, 3)
        self.bn1 = normalization(width, batch_norm)
        self.layer1 = _stage(width, width, 1, batch_norm)
        self.layer2 = _stage(width, 2 * width, 2, batch_norm)
        self.layer3 = _stage(2 * width, 4 * width, 2, batch_norm)
        self.layer4 = _stage(4 * width, 8 * width, 2, batch_norm)
        self.linear = nn.Linear(8 * width, data.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(self.normalize(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return scores


def _stage(inputs: int, outputs: int, stride: int, batch_norm: bool) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride, batch_norm, halved=True)
    return nn.Sequential(first, BasicBlock(outputs, outputs, 1, batch_norm, halved=True))
