"""Projected gradient descent in the L-infinity norm (Madry et al., 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.attacks._inputs import Protocol, Space, check, is_right
from experiments.attacks._numbers import not_negative, positive, whole


def pgd_linf(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    eps: float,
    steps: int = 50,
    step_size: float | None = None,
    random_start: bool = True,
    generator: torch.Generator | None = None,
    protocol: Protocol = "pixels",
    stop_early: bool = True,
    batch: int = 256,
) -> Tensor:
    """Images within `eps` of the given ones, in every pixel, that the model gets wrong if it can.

    Each step follows the sign of the gradient of the cross-entropy, then goes back into the ball
    and then into the box [0, 1]. An image counts as broken when any point on its way is; since it
    stays there, nothing that is counted depends on the steps after, and they are left out. Random
    starts are drawn for all images at once: they depend neither on the model nor on `batch`.

    Args:
        model: From pixels in [0, 1] to scores, in evaluation mode.
        images: Of shape `(n, channels, ...)`, with values in [0, 1].
        labels: Their classes. Images that the model gets wrong come back as they are.
        eps: How far a pixel may move; under the protocol "paper", a normalized input.
        steps: Steps of each image.
        step_size: Of each step; `eps / 10` if not given.
        random_start: Whether to begin at a point drawn uniformly from the ball.
        generator: Draws the starts; needed with `random_start`.
        protocol: "pixels", or "paper" for normalized inputs in the box [0, 1].
        stop_early: False does all steps with all images and returns the last points, as most
            implementations do; some of these may have been broken on the way and mended again.
        batch: Images that go through the model together.

    Returns:
        For each image, the first point that the model got wrong, otherwise the last point.

    Raises:
        ValueError: An argument is out of its range, or the model is in training mode.

    Example:
        >>> import torch
        >>> from experiments.attacks import pgd_linf
        >>> model = torch.nn.Identity().eval()
        >>> image, label = torch.tensor([[0.6, 0.4]]), torch.tensor([0])
        >>> for eps in (0.09, 0.11):
        ...     moved = pgd_linf(model, image, label, eps=eps, random_start=False)
        ...     print(model(moved).argmax().item())
        0
        1
    """
    check(model, images, labels)
    not_negative("eps", eps)
    whole("steps", steps)
    if step_size is not None:
        positive("step_size", step_size)
    space = Space.of(model, protocol, images)
    centres = space.points(images)
    points = centres.clone()
    if random_start:
        points += eps * _between_minus_one_and_one(images, generator)
    points.clamp_(0, 1)
    stride = eps / 10 if step_size is None else step_size
    found = images.clone()
    right = is_right(model, images, labels, batch).nonzero().flatten()
    for part in right.split(batch) if len(right) else ():
        ball = (centres[part] - eps, centres[part] + eps)
        moved = _walk(space, points[part], ball, labels[part], stride, steps, stop_early)
        found[part] = space.pixels(moved)
    return found


def _between_minus_one_and_one(images: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        raise ValueError("random_start=True needs a generator: pass one, or random_start=False.")
    drawn = torch.rand(images.shape, generator=generator, device=generator.device)
    return (2 * drawn - 1).to(images)


def _walk(
    space: Space,
    points: Tensor,
    ball: tuple[Tensor, Tensor],
    labels: Tensor,
    stride: float,
    steps: int,
    stop_early: bool,
) -> Tensor:
    """The points after their steps; with `stop_early` a broken one stays where it is."""
    left = torch.arange(len(points), device=points.device)
    low, high = ball
    for _ in range(steps):
        here = points[left].requires_grad_()
        scores = space.scores(here)
        # Summed, not averaged: the slope of an image must not depend on how many there are.
        loss = functional.cross_entropy(scores, labels[left], reduction="sum")
        (slope,) = torch.autograd.grad(loss, here)
        moved = here.detach() + stride * slope.sign()
        if stop_early:
            standing = scores.argmax(1) == labels[left]
            left, moved = left[standing], moved[standing]
            if not len(left):
                break
        points[left] = moved.clamp(low[left], high[left]).clamp(0, 1)
    return points
