"""A classifier of digits whose answers are certified: no small change of the pixels alters them.

    python examples/certified_classifier.py

The network has a Lipschitz constant of at most 1, proved at the end. So a margin of sqrt(2) r
certifies an answer within an l2 distance of r. Plain cross entropy does not ask for a margin.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import spectralclip as sc

RADII = (0.25, 0.5, 1.0)
LOSSES = (
    ("cross entropy", 0.0, 1.0),
    ("scores times 20", 0.0, 0.05),
    ("+ margin for 0.5", 0.5, 0.05),
    ("+ margin for 1.0", 1.0, 0.05),
)


def block(inputs: int, channels: int) -> list[nn.Module]:
    """A convolution, centred channels, and sorted pairs of them: nothing here needs to shrink."""
    conv = nn.Conv2d(inputs, channels, 3, padding=1)
    return [conv, sc.nn.CenterNorm(channels), sc.nn.MaxMin()]


def network() -> nn.Sequential:
    """Four convolutions; what would be strides are pixels moved into channels."""
    return nn.Sequential(
        *(nn.PixelUnshuffle(2), *block(4, 16), *block(16, 16)),
        *(nn.PixelUnshuffle(2), *block(64, 64), *block(64, 64)),
        *(nn.Flatten(), nn.Linear(64 * 49, 10)),
    )


def trained(radius: float, temperature: float, steps: int) -> tuple[nn.Module, float]:
    """A network, trained for margins that certify a radius, and its proved Lipschitz constant."""
    torch.manual_seed(0)
    model, (images, labels) = network(), sc.demo.load_digits("train")
    sc.init_at_bound_(model, images[:1], max_lipschitz=1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    attachment = sc.attach(model, optimizer, images[:1], max_lipschitz=1.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=steps)
    for batch in torch.randint(len(labels), (steps, 64)):
        margin = {"lipschitz": 1.0, "radius": radius, "temperature": temperature}
        loss = sc.margin_cross_entropy(model(images[batch]), labels[batch], **margin)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    attachment.finalize(certify=True)
    assert attachment.network_bound is not None
    return model.eval(), attachment.network_bound.upper


def main() -> None:
    """Print a row for each loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    tests, labels = sc.demo.load_digits("test")
    print(f"{'':22}{'bound':>8}{'accuracy':>10}" + "".join(f"{f'within {r}':>13}" for r in RADII))
    for name, radius, temperature in LOSSES:
        model, bound = trained(radius, temperature, steps)
        with torch.no_grad():
            logits = model(tests)
        of = [sc.certified_accuracy(logits, labels, lipschitz=bound, radius=r) for r in (0, *RADII)]
        shares = "".join(f"{one:13.1%}" for one in of[1:])
        print(f"{name:22}{bound:8.4f}{of[0]:10.1%}{shares}", flush=True)


if __name__ == "__main__":
    main()
