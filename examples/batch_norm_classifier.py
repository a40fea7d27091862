"""Which batch norm fits a bound: a classifier of digits, held at one number as a whole.

    python examples/batch_norm_classifier.py

Batch norm divides each channel by its own deviation, and so gives back what a bound has taken from
the convolution before it. The rows hold the same network at the same constant, with other norms.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn

import spectralclip as sc
from spectralclip.methods import SpectralClip

MAX_LIPSCHITZ, RADIUS = 10.0, 0.1
NORMS: dict[str, tuple[Callable[[int], nn.Module], SpectralClip | None]] = {
    "BatchNorm2d, no bound": (nn.BatchNorm2d, None),
    "BatchNorm2d": (nn.BatchNorm2d, SpectralClip()),
    "BatchNorm2d with conv": (nn.BatchNorm2d, SpectralClip(compose="conv_bn")),
    "ScalarBatchNorm": (sc.nn.ScalarBatchNorm, SpectralClip(compose="conv_bn")),
    "CenterNorm": (sc.nn.CenterNorm, SpectralClip()),
}


def network(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """Four convolutions, each with a norm and a ReLU, and a dense layer."""
    parts: list[nn.Module] = []
    for inputs, outputs, stride in [(1, 16, 1), (16, 16, 2), (16, 32, 1), (32, 32, 2)]:
        conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        parts += [conv, norm(outputs), nn.ReLU()]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(32 * 49, 10))


def trained(name: str, steps: int) -> tuple[nn.Module, float]:
    """A network with one of the norms, and the proved bound on its Lipschitz constant."""
    torch.manual_seed(0)
    images, labels = sc.demo.load_digits("train")
    norm, method = NORMS[name]
    model = network(norm)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    if method is not None:
        sc.init_at_bound_(model, images[:1], max_lipschitz=MAX_LIPSCHITZ, compose=method.compose)
        limits = {"method": method, "max_lipschitz": MAX_LIPSCHITZ}
        attachment = sc.attach(model, optimizer, images[:1], **limits)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=steps)
    for batch in torch.randint(len(labels), (steps, 64)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    if method is not None:
        attachment.finalize(certify=True)
    return model.eval(), sc.lipschitz_bounds(model, images[:1]).upper


def main() -> None:
    """Print a row for each norm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    tests, labels = sc.demo.load_digits("test")
    print(f"{'':24}{'bound':>8}{'accuracy':>10}{f'certified within {RADIUS}':>23}")
    for name in NORMS:
        model, bound = trained(name, steps)
        with torch.no_grad():
            logits = model(tests)
        of = [sc.certified_accuracy(logits, labels, lipschitz=bound, radius=r) for r in (0, RADIUS)]
        print(f"{name:24}{bound:8.4g}{of[0]:10.1%}{of[1]:23.1%}", flush=True)


if __name__ == "__main__":
    main()
