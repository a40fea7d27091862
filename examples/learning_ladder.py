"""A network that does not learn under a bound, and what makes it learn, one remedy after another.

    python examples/learning_ladder.py

Twelve convolutions without batch norm, every layer held at norm 1. Each row adds one remedy.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from torch import Tensor, nn

import spectralclip as sc

DEPTH, WIDTH = 12, 16
ROWS = ("default start, SGD", "+ Adam", "+ orthogonal start", "+ MaxMin", "+ scores times 10")


def network(activation: type[nn.Module]) -> nn.Sequential:
    """Convolutions at full size, then two strides, and a mean over what is left."""
    parts: list[nn.Module] = []
    for index in range(DEPTH):
        stride = 2 if index in (DEPTH // 3, 2 * DEPTH // 3) else 1
        conv = nn.Conv2d(WIDTH if index else 1, WIDTH, 3, stride=stride, padding=1)
        parts += [conv, activation()]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(WIDTH * 49, 10))


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    """The same random batches for every row."""
    images, labels = sc.demo.load_digits("train")
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(labels), (steps, 64), generator=generator)
    return [(images[index], labels[index]) for index in chosen]


def trained(remedies: int, steps: int) -> tuple[float, float, float]:
    """The accuracy with the first remedies, the spread of scores before, and the bound after."""
    torch.manual_seed(0)
    model = network(sc.nn.MaxMin if remedies >= 3 else nn.ReLU)
    example, scale = torch.zeros(1, 1, 28, 28), 10.0 if remedies >= 4 else 1.0
    if remedies >= 2:
        sc.init_at_bound_(model, example, max_norm=1.0)
    adam, sgd = torch.optim.Adam, torch.optim.SGD
    weights = model.parameters()
    optimizer = adam(weights, lr=3e-3) if remedies >= 1 else sgd(weights, lr=0.05, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that scores hardly differ, which is what this is about
        attachment = sc.attach(model, optimizer, example, max_norm=1.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=steps)
    tests, labels = sc.demo.load_digits("test")
    before = attachment.report(tests[:256]).spread * scale
    for images, classes in batches(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(scale * model(images), classes).backward()
        optimizer.step()
        schedule.step()
    attachment.finalize(certify=True)
    with torch.no_grad():
        right = (model.eval()(tests).argmax(1) == labels).float().mean()
    return 100 * float(right), before, scale * sc.lipschitz_bounds(model, example).upper


def main() -> None:
    """Print a row for each remedy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    print(f"{'':24}{'spread before':>15}{'accuracy':>10}{'bound of the scores':>21}")
    for remedies, row in enumerate(ROWS):
        accuracy, spread, bound = trained(remedies, arguments.steps)
        print(f"{row:24}{spread:15.1e}{accuracy:9.1f}%{bound:21.3g}", flush=True)


if __name__ == "__main__":
    main()
