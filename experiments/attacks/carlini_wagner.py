"""The attack of Carlini and Wagner (2017) in the L2 norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from experiments.attacks._inputs import Protocol, Space, check, is_right
from experiments.attacks._numbers import not_negative, positive, whole

# Points of the box are tanh of something finite only inside it: black and white move in by 5e-7.
INSIDE = 1 - 1e-6
# Of Adam, as in the original attack.
BETA1, BETA2, TINY = 0.9, 0.999, 1e-8
# A constant that never failed is multiplied by this, as in the original attack.
GROWTH = 10.0


@dataclass(frozen=True)
class _Descent:
    """What one descent needs beside its images."""

    space: Space
    confidence: float
    iterations: int
    lr: float
    stop_early: bool


def carlini_wagner_l2(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    confidence: float,
    iterations: int,
    initial_const: float,
    search_steps: int = 1,
    lr: float = 0.01,
    protocol: Protocol = "pixels",
    stop_early: bool = False,
    batch: int = 256,
) -> Tensor:
    """Images near the given ones that the model gets wrong by a margin, where some are found.

    Minimizes `|x' - x|^2 + c * max(z_y - max_{j != y} z_j + confidence, 0)` over points x' of the
    box, written as a tanh, by Adam; z are the scores. An image is broken when the last term is 0
    at any point on the way and another class has the highest score there. With one search step, c
    stays at `initial_const`, and the attack does not ask for the nearest point of another class at
    any price: where c is small, the minimum lies on the near side of the boundary. Such an image
    is broken still if Adam, whose first steps are as long however small c is, goes beyond the
    minimum and across the boundary: the more are, the longer its steps. Nothing here is random,
    and no image influences another.

    Args:
        model: From pixels in [0, 1] to scores, in evaluation mode.
        images: Of shape `(n, channels, ...)`, with values in [0, 1].
        labels: Their classes. Images that the model gets wrong come back as they are.
        confidence: The margin by which another class must lead.
        iterations: Points that each descent looks at, the first being the image itself.
        initial_const: The first c.
        search_steps: Descents; after each, c is bisected between those that failed and broke.
        lr: Of Adam.
        protocol: "pixels", or "paper" for normalized inputs in the box [0, 1].
        stop_early: Whether to take the first point that is broken instead of the nearest. As many
            images are broken, in less time.
        batch: Images that go through the model together.

    Returns:
        For each image, the nearest broken point that was seen; where there was none, the image
        itself, unchanged.

    Raises:
        ValueError: An argument is out of its range, or the model is in training mode.

    Example:
        >>> import torch
        >>> from experiments.attacks import carlini_wagner_l2
        >>> model = torch.nn.Identity().eval()
        >>> image, label = torch.tensor([[0.6, 0.4]]), torch.tensor([0])
        >>> options = {"confidence": 0.0, "iterations": 200}
        >>> carlini_wagner_l2(model, image, label, initial_const=1.0, **options).round(decimals=2)
        tensor([[0.5000, 0.5000]])
        >>> carlini_wagner_l2(model, image, label, initial_const=0.1, **options)
        tensor([[0.6000, 0.4000]])
    """
    check(model, images, labels)
    not_negative("confidence", confidence)
    positive("initial_const", initial_const)
    positive("lr", lr)
    whole("iterations", iterations)
    whole("search_steps", search_steps)
    space = Space.of(model, protocol, images)
    descent = _Descent(space, confidence, iterations, lr, stop_early)
    found = images.clone()
    right = is_right(model, images, labels, batch).nonzero().flatten()
    for part in right.split(batch) if len(right) else ():
        centres = space.points(images[part]).clamp(0, 1)
        points, distances = _search(descent, centres, labels[part], initial_const, search_steps)
        broken = distances.isfinite()
        found[part[broken]] = space.pixels(points[broken])
    return found


def _search(
    descent: _Descent, centres: Tensor, labels: Tensor, initial_const: float, steps: int
) -> tuple[Tensor, Tensor]:
    """The nearest broken points over all constants, and their distances; infinite if none."""
    best, nearest = centres.clone(), centres.new_full([len(centres)], torch.inf)
    const = torch.full_like(nearest, initial_const)
    low, high = torch.zeros_like(const), torch.full_like(const, torch.inf)
    left = torch.arange(len(centres), device=centres.device)
    for _ in range(steps):
        points, distances = _descend(descent, centres[left], labels[left], const[left])
        closer = distances < nearest[left]
        best[left[closer]], nearest[left[closer]] = points[closer], distances[closer]
        broke, failed = left[distances.isfinite()], left[distances.isinf()]
        high[broke], low[failed] = const[broke], const[failed]
        const = torch.where(high.isfinite(), (low + high) / 2, GROWTH * const)
        left = failed if descent.stop_early else left
        if not len(left):
            break
    return best, nearest


def _descend(
    descent: _Descent, centres: Tensor, labels: Tensor, const: Tensor
) -> tuple[Tensor, Tensor]:
    """The nearest broken points on the way of Adam, and their squared distances."""
    best, nearest = centres.clone(), torch.full_like(const, torch.inf)
    left = torch.arange(len(centres), device=centres.device)
    # Adam by hand: its state must follow the images that are left.
    w = torch.atanh((2 * centres - 1) * INSIDE)
    mean, square = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(1, descent.iterations + 1):
        here = w[left].requires_grad_()
        points = (torch.tanh(here) + 1) / 2
        distances = (points - centres[left]).square().flatten(1).sum(1)
        scores = descent.space.scores(points)
        lead = _lead(scores, labels[left]) + descent.confidence
        (slope,) = torch.autograd.grad((distances + const[left] * lead.relu()).sum(), here)
        # Without a confidence, a tie has a lead of 0 and may be right still.
        broken = (lead <= 0) & (scores.argmax(1) != labels[left])
        closer = broken & (distances < nearest[left])
        best[left[closer]] = points[closer].detach()
        nearest[left[closer]] = distances[closer].detach()
        if descent.stop_early:
            left, slope = left[~broken], slope[~broken]
            if not len(left):
                break
        mean[left] = torch.lerp(slope, mean[left], BETA1)
        square[left] = torch.lerp(slope.square(), square[left], BETA2)
        root = (square[left] / (1 - BETA2**step)).sqrt() + TINY
        w[left] -= descent.lr / (1 - BETA1**step) * mean[left] / root
    return best, nearest


def _lead(scores: Tensor, labels: Tensor) -> Tensor:
    """By how much the score of the class is above that of every other class."""
    own = scores.gather(1, labels[:, None])
    others = scores.scatter(1, labels[:, None], -torch.inf)
    return own[:, 0] - others.max(1).values
