"""A critic for reinforcement learning, which diverges, and does not if it is held.

    python examples/rl_critic.py

A point on a line is pushed, and the policy to be judged pushes harder than the data do. So the
critic learns from what it says itself of hard pushes: if that is too much, it soon says more.
"""

from __future__ import annotations

import argparse
import itertools

import torch
from torch import Tensor, nn

import spectralclip as sc

GOAL, REACH, DISCOUNT, HELD_AT = 0.6, 0.1, 0.98, 1.0


def reward(pairs: Tensor) -> Tensor:
    """For pairs of a place and a push: a cost, except near the goal; values are at least -1."""
    return (1 - DISCOUNT) * (torch.exp(-20 * (pairs[:, 0] - GOAL) ** 2) - 1)


def with_policy(place: Tensor) -> Tensor:
    """Places with the pushes of the policy: to the goal, as hard as it takes."""
    return torch.stack([place, ((GOAL - place) / REACH).clamp(-1, 1)], dim=1)


def follow(pairs: Tensor) -> Tensor:
    """Where the pushes lead, and what the policy does there."""
    return with_policy((pairs[:, 0] + REACH * pairs[:, 1]).clamp(-1, 1))


def true_value(pairs: Tensor) -> Tensor:
    """The sum of discounted rewards; after 20 pushes of the policy there is no more cost."""
    total = torch.zeros(len(pairs))
    for time in range(100):
        total, pairs = total + DISCOUNT**time * reward(pairs), follow(pairs)
    return total


def main() -> None:
    """Print rows without and with a bound, the push counting as it is or by what it moves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    steps, example = parser.parse_args().steps, torch.zeros(1, 2)
    print(f"{'':26}{'bound':>11}{'largest value':>15}{'error':>9}")
    for unit, limit in itertools.product((1.0, REACH), (None, HELD_AT)):
        torch.manual_seed(0)
        scale = torch.tensor([1, unit])
        data = torch.tensor([1, 0.3]) * (2 * torch.rand(2000, 2) - 1)
        layers = nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        critic = nn.Sequential(*layers)
        optimizer, largest = torch.optim.Adam(critic.parameters(), lr=1e-3), 0.0
        rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=steps)
        if limit is not None:
            sc.init_at_bound_(critic, example, max_lipschitz=limit)
            attachment = sc.attach(critic, optimizer, example, max_lipschitz=limit)
        for seen in data[torch.randint(len(data), (steps, 128))]:
            target = reward(seen) + DISCOUNT * critic(scale * follow(seen))[:, 0].detach()
            value = critic(scale * seen)[:, 0]
            optimizer.zero_grad()
            nn.functional.mse_loss(value, target).backward()
            optimizer.step()
            rates.step()
            largest = max(largest, value.abs().max().item())
        if limit is not None:
            attachment.finalize(certify=True)
        bound = sc.lipschitz_bounds(critic, example).upper
        error = (critic(scale * data)[:, 0] - true_value(data)).square().mean().sqrt().item()
        name = f"push x {unit}, " + (f"held at {limit}" if limit else "no bound")
        print(f"{name:26}{bound:11.4g}{largest:15.4g}{error:9.3g}", flush=True)


if __name__ == "__main__":
    main()
