"""Models to audit: residual networks and transformers, with seeds and lively batch norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.training.models import resnet18


@dataclass(frozen=True)
class AuditedModel:
    """A model, how to build it, one input, and how many workers are tried."""

    name: str
    build: Callable[[], nn.Module]
    example: Callable[[], Tensor]
    workers: tuple[int, ...]


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, and a shortcut."""

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        c_out = 4 * width
        self.branch = nn.Sequential(
            _normalized(c_in, width, 1),
            nn.ReLU(),
            _normalized(width, width, 3, stride),
            nn.ReLU(),
            _normalized(width, c_out, 1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            self.shortcut = _normalized(c_in, c_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


def _normalized(c_in: int, c_out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out))


def resnet50(classes: int = 1000) -> nn.Module:
    """ResNet-50 for 224x224 images."""
    blocks, c_in = [], 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            blocks.append(Bottleneck(c_in, 64 * 2**stage, stride))
            c_in = 256 * 2**stage
    stem = nn.Sequential(_normalized(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(
        stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c_in, classes)
    )


class Attention(nn.Module):
    """Self-attention with several heads."""

    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inward(x).unflatten(-1, (3, self.heads, -1)).movedim(2, 0).transpose(2, 3)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=self.is_causal)
        return self.outward(mixed.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention and a perceptron, each behind a layer norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, is_causal: bool = True) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, is_causal))
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.perceptron(x)


def transformer(width: int = 768, depth: int = 12, tokens: int = 32_000) -> nn.Module:
    """A language model of 134 million parameters, 85 of them in the blocks' dense layers."""
    blocks = [TransformerBlock(width, width // 64) for _ in range(depth)]
    return nn.Sequential(
        nn.Embedding(tokens, width), *blocks, nn.LayerNorm(width), nn.Linear(width, tokens)
    )


class Patches(nn.Module):
    """An image as a sequence of patches, with their places."""

    def __init__(self, width: int, side: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(0.02 * torch.randn((side // patch) ** 2, width))

    def forward(self, images: Tensor) -> Tensor:
        return self.patches(images).flatten(2).mT + self.places


class MeanOverPatches(nn.Module):
    """What a classifier reads."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def vision_transformer(width: int = 768, depth: int = 12, classes: int = 1000) -> nn.Module:
    """As large as ViT-B with patches of 16x16, for 224x224 images."""
    blocks = [TransformerBlock(width, width // 64, is_causal=False) for _ in range(depth)]
    ending = (nn.LayerNorm(width), MeanOverPatches(), nn.Linear(width, classes))
    return nn.Sequential(Patches(width, 224, 16), *blocks, *ending)


def enlivened(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give batch norms the factors and statistics that training leaves, as far as chance goes."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            nn.init.uniform_(module.weight, 0.5, 1.5, generator=generator)
            nn.init.normal_(module.running_mean, generator=generator)
            nn.init.uniform_(module.running_var, 0.3, 3.0, generator=generator)
    return model.eval()


def _images(side: int) -> Tensor:
    return torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))


MODELS = (
    AuditedModel("ResNet-18, 3x32x32", lambda: enlivened(resnet18()), lambda: _images(32), (1, 2)),
    AuditedModel("ResNet-50, 3x224x224", lambda: enlivened(resnet50()), lambda: _images(224), (2,)),
    AuditedModel("transformer, 64 tokens", transformer, lambda: torch.arange(64)[None], (1, 2)),
    AuditedModel("ViT-B, 3x224x224", vision_transformer, lambda: _images(224), (1, 2)),
)
