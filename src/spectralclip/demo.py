"""`python -m spectralclip.demo`: the spectrum of every layer of a small network, as a table."""

from __future__ import annotations

import time

import torch
from torch import nn

from spectralclip import load_digits, svds


def small_network() -> nn.Sequential:
    """A convolutional network with batch norm for 28x28 digits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, padding_mode="reflect", bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


def train(network: nn.Module, epochs: int = 2) -> float:
    """A short training on the embedded digits; returns the test accuracy."""
    images, labels = load_digits("train")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    network.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=generator).split(64):
            loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.eval()
    images, labels = load_digits("test")
    with torch.no_grad():
        hits = network(images).argmax(1) == labels
    return float(hits.float().mean())


def describe(layer: nn.Module) -> str:
    """A layer in a few words."""
    if isinstance(layer, nn.Conv2d):
        kernel = "x".join(map(str, layer.kernel_size))
        return (
            f"conv {layer.in_channels}->{layer.out_channels} {kernel} "
            f"stride {layer.stride[0]} {layer.padding_mode}"
        )
    if isinstance(layer, nn.Linear):
        return f"dense {layer.in_features}->{layer.out_features}"
    return "batch norm"


def main() -> None:
    """Train, then print the leading singular values of each layer and conv + batch norm."""
    torch.manual_seed(0)
    network = small_network()
    accuracy = train(network)
    print(f"A small network, trained on the embedded digits: test accuracy {accuracy:.1%}\n")
    print(f"{'layer':<36}{'largest singular values':<36}{'applications':>13}{'ms':>8}")
    shape: tuple[int, ...] = (1, 28, 28)
    before: tuple[nn.Module, tuple[int, ...]] | None = None
    for layer in network:
        if list(layer.parameters()):
            _print_row(describe(layer), layer, shape)
        if isinstance(layer, nn.BatchNorm2d) and before is not None:
            _print_row("  conv + batch norm", [before[0], layer], before[1])
        before = layer, shape
        with torch.no_grad():
            shape = tuple(layer(torch.zeros(1, *shape)).shape[1:])
    print("\nConvolutions were only applied; their matrices were never formed.")


def _print_row(name: str, layer: nn.Module | list[nn.Module], shape: tuple[int, ...]) -> None:
    start = time.perf_counter()
    spectrum = svds(layer, shape, k=4)
    elapsed = 1e3 * (time.perf_counter() - start)
    values = "  ".join(f"{value:7.3f}" for value in spectrum.S.tolist())
    print(f"{name:<36}{values:<36}{spectrum.applications:>13}{elapsed:>8.1f}")


if __name__ == "__main__":
    main()
