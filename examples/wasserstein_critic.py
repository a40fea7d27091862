"""A Wasserstein critic whose gradients are held, against one whose gradients are penalized.

    python examples/wasserstein_critic.py  # needs scipy, for the distance itself

Between two sets of digits, fours and nines of 7x7 pixels, the distance is known, by the best
pairing. A critic with a Lipschitz constant of 1 differs by no more than that between the sets.
"""

from __future__ import annotations

import argparse

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import spectralclip as sc


def digits(label: int) -> Tensor:
    """The training digits of one class, small, so that there is a fine structure to learn."""
    images, labels = sc.demo.load_digits("train")
    return nn.functional.avg_pool2d(images[labels == label], 4).flatten(1)


def distance(first: Tensor, second: Tensor) -> float:
    """The Wasserstein distance of two sets of equal size: the mean over the best pairing."""
    costs = torch.cdist(first.double(), second.double())
    return float(costs[linear_sum_assignment(costs)].mean())


def slopes(critic: nn.Module, first: Tensor, second: Tensor) -> Tensor:
    """The norm of the critic's gradient at points between those of two sets."""
    points = torch.lerp(first, second, torch.rand(len(first), 1)).requires_grad_()
    return torch.autograd.grad(critic(points).sum(), points, create_graph=True)[0].norm(dim=1)


def trained(held: bool, first: Tensor, second: Tensor, steps: int) -> tuple[nn.Module, float]:
    """A critic, large on the first set and small on the second, and its proved constant."""
    torch.manual_seed(0)
    inner = nn.Linear(49, 256), sc.nn.MaxMin(), nn.Linear(256, 256), sc.nn.MaxMin()
    critic = nn.Sequential(*inner, nn.Linear(256, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    if held:  # SGD, whose steps leave alone what they are not about: see the page
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.02, momentum=0.9)
        sc.init_at_bound_(critic, first[:1], max_lipschitz=1.0)
        attachment = sc.attach(critic, optimizer, first[:1], max_lipschitz=1.0)
    for _ in range(steps):
        x, y = (one[torch.randint(len(one), (64,))] for one in (first, second))
        loss = (critic(y) - critic(x)).mean()
        if not held:  # the penalty of WGAN-GP
            loss += 10 * (slopes(critic, x, y) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if held:
        attachment.finalize(certify=True)
    return critic, sc.lipschitz_bounds(critic, first[:1]).upper


def main() -> None:
    """Print a row for each critic."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    steps, fours, nines = parser.parse_args().steps, digits(4), digits(9)
    print(f"the distance is {distance(fours, nines):.3f}")
    print(f"{'':14}{'mean slope':>11}{'largest':>9}{'bound':>8}{'estimate':>10}{'proved':>8}")
    for name, held in (("WGAN-GP", False), ("held at 1", True)):
        critic, bound = trained(held, fours, nines, steps)
        slope = slopes(critic, fours, nines).detach()
        said = (critic(fours).mean() - critic(nines).mean()).item()
        row = slope.mean(), slope.max(), bound, said, said / bound
        print("{:14}{:11.3f}{:9.3f}{:8.3f}{:10.3f}{:8.3f}".format(name, *row), flush=True)


if __name__ == "__main__":
    main()
