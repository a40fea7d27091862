"""Layers of small networks after a short training on digits: 12 of them.

The spectra of trained kernels are not those of random ones: a few values stand out, and
neighbouring channels resemble each other.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conformance.layer import Layer
from spectralclip.demo import load_digits

STEPS, BATCH = 150, 64


def classifier() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1, padding_mode="circular", bias=False),
        nn.ReLU(),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(256, 10, bias=False),
    )


def separable() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 12, 4, stride=4, bias=False),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1, groups=12, padding_mode="reflect", bias=False),
        nn.Conv2d(12, 24, 1, bias=False),
        nn.ReLU(),
        nn.Conv2d(24, 10, 3, padding=2, dilation=2, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def autoencoder() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.ConvTranspose2d(12, 8, 3, stride=2, padding=1, output_padding=1, bias=False),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 3, stride=2, padding=1, output_padding=1, bias=False),
    )


def trained(seed: int) -> Iterator[Layer]:
    images, labels = load_digits("train")
    for name, make in (
        ("classifier", classifier),
        ("separable", separable),
        ("autoencoder", autoencoder),
    ):
        torch.manual_seed(seed)
        network = make()
        _train(network, images, images if name == "autoencoder" else labels, seed)
        yield from _layers(name, network, images[:1])


def _train(network: nn.Sequential, images: Tensor, targets: Tensor, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    loss = F.mse_loss if targets is images else F.cross_entropy
    for _ in range(STEPS):
        batch = torch.randint(len(images), (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss(network(images[batch]), targets[batch]).backward()
        optimizer.step()


def _layers(network_name: str, network: nn.Sequential, x: Tensor) -> Iterator[Layer]:
    for index, part in enumerate(network):
        in_shape, x = tuple(x.shape[1:]), part(x)
        if not hasattr(part, "weight"):
            continue
        name, weight = f"trained-{network_name}-{index}", part.weight.detach().numpy()
        if isinstance(part, nn.Linear):
            yield Layer(name, "trained", weight, in_shape)
            continue
        transposed = isinstance(part, nn.ConvTranspose2d)
        yield Layer(
            name,
            "trained",
            weight,
            in_shape,
            part.stride,
            tuple((pad, pad) for pad in part.padding),
            part.dilation,
            part.groups,
            part.padding_mode,
            part.output_padding if transposed else None,
        )
