"""Small models of many kinds, whose layers are small enough for dense oracles in float64.

Each is made from a seed, and its batch norms have statistics and factors as after some training:
with fresh ones, batch norm would be the identity and nothing could be told from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Specimen:
    """A model of the zoo.

    Attributes:
        name: For the ids of tests.
        build: Makes the model, in evaluation mode, from nothing but a fixed seed.
        in_shape: Of one input, without the batch.
        tokens: How many tokens there are, where the inputs are indices; else zero.
        needs: A package that has to be installed.
    """

    name: str
    build: Callable[[], nn.Module]
    in_shape: tuple[int, ...]
    tokens: int = 0
    needs: str = ""

    def model(self) -> nn.Module:
        """The model; the test is skipped where a package is missing."""
        if self.needs:
            pytest.importorskip(self.needs, reason=f"{self.name} is built by {self.needs}")
        with seeded(7):
            return lived_in(self.build()).eval()

    def inputs(self, batch: int = 2, seed: int = 1) -> Tensor:
        """Example inputs, with the batch."""
        generator = torch.Generator().manual_seed(seed)
        shape = (batch, *self.in_shape)
        if self.tokens:
            return torch.randint(self.tokens, shape, generator=generator)
        return torch.randn(shape, generator=generator)


def lived_in(model: nn.Module) -> nn.Module:
    """The model, its batch norms with statistics and factors as if it had been trained."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None and module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.2, 2.0)
            nn.init.uniform_(module.weight, 0.3, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    return model


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(48, 40),
        nn.ReLU(),
        nn.Linear(40, 30),
        nn.Tanh(),
        nn.Linear(30, 10),
    )


def vgg() -> nn.Module:
    """Convolutions with batch norm, max pooling, two dense layers without a nonlinearity."""

    def block(source: int, target: int) -> list[nn.Module]:
        conv = nn.Conv2d(source, target, 3, padding=1, bias=False)
        return [conv, nn.BatchNorm2d(target), nn.ReLU(), nn.MaxPool2d(2)]

    head = [nn.Flatten(), nn.Linear(64, 24), nn.Dropout(0.5), nn.ReLU(), nn.Linear(24, 10)]
    return nn.Sequential(*block(3, 8), *block(8, 16), *head)


class Residual(nn.Module):
    """The basic block of a residual network."""

    def __init__(self, source: int, target: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(source, target, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(target)
        self.conv2 = nn.Conv2d(target, target, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(target)
        self.shortcut = nn.Sequential()
        if stride > 1 or source != target:
            conv = nn.Conv2d(source, target, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(target))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.layer1 = nn.Sequential(Residual(6, 6, 1), Residual(6, 10, 2))
        self.fc = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(F.relu(self.bn1(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class DenseNet(nn.Module):
    """Each layer reads all that came before; batch norm stands before the nonlinearity."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6 + 4 * i) for i in range(3))
        self.convs = nn.ModuleList(
            nn.Conv2d(6 + 4 * i, 4, 3, padding=1, bias=False) for i in range(3)
        )
        self.transition = nn.Sequential(nn.BatchNorm2d(18), nn.Conv2d(18, 8, 1), nn.AvgPool2d(2))
        self.classifier = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(F.relu(norm(x)))], dim=1)
        return self.classifier(self.transition(x).mean((2, 3)))


class UNet(nn.Module):
    """Down and up again, with transposed convolutions and concatenated skips."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(2, 6, 3, padding=1, padding_mode="reflect")
        self.down = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.norm = nn.BatchNorm2d(12)
        self.leave = nn.Conv2d(12, 2, 3, padding=1, padding_mode="replicate")

    def forward(self, x: Tensor) -> Tensor:
        skip = F.leaky_relu(self.enter(x), 0.1)
        deep = F.leaky_relu(self.middle(F.leaky_relu(self.down(skip), 0.1)), 0.1)
        return self.leave(self.norm(torch.cat([self.up(deep), skip], dim=1)))


class Inverted(nn.Module):
    """Expand, depthwise, project, with a shortcut where the shapes allow."""

    def __init__(self, source: int, target: int, stride: int) -> None:
        super().__init__()
        inner = 2 * source
        self.shortcut = stride == 1 and source == target
        self.body = nn.Sequential(
            nn.Conv2d(source, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, target, 1, bias=False),
            nn.BatchNorm2d(target),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.shortcut else self.body(x)


def mobilenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1, bias=False),
        nn.BatchNorm2d(6),
        nn.Hardswish(),
        Inverted(6, 6, 1),
        Inverted(6, 10, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(10, 10),
    )


def convnet_1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 8, 5, stride=2, padding=2),
        nn.BatchNorm1d(8),
        nn.GELU(),
        nn.Conv1d(8, 8, 3, padding=1, padding_mode="circular"),
        nn.SiLU(),
        nn.AvgPool1d(3, 2, 1),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=41,
        n_positions=8,
        n_embd=24,
        n_layer=2,
        n_head=2,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model: Any = GPT2Model(config)
    return nn.Module.eval(model)


ZOO = (
    Specimen("mlp", mlp, (3, 4, 4)),
    Specimen("vgg", vgg, (3, 8, 8)),
    Specimen("resnet", ResNet, (3, 8, 8)),
    Specimen("densenet", DenseNet, (3, 6, 6)),
    Specimen("unet", UNet, (2, 8, 8)),
    Specimen("mobilenet", mobilenet, (3, 10, 10)),
    Specimen("convnet_1d", convnet_1d, (2, 32)),
    Specimen("gpt2", gpt2, (6,), tokens=41, needs="transformers"),
)
"""All of them, by name in `BY_NAME`."""

BY_NAME = {specimen.name: specimen for specimen in ZOO}
