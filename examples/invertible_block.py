"""An invertible network for a density: blocks x + g(x), which can be undone if Lip(g) < 1.

    python examples/invertible_block.py

It learns the density of two moons, which has an integral of one only if nothing is folded.
"""

from __future__ import annotations

import argparse
import math
from functools import reduce

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

import spectralclip as sc


def moons(count: int, seed: int) -> Tensor:
    """Points of two half circles that reach into each other, with noise."""
    noise = 0.15 * torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    angle, side = torch.linspace(0, math.pi, count), torch.arange(count) % 2
    curve = torch.stack([angle.cos() + side - 0.5, (1 - 2 * side) * angle.sin() + side / 2 - 0.25])
    return 1.5 * curve.T + noise


def make_g() -> nn.Sequential:
    """What a block adds to its input: smooth, since the density needs its derivative."""
    return nn.Sequential(nn.Linear(2, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 2))


def inverse(g: nn.Module, z: Tensor) -> Tensor:
    """The x with x + g(x) = z, by fixed-point iteration: each time Lip(g) of the error is left."""
    return reduce(lambda x, _: z - g(x), range(200), z)


def log_density(flow: nn.ModuleList, x: Tensor) -> Tensor:
    """That of a normal distribution, pulled back through the blocks."""
    change = torch.zeros(len(x))
    for g in flow:
        jacobian = torch.eye(2) + vmap(jacrev(g))(x)
        change, x = change + jacobian.slogdet().logabsdet, x + g(x)
    return change - x.square().sum(1) / 2 - math.log(2 * math.pi)


def main() -> None:
    """Print a row without a bound, and one with."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    steps, tests, example = parser.parse_args().steps, moons(2000, seed=-1), torch.zeros(1, 2)
    plane = torch.cartesian_prod(*2 * [torch.linspace(-5, 5, 201)])  # 400 points in a unit square
    print(f"{'':16}{'Lip(g)':>8}{'log density':>13}{'integral':>10}{'inversion error':>17}")
    for name, limits in (("no bound", []), ("every g at 0.9", [0.9])):
        torch.manual_seed(0)
        flow = nn.ModuleList(make_g() for _ in range(8))
        optimizer = torch.optim.Adam(flow.parameters(), lr=3e-3)
        held = [sc.attach(g, optimizer, example, max_lipschitz=c) for c in limits for g in flow]
        for step in range(steps):
            optimizer.zero_grad()
            (-log_density(flow, moons(256, seed=step)).mean()).backward()
            optimizer.step()
        for attachment in held:
            attachment.finalize(certify=True)
        bound = max(sc.lipschitz_bounds(g, example).upper for g in flow)
        with torch.no_grad():
            density = log_density(flow, tests).mean()
            whole = log_density(flow, plane).exp().sum() / 400
            made = reduce(lambda x, g: x + g(x), flow, tests)
            found = reduce(lambda z, g: inverse(g, z), reversed(flow), made)
        error = (found - tests).abs().nan_to_num(math.inf).max()
        print(f"{name:16}{bound:8.4f}{density:13.3f}{whole:10.4f}{error:17.1e}", flush=True)


if __name__ == "__main__":
    main()
